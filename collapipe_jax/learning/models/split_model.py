"""The interface of all models that the network trains: their cut and their loss."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.learning.models.block import encode
from collapipe_jax.learning.models.config import EncoderConfig
from collapipe_jax.learning.models.layers import Params, example_keys

Batch = Any
"""A NamedTuple of arrays whose first axis is the examples, one type a kind of task."""


WHOLE_TABLES = frozenset({"ngram"})
"""Tables of an embedding that travel whole, whatever rows are looked up."""


class SplitModel(abc.ABC):
    """A model in three parts; hashable, hence static under jit."""

    sizes: EncoderConfig

    @property
    @abc.abstractmethod
    def unsmoothed(self) -> "SplitModel":
        """The same model, its loss without label smoothing."""

    @abc.abstractmethod
    def init(self, key: Array) -> Params:
        """Fresh parameters of all three parts."""

    @abc.abstractmethod
    def embed(
        self, embedding_params: Params, batch: Batch, keys: Array | None
    ) -> tuple[Array, Array]:
        """The control unit's part: ``(x [B, S, h], mask [B, S])``, as of ``encoder_block``."""

    @abc.abstractmethod
    def losses(
        self, decoder_params: Params, encoded: Array, batch: Batch, keys: Array | None
    ) -> tuple[Array, Array]:
        """The edge server's part, from the encoder's output ``[B, S, h]``.

        The loss of a set of examples is ``sum(loss_sum) / sum(count)``: sums do not depend on
        the cut into micro-batches.

        Returns:
          ``(loss_sum [B], count [B])``: an example's loss in nats summed over its predictions,
          and their number; 0 and 0 where there is none.
        """

    def rows_read(self, batch: Batch) -> dict[str, Array]:
        """Rows that the embedding looks up: integers by the leaf that is the table.

        A number beyond the table is of no row. Leaves that are not named have no rows that few
        clients train. By default the first leaf of a batch has the rows of ``embedding``.
        """
        return {"embedding": jax.tree.leaves(batch)[0]}

    def filled(self, batch: Batch) -> np.ndarray:
        """Share of its row that each example's tokens fill, ``[...]``; all 1 if rows stay whole.

        Leaves are ``[..., S]`` or ``[...]``, of NumPy.
        """
        return np.ones(jax.tree.leaves(batch)[0].shape[:1])

    def shortened(self, batch: Batch, share: float) -> Batch:
        """The same examples in shorter rows, which hold all that fill at most this share."""
        del share
        return batch


def example_losses(
    model: SplitModel,
    params: Params,
    batch: Batch,
    dropout_key: Array | None = None,
    example_ids: Array | None = None,
) -> tuple[Array, Array]:
    """Loss of every example, all three parts on one device; as ``SplitModel.losses``."""
    if example_ids is None:
        example_ids = jnp.arange(jax.tree.leaves(batch)[0].shape[0])
    keys = example_keys(dropout_key, example_ids)
    x, mask = model.embed(params["embedding"], batch, keys)
    encoded = encode(params["encoder"], model.sizes, x, mask, keys)
    return model.losses(params["decoder"], encoded, batch, keys)
