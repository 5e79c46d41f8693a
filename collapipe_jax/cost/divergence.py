"""The divergence of a round: how far losses and heterogeneity slow convergence."""

import jax.numpy as jnp
from jax import Array

from collapipe_jax.quantity import Struct, part, quantity

_LINEAR_FROM = 50.0


class Drift(Struct):
    """What local steps add to (19): clusters drift apart between aggregations.

    Source: docs/theory.md (T14).
    """

    spread: Array = quantity("weight of noise that a cluster meets again in its later steps")
    divergence: Array = quantity(
        "divergence of clusters with objectives of their own, whatever the decision",
        unit="squared gradient",
    )


class Learning(Struct):
    """Constants of the convergence bound."""

    cluster_weight: Array = quantity("weight of a cluster in the mean; the sum is 1", "w", "N")
    gradient_variance: Array = quantity(
        "variance of a sample's gradient", r"\sigma^2", unit="squared gradient"
    )
    gradient_heterogeneity: Array = quantity(
        "squared distance of a cluster's gradient from the mean of all",
        r"\zeta^2",
        unit="squared gradient",
    )
    drift: Drift | None = part("of the bound for several local steps; none is (19)", default=None)


def local_steps_drift(
    step_smoothness: float, local_steps: int, gradient_heterogeneity: float
) -> Drift:
    """Drift of ``H`` local steps, docs/theory.md (T14).

    Args:
      step_smoothness: ``eta L_s``, at most ``1 / (4 H)``.
      local_steps: ``H``.
      gradient_heterogeneity: ``zeta^2``.
    """
    extra = step_smoothness * (local_steps - 1)
    return Drift(
        spread=jnp.asarray(1.5 * extra),
        divergence=jnp.asarray(extra * (2 * local_steps - 1) * gradient_heterogeneity),
    )


def noise_weight(learning: Learning, weight: Array) -> Array:
    """What a cluster's divergence counts for in a round's: ``w^2``, more with drift.

    Args:
      learning: constants.
      weight: ``w_n`` of those that take part, ``[N, ...]``.
    """
    if learning.drift is None:
        return weight**2
    return weight**2 + learning.drift.spread * weight * (1.0 - weight)


def erasure_terms(learning: Learning) -> float:
    """Times that ``zeta^2`` counts in an erasure: the parts a gradient is split into."""
    return 2.0 if learning.drift is None else 3.0


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
    heterogeneity = erasure_terms(learning) * learning.gradient_heterogeneity
    erasure = heterogeneity * excess / micro_batches
    return sampling + erasure


def round_divergence(cluster: Array, present: Array, learning: Learning) -> Array:
    """Divergence Gamma of a round, docs/system-model.md (19), or with drift its like.

    Args:
      cluster: :func:`cluster_divergence`, ``[N]``; may be infinite where absent.
      present: clusters that take part, ``[N]``.
      learning: weights.
    """
    weight = present_weight(learning.cluster_weight, present)
    return sum_divergence(cluster, weight, present, learning)


def sum_divergence(cluster: Array, weight: Array, present: Array, learning: Learning) -> Array:
    """Sum over those that learn, clusters or clients, and what they drift apart.

    Args:
      cluster: divergence of each, ``[N]`` or ``[N, K]``; may be infinite where absent.
      weight: of each, sum 1, the same shape.
      present: those that take part, the same shape.
      learning: constants.
    """
    noise = jnp.where(present, noise_weight(learning, weight), 0.0)
    total = jnp.sum(noise * jnp.where(present, cluster, 0.0))
    if learning.drift is None:
        return total
    return total + jnp.where(jnp.any(present), learning.drift.divergence, 0.0)


def loss_free_divergence(learning: Learning, batch: Array, present: Array) -> Array:
    """Divergence of a round in which these clusters take part and nothing is lost.

    Args:
      learning: constants.
      batch: ``B``.
      present: clusters that take part, ``[N]``.
    """
    weight = present_weight(learning.cluster_weight, present)
    cluster = jnp.full(weight.shape, learning.gradient_variance / batch)
    return sum_divergence(cluster, weight, present, learning)
