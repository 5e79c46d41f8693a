"""The convergence bounds: how small a gradient must become on the way.

All bound the mean of ``|grad F|^2`` over the steps taken; docs/theory.md derives them. They
count losses as they are, without the tangent of docs/system-model.md (19), and bring their own
terms of drift: that of :class:`Learning` is for decisions, and not read.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array

from collapipe_jax.cost.divergence import Learning

_DRIFT_TERMS = 3.0
"""Parts of a cluster's gradient away from the mean: the mean's, heterogeneity, drift."""


@struct.dataclass(kw_only=True)
class Descent:
    """How far and over what ground clusters descend.

    Attributes:
      smoothness: ``L_s`` of every cluster's objective.
      start_gap: ``F_0 - F*``.
      step_size: ``eta`` of a local step.
      rounds: ``T``.
    """

    smoothness: Array
    start_gap: Array
    step_size: Array
    rounds: Array


def erasure_noise(loss_probability: Array, micro_batches: Array) -> Array:
    """``a_n = P_n / (M_n (1 - P_n))``, what erasures add to a squared gradient. ``[N]``."""
    return loss_probability / (micro_batches * (1.0 - loss_probability))


def gradient_noise(
    learning: Learning, loss_probability: Array, micro_batches: Array, batch: Array, terms: float
) -> Array:
    """Part of a cluster's gradient variance that no small gradient takes away, ``[N]``.

    ``sigma^2 / (B (1 - P_n)) + terms zeta^2 a_n``, docs/theory.md (T3). Source:
    docs/system-model.md (17), whose squared gradient is bounded by parts.

    Args:
      learning: constants.
      loss_probability: ``P_n [N]``.
      micro_batches: ``M_n [N]``.
      batch: ``B``.
      terms: parts that the cluster's gradient was split into.
    """
    sampling = learning.gradient_variance / (batch * (1.0 - loss_probability))
    erasure = erasure_noise(loss_probability, micro_batches)
    return sampling + terms * learning.gradient_heterogeneity * erasure


def longest_step(
    learning: Learning, loss_probability: Array, micro_batches: Array, smoothness: Array
) -> Array:
    """``1 / (L_s (1 + r))``, up to where :func:`one_step_bound` holds."""
    return 1.0 / (smoothness * (1.0 + _amplified(learning, loss_probability, micro_batches)))


def _amplified(learning: Learning, loss_probability: Array, micro_batches: Array) -> Array:
    """``r = 2 sum_n w_n^2 a_n``, by which losses amplify the mean's own squared gradient."""
    noise = erasure_noise(loss_probability, micro_batches)
    return 2.0 * jnp.sum(learning.cluster_weight**2 * noise)


def one_step_bound(
    learning: Learning,
    loss_probability: Array,
    micro_batches: Array,
    batch: Array,
    descent: Descent,
) -> Array:
    """Bound at one local step a round. Source: docs/system-model.md (18).

    Args:
      learning: weights and constants.
      loss_probability: ``P_n [N]``, below 1, the same in all rounds.
      micro_batches: ``M_n [N]``.
      batch: ``B``.
      descent: ground and steps.

    Returns:
      Scalar; infinite for steps longer than :func:`longest_step`.
    """
    noise = gradient_noise(learning, loss_probability, micro_batches, batch, 2.0)
    divergence = jnp.sum(learning.cluster_weight**2 * noise)
    floor = descent.smoothness * descent.step_size * divergence
    start = 2.0 * descent.start_gap / (descent.step_size * descent.rounds)
    longest = longest_step(learning, loss_probability, micro_batches, descent.smoothness)
    return jnp.where(descent.step_size <= longest * (1.0 + 1e-6), start + floor, jnp.inf)


def local_steps_bound(
    learning: Learning,
    loss_probability: Array,
    micro_batches: Array,
    batch: Array,
    descent: Descent,
    local_steps: Array,
) -> Array:
    """Bound with clusters that drift apart over ``H`` local steps, docs/theory.md (T12).

    What is bounded is the gradient at the clusters' weighted mean, over all local steps.

    Args:
      learning, loss_probability, micro_batches, batch, descent: as in :func:`one_step_bound`.
      local_steps: ``H``.

    Returns:
      Scalar; infinite for steps so long that the proof does not close.
    """
    weight = learning.cluster_weight
    spread = weight * (1.0 - weight)
    relative = descent.step_size * descent.smoothness  # eta L_s
    extra = local_steps - 1.0
    erasure = erasure_noise(loss_probability, micro_batches)
    noise = gradient_noise(learning, loss_probability, micro_batches, batch, _DRIFT_TERMS)

    growth = 2.0 * relative**2 * extra * (local_steps + _DRIFT_TERMS * jnp.max(erasure))
    share = 1.0 + _DRIFT_TERMS * relative * jnp.max(weight * erasure)
    drift = share * relative**2 * extra / (1.0 - growth)
    absorbed = _DRIFT_TERMS * (
        relative * jnp.sum(weight**2 * erasure) + 2.0 * drift * jnp.sum(spread * erasure)
    )
    heterogeneity = 2.0 / 3.0 * (2.0 * local_steps - 1.0) * learning.gradient_heterogeneity
    total = (
        2.0 * descent.start_gap / (descent.step_size * local_steps * descent.rounds)
        + relative * jnp.sum(weight**2 * noise)
        + drift * (jnp.sum(spread * noise) + heterogeneity)
    )
    closes = (relative <= 1.0) & (growth < 1.0) & (absorbed < 1.0)
    return jnp.where(closes, total / jnp.where(closes, 1.0 - absorbed, 1.0), jnp.inf)


def momentum_bound(
    learning: Learning,
    loss_probability: Array,
    micro_batches: Array,
    batch: Array,
    descent: Descent,
    momentum: Array,
) -> Array:
    """Bound at one local step and a server with momentum, docs/theory.md (T17).

    Args:
      learning, loss_probability, micro_batches, batch, descent: as in :func:`one_step_bound`.
      momentum: ``beta`` of the server's heavy ball, in ``[0, 1)``.

    Returns:
      Scalar; infinite for steps so long that the proof does not close.
    """
    step = descent.step_size / (1.0 - momentum)  # what a gradient moves in the end
    relative = step * descent.smoothness
    noise = gradient_noise(learning, loss_probability, micro_batches, batch, 2.0)
    divergence = jnp.sum(learning.cluster_weight**2 * noise)
    amplified = _amplified(learning, loss_probability, micro_batches)
    lag = 2.0 * (relative * momentum) ** 2
    absorbed = relative * (1.0 + amplified) + lag * (
        1.0 / (1.0 - momentum) ** 2 + amplified / (1.0 - momentum**2)
    )
    start = 2.0 * descent.start_gap / (step * descent.rounds)
    total = start + divergence * (relative + lag / (1.0 - momentum**2))
    closes = absorbed < 1.0
    return jnp.where(closes, total / jnp.where(closes, 1.0 - absorbed, 1.0), jnp.inf)


def absence_bias(learning: Learning, present: Array) -> Array:
    """What clusters that sit out add to :func:`one_step_bound`, docs/theory.md (T15).

    ``rho^2 zeta^2`` with ``rho = min(1, W_absent / W_present)``: the mean over a round of
    this is the squared bias of the direction in which the server goes.

    Args:
      learning: weights of all clusters.
      present: those that take part, ``[N]``.

    Returns:
      Scalar; ``zeta^2`` if nobody is present, though no step is taken then.
    """
    absent = jnp.sum(jnp.where(present, 0.0, learning.cluster_weight))
    there = jnp.sum(jnp.where(present, learning.cluster_weight, 0.0))
    ratio = jnp.where(there > 0, absent / jnp.where(there > 0, there, 1.0), 1.0)
    return jnp.minimum(1.0, ratio) ** 2 * learning.gradient_heterogeneity
