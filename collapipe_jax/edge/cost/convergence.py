"""The convergence bounds: how small a gradient must become on the way.

All bound the mean of ``|grad F|^2`` over the steps taken, a scalar; docs/theory.md derives
them. A bound is infinite for steps so long that its proof does not close. The bounds count
losses as they are, without the tangent of docs/system-model.md (19), and bring their own terms
of drift: that of :class:`Learning` is for decisions, and not read.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

from collapipe_jax.core.quantity import Struct, part, positive, quantity
from collapipe_jax.edge.cost.decision import Broadcast, PerCluster

# The divergence of a round: how far losses and heterogeneity slow convergence.

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


_DRIFT_TERMS = 3.0
"""Parts of a cluster's gradient away from the mean: the mean's, heterogeneity, drift."""

_Scalar = Float[Array, ""]


class DescentSettings(Struct):
    """How far and over what ground clusters descend, with the same losses in all rounds."""

    smoothness: Array = quantity("of every cluster's objective", "L_s")
    start_gap: Array = quantity("distance of the objective from its least value", "F_0 - F^*")
    step_size: Array = positive("of a local step", r"\eta")
    rounds: Array = positive("number of them", "T", whole=True)
    batch: Array = positive("samples of a mini-batch", "B", whole=True)
    micro_batches: Array = positive("micro-batches of a mini-batch", "M_n", "N", whole=True)
    loss_probability: Array = quantity("of a micro-batch", "P_n", "N", bounds=">= 0 and < 1")


def erasure_noise(descent: DescentSettings) -> Float[Array, " N"]:
    """``a_n = P_n / (M_n (1 - P_n))``, what erasures add to a squared gradient."""
    loss_probability = descent.loss_probability
    return loss_probability / (descent.micro_batches * (1.0 - loss_probability))


def gradient_noise(
    learning: Learning, descent: DescentSettings, terms: float
) -> Float[Array, " N"]:
    """Part of a cluster's gradient variance that no small gradient takes away.

    ``sigma^2 / (B (1 - P_n)) + terms zeta^2 a_n``, docs/theory.md (T3), with the cluster's
    gradient split into a number of terms. Source: docs/system-model.md (17), whose squared
    gradient is bounded by parts.
    """
    sampling = learning.gradient_variance / (descent.batch * (1.0 - descent.loss_probability))
    return sampling + terms * learning.gradient_heterogeneity * erasure_noise(descent)


def longest_step(
    learning: Learning, descent: DescentSettings, rounding_variance: float = 0.0
) -> _Scalar:
    """``1 / (L_s (1 + r))``, up to where :func:`one_step_bound` holds."""
    amplified = _amplified(learning, descent, rounding_variance)
    return 1.0 / (descent.smoothness * (1.0 + amplified))


def _amplified(
    learning: Learning, descent: DescentSettings, rounding_variance: float = 0.0
) -> _Scalar:
    """``r = 2 sum_n w_n^2 a_n``, by which losses amplify the mean's own squared gradient.

    With rounded updates ``a_n`` grows to that of docs/theory.md (T29).
    """
    noise = (1.0 + rounding_variance) * erasure_noise(descent) + rounding_variance
    return 2.0 * jnp.sum(learning.cluster_weight**2 * noise)


def _divergence(
    learning: Learning, descent: DescentSettings, rounding_variance: float = 0.0
) -> _Scalar:
    """Sum of the clusters' noise at one local step a round, docs/theory.md (T29) if rounded."""
    noise = (1.0 + rounding_variance) * gradient_noise(learning, descent, 2.0)
    rounded = 2.0 * rounding_variance * learning.gradient_heterogeneity
    return jnp.sum(learning.cluster_weight**2 * (noise + rounded))


def _less_absorbed(total: _Scalar, absorbed: _Scalar, closes: Bool[Array, ""]) -> _Scalar:
    """``total / (1 - absorbed)`` where the proof closes."""
    return jnp.where(closes, total / jnp.where(closes, 1.0 - absorbed, 1.0), jnp.inf)


def privacy_noise(
    descent: DescentSettings, added_variance: Array | float, local_steps: Array | int = 1
) -> _Scalar:
    """What noise on the server's step adds to a bound, docs/theory.md (T24).

    ``added_variance`` is that of a round's noise, the sum over all coordinates. It counts where
    clipping leaves every cluster's step as it is.
    """
    return jnp.asarray(descent.smoothness * added_variance / (descent.step_size * local_steps))


def one_step_bound(
    learning: Learning,
    descent: DescentSettings,
    added_variance: Array | float = 0.0,
    rounding_variance: float = 0.0,
) -> _Scalar:
    """Bound at one local step a round. Source: docs/system-model.md (18).

    It is infinite for steps longer than :func:`longest_step`. ``added_variance`` is as in
    :func:`privacy_noise`. ``rounding_variance`` is of updates that are rounded without bias and
    without residuals, over their squared norm.
    """
    divergence = _divergence(learning, descent, rounding_variance)
    floor = descent.smoothness * descent.step_size * divergence
    start = 2.0 * descent.start_gap / (descent.step_size * descent.rounds)
    longest = longest_step(learning, descent, rounding_variance)
    total = start + floor + privacy_noise(descent, added_variance)
    return jnp.where(descent.step_size <= longest * (1.0 + 1e-6), total, jnp.inf)


def local_steps_bound(
    learning: Learning,
    descent: DescentSettings,
    local_steps: Array | int,
    added_variance: Array | float = 0.0,
    rounding_variance: float = 0.0,
) -> _Scalar:
    """Bound with clusters that drift apart over ``H`` local steps, docs/theory.md (T12), (T30).

    What is bounded is the gradient at the clusters' weighted mean, over all local steps.
    ``added_variance`` and ``rounding_variance`` are as in :func:`one_step_bound`.
    """
    weight = learning.cluster_weight
    spread = weight * (1.0 - weight)
    relative = descent.step_size * descent.smoothness  # eta L_s
    extra = local_steps - 1.0
    erasure = erasure_noise(descent)
    noise = gradient_noise(learning, descent, _DRIFT_TERMS)
    # What the server averages is rounded, and what a cluster drifts by is not.
    rounded = 2.0 * rounding_variance * local_steps
    sent_erasure = (1.0 + 2.0 * rounding_variance) * erasure + rounded
    sent_noise = (1.0 + 2.0 * rounding_variance) * noise
    sent_noise = sent_noise + _DRIFT_TERMS * rounded * learning.gradient_heterogeneity

    growth = 2.0 * relative**2 * extra * (local_steps + _DRIFT_TERMS * jnp.max(erasure))
    share = 1.0 + _DRIFT_TERMS * relative * jnp.max(weight * sent_erasure)
    drift = share * relative**2 * extra / (1.0 - growth)
    absorbed = _DRIFT_TERMS * (
        relative * jnp.sum(weight**2 * sent_erasure) + 2.0 * drift * jnp.sum(spread * erasure)
    )
    heterogeneity = 2.0 / 3.0 * (2.0 * local_steps - 1.0) * learning.gradient_heterogeneity
    total = (
        2.0 * descent.start_gap / (descent.step_size * local_steps * descent.rounds)
        + relative * jnp.sum(weight**2 * sent_noise)
        + drift * (jnp.sum(spread * noise) + heterogeneity)
        + privacy_noise(descent, added_variance, local_steps)
    )
    closes = (relative <= 1.0) & (growth < 1.0) & (absorbed < 1.0)
    return _less_absorbed(total, absorbed, closes)


def momentum_bound(
    learning: Learning, descent: DescentSettings, momentum: Array | float
) -> _Scalar:
    """Bound at one local step and a server's momentum in ``[0, 1)``, docs/theory.md (T17)."""
    step = descent.step_size / (1.0 - momentum)  # what a gradient moves in the end
    relative = step * descent.smoothness
    divergence = _divergence(learning, descent)
    amplified = _amplified(learning, descent)
    lag = 2.0 * (relative * momentum) ** 2
    absorbed = relative * (1.0 + amplified) + lag * (
        1.0 / (1.0 - momentum) ** 2 + amplified / (1.0 - momentum**2)
    )
    start = 2.0 * descent.start_gap / (step * descent.rounds)
    total = start + divergence * (relative + lag / (1.0 - momentum**2))
    return _less_absorbed(total, absorbed, absorbed < 1.0)


def absence_ratio(cluster_weight: Float[Array, " N"], present: Bool[Array, " N"]) -> _Scalar:
    """``rho = min(1, W_absent / W_present)`` of a round; 1 if nobody is present.

    Source: docs/theory.md (T15).
    """
    absent = jnp.sum(jnp.where(present, 0.0, cluster_weight))
    there = jnp.sum(jnp.where(present, cluster_weight, 0.0))
    ratio = jnp.where(there > 0, absent / jnp.where(there > 0, there, 1.0), 1.0)
    return jnp.minimum(1.0, ratio)


def absence_bias(learning: Learning, present: Bool[Array, " N"]) -> _Scalar:
    """What clusters that sit out add to :func:`one_step_bound`, docs/theory.md (T15).

    ``rho^2 zeta^2`` with :func:`absence_ratio`: the mean over a round of this is the squared
    bias of the direction in which the server goes. It is ``zeta^2`` if nobody is present,
    though no step is taken then.
    """
    return absence_ratio(learning.cluster_weight, present) ** 2 * learning.gradient_heterogeneity


def assured_step(
    gradient_variance: Array | float,
    gradient_heterogeneity: Array | float,
    batch: Array | int,
    largest_divergence: Float[Array, "*any"],
) -> Float[Array, "*any"]:
    """Smoothness times a step up to :func:`longest_step`, by the largest (19) of all rounds.

    Source: docs/theory.md (T33).
    """
    least = gradient_heterogeneity + gradient_variance / (2.0 * batch)
    return least / (least + largest_divergence)


def descent_rounds(
    divergence: Float[Array, "*any"],
    target: Float[Array, "*any"],
    bias: Float[Array, "*any"],
    longest: Float[Array, "*any"] | float,
    reference: float,
) -> Float[Array, "*any"]:
    """Rounds for a unit of descent: what a round at the target of the divergence descends.

    They are those of the best constant step. They are infinite where no step is good enough, and
    with an infinite divergence. Source: docs/theory.md (T34).

    Args:
      divergence: its mean over the rounds.
      target: of the divergence.
      bias: mean over the rounds of :func:`absence_bias`.
      longest: smoothness times the longest step for which the bound holds.
      reference: the same where nothing is lost.
    """
    room = reference * target - bias
    noisy = divergence * target * (reference / room) ** 2
    by_longest = reference**2 * target / (4.0 * longest * (room - longest * divergence))
    rounds = jnp.where(room > 2.0 * longest * divergence, by_longest, noisy)
    return jnp.where(room > 0, rounds, jnp.inf)
