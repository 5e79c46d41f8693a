"""The interface of all models that the network trains: their cut and their loss.

The edge server holds the decoder, and perhaps the last blocks.
"""

import abc
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PyTree

from collapipe_jax.learning.models.block import encode
from collapipe_jax.learning.models.config import EncoderConfig
from collapipe_jax.learning.models.layers import Params, example_keys

Batch = Any
"""A NamedTuple of arrays whose first axis is the examples, one type a kind of task."""


CLIENT_PARTS = ("embedding", "encoder")
"""Parts of a model that clusters hold, and that adapters leave as they are."""
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


# Parameters of the edge server.


class ServerPart(NamedTuple):
    """The part of an edge server that holds blocks. Without blocks it is the decoder alone."""

    encoder: PyTree  # the last blocks, every leaf ``[L_ES, ...]``
    decoder: PyTree


ServerParams = Params | ServerPart
"""Parameters of the edge server: of its decoder, or of blocks too."""


def cut_encoder(encoder: Params, server_blocks: int) -> tuple[Params, Params]:
    """Blocks of the clusters and of the edge server, from stacks ``[L, ...]``."""
    return (
        jax.tree.map(lambda leaf: leaf[: leaf.shape[0] - server_blocks], encoder),
        jax.tree.map(lambda leaf: leaf[leaf.shape[0] - server_blocks :], encoder),
    )


def cut_model(model: Params, server_blocks: int) -> tuple[Params, ServerParams]:
    """Parameters of the clusters and of the edge server.

    Clusters without a block have no ``encoder``: checkpoints hold no empty arrays.
    """
    clusters = {name: model[name] for name in CLIENT_PARTS}
    if not server_blocks:
        return clusters, model["decoder"]
    own, last = cut_encoder(clusters.pop("encoder"), server_blocks)
    if any(len(leaf) for leaf in jax.tree.leaves(own)):
        clusters["encoder"] = own
    return clusters, ServerPart(last, model["decoder"])


def join_model(clusters: Params, server: ServerParams) -> Params:
    """The whole model of :func:`cut_model`."""
    if not isinstance(server, ServerPart):
        return {**clusters, "decoder": server}
    encoder = server.encoder
    if "encoder" in clusters:
        stacks = clusters["encoder"], encoder
        encoder = jax.tree.map(lambda own, last: jnp.concatenate([own, last]), *stacks)
    return {**clusters, "encoder": encoder, "decoder": server.decoder}
