"""The loss of a local step: one scalar for all clusters and the edge server's one decoder."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from collapipe_jax.models.layers import Params, example_keys
from collapipe_jax.models.split_model import Batch, SplitModel
from collapipe_jax.pipeline.execution import Execution, encode_clusters


def shared_loss(
    clients: Params,
    decoder: Params,
    batch: Batch,
    example_weights: Float[Array, "N B"],
    shares: Float[Array, " N"],
    dropout_key: Key[Array, ""],
    *,
    model: SplitModel,
    segments: Int[Array, "N K"] | None,
    execution: Execution,
) -> tuple[Float[Array, ""], tuple[Float[Array, " N"], Float[Array, " N"]]]:
    """Scalar with the gradients of all clients and the decoder, from one pass of the decoder.

    Its value is ``sum_n shares_n loss_n``, so its gradient by the decoder is the weighted
    mean of the clusters' gradients. The backward pass to the clusters divides by the share,
    which leaves cluster n the gradient of its own ``loss_n``. The decoder thus runs once over
    all ``N B`` examples, without a copy of its gradient for each cluster.

    Args:
      clients: leaves ``[N, ...]``.
      decoder: the one decoder.
      batch, example_weights, shares: as in ``federated``.
      dropout_key: scalar key of the step.
      model: the model that is trained.
      segments: ``[N, K]``, for a pipeline.
      execution: how the encoder is executed.

    Returns:
      The scalar, and ``(loss_sum [N], token_count [N])`` without erasure weights.
    """
    clusters, batch_size = example_weights.shape
    key = dropout_key if model.sizes.dropout_rate > 0.0 else None
    ids = jnp.arange(clusters * batch_size).reshape(clusters, batch_size)
    keys = jax.vmap(example_keys, in_axes=(None, 0))(key, ids)
    x, mask = jax.vmap(model.embed)(clients["embedding"], batch, keys)
    encoded = encode_clusters(clients["encoder"], model.sizes, x, mask, segments, keys, execution)
    encoded = _scale_gradient(encoded, 1.0 / jnp.where(shares > 0.0, shares, 1.0))
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (encoded, batch, keys))
    losses, tokens = model.losses(decoder, *flat)
    losses, tokens = losses.reshape(ids.shape), tokens.reshape(ids.shape)
    cluster_loss = loss_per_token(losses, tokens, example_weights)
    return (shares * cluster_loss).sum(), (losses.sum(1), tokens.sum(1))


def loss_per_token(
    losses: Float[Array, "... B"],
    tokens: Float[Array, "... B"],
    example_weights: Float[Array, "... B"],
) -> Float[Array, "..."]:
    """Loss that a client descends: ``sum_b e_b loss_b / sum_b tokens_b``, 0 without a token.

    Args:
      losses: sums over an example's tokens.
      tokens: their numbers, of erased examples too.
      example_weights: erasure weights.
    """
    return (example_weights * losses).sum(-1) / jnp.maximum(tokens.sum(-1), 1.0)


@jax.custom_vjp
def _scale_gradient(x: Array, scale: Array) -> Array:
    """The identity on ``x [N, ...]``, whose gradient is multiplied by ``scale [N]``."""
    del scale
    return x


def _scale_gradient_forward(x: Array, scale: Array) -> tuple[Array, Array]:
    return x, scale


def _scale_gradient_backward(scale: Array, cotangent: Array) -> tuple[Array, None]:
    return cotangent * scale.reshape(-1, *[1] * (cotangent.ndim - 1)), None


_scale_gradient.defvjp(_scale_gradient_forward, _scale_gradient_backward)
