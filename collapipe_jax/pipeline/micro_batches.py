"""Micro-batches: a mini-batch cut in equal runs of examples, and their random keys."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from collapipe_jax.errors import InputError
from collapipe_jax.models.layers import example_keys


class MicroBatches(NamedTuple):
    """What a block needs to know of every micro-batch besides its activations.

    Attributes:
      mask: ``[M, b, S]``, True on real tokens.
      keys: ``[M, b]`` dropout keys of the examples, or None.
    """

    mask: jax.Array
    keys: jax.Array | None

    def at(self, number: jax.Array) -> "MicroBatches":
        """What one micro-batch has, or several.

        Args:
          number: which, ``[]`` or ``[n]``.

        Returns:
          Leaves ``[b, ...]`` or ``[n, b, ...]``.
        """
        return jax.tree.map(lambda leaf: leaf[number], self)


def cut(tree: Any, count: int) -> Any:
    """A mini-batch as micro-batches, examples in order.

    Args:
      tree: leaves ``[B, ...]``.
      count: ``M``, a divisor of B (static).

    Returns:
      Leaves ``[M, B / M, ...]``.
    """
    return jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), tree
    )


def cut_mask_and_keys(
    mask: jax.Array, dropout_key: jax.Array | None, example_ids: jax.Array | None, count: int
) -> MicroBatches:
    """The micro-batches of a mini-batch.

    Args:
      mask: ``[B, S]``.
      dropout_key: scalar key, or None for a deterministic pass.
      example_ids: ``[B]`` numbers of the examples; ``0 .. B - 1`` when None.
      count: ``M`` (static).

    Returns:
      Their masks and keys; a key depends on the number of the example alone.
    """
    ids = jnp.arange(mask.shape[0]) if example_ids is None else example_ids
    return MicroBatches(*cut((mask, example_keys(dropout_key, ids)), count))


def check_micro_batches(batch: int, count: int) -> None:
    """Refuse a number of micro-batches that does not divide the mini-batch.

    Args:
      batch: ``B``.
      count: ``M``.

    Raises:
      InputError: as said.
    """
    if count < 1 or batch % count:
        raise InputError(
            "micro_batches",
            count,
            f"does not divide the {batch} examples of a mini-batch",
            "Choose a divisor of training.batch",
        )
