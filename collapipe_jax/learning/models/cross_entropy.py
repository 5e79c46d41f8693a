"""Label-smoothed cross entropy with a gradient in one pass over the scores."""

import jax
import jax.numpy as jnp
from jax import Array

_Residual = tuple[Array, Array, Array]


def _cross_entropy(scores: Array, targets: Array, smoothing: float) -> Array:
    """Cross entropy against ``(1 - smoothing) one_hot + smoothing / V``, in nats.

    Scores are ``[..., V]``, targets and results ``[...]``.

    Scores over a vocabulary are the largest array of a training step. The explicit gradient
    ``softmax - target`` reads and writes it once; automatic differentiation passes through
    several arrays of that size and a scatter.
    """
    return _forward(scores, targets, smoothing)[0]


def _forward(scores: Array, targets: Array, smoothing: float) -> tuple[Array, _Residual]:
    log_total = jax.nn.logsumexp(scores, axis=-1)
    right = jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
    loss = log_total - (1.0 - smoothing) * right
    if smoothing > 0.0:
        loss -= smoothing * scores.mean(-1)
    return loss, (scores, targets, log_total)


def _backward(smoothing: float, residual: _Residual, cotangent: Array) -> tuple:
    scores, targets, log_total = residual
    vocabulary_size = scores.shape[-1]
    token = jax.lax.broadcasted_iota(targets.dtype, scores.shape, scores.ndim - 1)
    right = jnp.where(token == targets[..., None], 1.0 - smoothing, 0.0)
    softmax = jnp.exp(scores - log_total[..., None])
    return (softmax - right - smoothing / vocabulary_size) * cotangent[..., None], None


cross_entropy = jax.custom_vjp(_cross_entropy, nondiff_argnums=(2,))
cross_entropy.defvjp(_forward, _backward)


def summed_cross_entropy(
    scores: Array, targets: Array, scored: Array, smoothing: float
) -> tuple[Array, Array]:
    """``cross_entropy`` of an example summed over what is scored, and its number, both ``[B]``."""
    losses, axes = cross_entropy(scores, targets, smoothing), tuple(range(1, scored.ndim))
    return jnp.where(scored, losses, 0.0).sum(axes), scored.sum(axes).astype(losses.dtype)
