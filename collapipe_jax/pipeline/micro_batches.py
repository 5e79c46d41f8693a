"""Micro-batches: a mini-batch cut in equal runs of examples, and their random keys."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.errors import InputError
from collapipe_jax.models.layers import example_keys


class MicroBatches(NamedTuple):
    """Masks and keys of micro-batches.

    Attributes:
      mask: ``[M, b, S]``, True on real tokens.
      keys: ``[M, b]`` dropout keys of the examples, or None.
    """

    mask: Array
    keys: Array | None

    def at(self, number: Array | int) -> "MicroBatches":
        """Those of one micro-batch ``[]``, or of several ``[n]``, by number."""
        return jax.tree.map(lambda leaf: leaf[number], self)


def cut(tree: Any, count: int) -> Any:
    """Leaves ``[B, ...]`` to ``[count, B / count, ...]``, examples in order."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), tree
    )


def cut_mask_and_keys(
    mask: Array, dropout_key: Array | None, example_ids: Array | None, count: int
) -> MicroBatches:
    """Micro-batches of a mini-batch; a key depends on the example's number alone."""
    ids = jnp.arange(mask.shape[0]) if example_ids is None else example_ids
    return MicroBatches(*cut((mask, example_keys(dropout_key, ids)), count))


def check_micro_batches(batch: int, count: int) -> None:
    """Refuse, by an ``InputError``, a number of micro-batches that does not divide B."""
    if count < 1 or batch % count:
        problem = f"does not divide the {batch} examples of a mini-batch"
        raise InputError("micro_batches", count, problem, "Choose a divisor of training.batch")
