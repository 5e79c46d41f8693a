"""The divergence of a round: how far losses and heterogeneity slow convergence."""

import jax.numpy as jnp
from flax import struct
from jax import Array

_LINEAR_FROM = 50.0


@struct.dataclass(kw_only=True)
class Learning:
    """What the convergence bound knows of the task.

    Attributes:
      cluster_weight: ``w_n`` of the aggregation, sum 1, ``[N]``.
      gradient_variance: ``sigma^2``, variance of a per-sample gradient.
      gradient_heterogeneity: ``zeta^2``, squared distance of a cluster's gradient from
        the mean of all.
    """

    cluster_weight: Array
    gradient_variance: Array
    gradient_heterogeneity: Array


def present_weight(cluster_weight: Array, present: Array) -> Array:
    """Weights of the clusters that take part, rescaled to sum 1.

    Args:
      cluster_weight: ``[N, ...]``.
      present: ``[N, ...]``.

    Returns:
      ``[N, ...]``, 0 where absent; all 0 if nobody takes part.
    """
    weight = jnp.where(present, cluster_weight, 0.0)
    total = jnp.sum(weight, axis=0)
    return jnp.where(total > 0, weight / jnp.where(total > 0, total, 1.0), 0.0)


def excess_inverse_survival(hazard: Array) -> Array:
    """``1 / (1 - P) - 1 = e^Lambda - 1``, continued by its tangent beyond 50.

    The tangent keeps values finite and slopes alive where a link is hopeless.

    Args:
      hazard: ``Lambda``, ``[...]``.
    """
    exponent = jnp.minimum(hazard, _LINEAR_FROM)
    beyond = jnp.maximum(hazard - _LINEAR_FROM, 0.0)
    return jnp.expm1(exponent) + jnp.exp(_LINEAR_FROM) * beyond


def cluster_divergence(
    hazard: Array, micro_batches: Array, batch: Array, learning: Learning
) -> Array:
    """Bracket of docs/system-model.md (19): variance of each cluster's gradient.

    Args:
      hazard: ``Lambda_n`` of a micro-batch, ``[N]``.
      micro_batches: ``M_n``, ``[N]``.
      batch: ``B``.
      learning: constants.

    Returns:
      ``[N]``.
    """
    excess = excess_inverse_survival(hazard)
    sampling = learning.gradient_variance * (1.0 + excess) / batch
    erasure = 2.0 * learning.gradient_heterogeneity * excess / micro_batches
    return sampling + erasure


def round_divergence(cluster: Array, present: Array, learning: Learning) -> Array:
    """Divergence Gamma of a round, docs/system-model.md (19).

    Args:
      cluster: :func:`cluster_divergence`, ``[N]``; may be infinite where absent.
      present: clusters that take part, ``[N]``.
      learning: weights.
    """
    weight = present_weight(learning.cluster_weight, present)
    return jnp.sum(jnp.where(present, weight**2 * jnp.where(present, cluster, 0.0), 0.0))


def loss_free_divergence(learning: Learning, batch: Array, present: Array) -> Array:
    """Divergence of a round in which these clusters take part and nothing is lost.

    Args:
      learning: constants.
      batch: ``B``.
      present: clusters that take part, ``[N]``.
    """
    weight = present_weight(learning.cluster_weight, present)
    return jnp.sum(weight**2) * learning.gradient_variance / batch
