"""The part of a pipeline's model that the edge server holds: the decoder, and perhaps blocks.

There is one copy of it, which the server steps on the mean of the clusters' gradients. Its blocks
learn at the clusters' rate, with an optimiser of their kind: rates go by what a parameter is, not
by where it lies. A published block would forget at the rate of a fresh head.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from collapipe_jax.learning.federated.optimizers import Transformations
from collapipe_jax.learning.models.adapters import CLIENT_PARTS
from collapipe_jax.learning.models.layers import Params


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


def server_transformations(own: Transformations, server_blocks: int) -> Transformations:
    """The optimisers of a run, whose second steps all of the edge server's part.

    Norms of blocks and decoder are clipped each by itself.
    """
    if not server_blocks:
        return own
    parts = ServerPart("client", "decoder")
    both = optax.partition({"client": own.client, "decoder": own.decoder}, parts)
    return own._replace(decoder=both)
