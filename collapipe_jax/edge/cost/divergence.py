"""The divergence of a round: how far losses and heterogeneity slow convergence."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

from collapipe_jax.core.quantity import Struct, part, quantity
from collapipe_jax.edge.cost.shapes import Broadcast, PerCluster

_LINEAR_FROM = 50.0


class Drift(Struct):
    """What clusters that drift apart between aggregations add to (19), docs/theory.md (T14)."""

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
    step_smoothness: float, local_steps: int, gradient_heterogeneity: Array | float
) -> Drift:
    """Drift of ``H`` local steps with ``eta L_s <= 1 / (4 H)``, docs/theory.md (T14)."""
    extra = step_smoothness * (local_steps - 1)
    return Drift(
        spread=jnp.asarray(1.5 * extra),
        divergence=jnp.asarray(extra * (2 * local_steps - 1) * gradient_heterogeneity),
    )


class ClusterDivergence(NamedTuple):
    """Divergence of each cluster or client as ``lossless + per_excess (e(hazard) - 1)``."""

    lossless: PerCluster  # without any loss
    per_excess: PerCluster  # by the excess of the inverse survival probability

    def at(self, hazard: Broadcast) -> Broadcast:
        """Divergence at the hazard of a micro-batch."""
        return self.lossless + self.per_excess * excess_inverse_survival(hazard)


def cluster_divergence(
    learning: Learning,
    weight: Float[Array, " N *any"],
    batch: Num[Array, "..."],
    micro_batches: Num[Array, "..."] | int,
) -> ClusterDivergence:
    """What every cluster, or client, adds to the divergence of a round.

    Weights of the aggregation have sum 1, and are 0 for those that sit out; other numbers
    broadcast against them. The sum over clusters is Gamma of docs/system-model.md, with drift
    that of docs/theory.md (T14).

    Source: docs/system-model.md (19).
    """
    noise, parts, drift = weight**2, 2.0, 0.0
    if learning.drift is not None:
        noise = noise + learning.drift.spread * weight * (1.0 - weight)
        parts, drift = 3.0, weight * learning.drift.divergence
    sampling = noise * learning.gradient_variance / batch
    erasure = noise * parts * learning.gradient_heterogeneity / micro_batches
    return ClusterDivergence(lossless=sampling + drift, per_excess=sampling + erasure)


def participating_weight(
    cluster_weight: Float[Array, " N *#batch"], participates: Bool[Array, " N *batch"]
) -> PerCluster:
    """Aggregation weights of the clusters that take part, rescaled to sum 1; 0 for others."""
    weight = jnp.where(participates, cluster_weight, 0.0)
    total = jnp.sum(weight, axis=0)
    return jnp.where(total > 0, weight / jnp.where(total > 0, total, 1.0), 0.0)


def excess_inverse_survival(hazard: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """``1 / (1 - P) - 1 = e^hazard - 1``, continued by its tangent beyond 50.

    The tangent keeps values finite and slopes above 0 where nearly all is lost.
    """
    exponent = jnp.minimum(hazard, _LINEAR_FROM)
    beyond = jnp.maximum(hazard - _LINEAR_FROM, 0.0)
    return jnp.expm1(exponent) + jnp.exp(_LINEAR_FROM) * beyond


def inverse_survival_slope(excess: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """Slope of :func:`excess_inverse_survival` by the hazard, from its value."""
    return 1.0 + jnp.minimum(excess, math.expm1(_LINEAR_FROM))


def lossless_divergence(
    learning: Learning, batch: Num[Array, ""], participates: Bool[Array, " N"]
) -> Float[Array, ""]:
    """Divergence of a round in which these clusters take part and nothing is lost."""
    weight = participating_weight(learning.cluster_weight, participates)
    return jnp.sum(cluster_divergence(learning, weight, batch, 1).lossless, axis=0)
