"""Limits of an allocation, in its variables: logarithms of shares, and of powers over their maxima.

They have limits: shares sum to 1 at most, and powers stay between a least one and
``d2d_power_max_w`` or ``d2e_power_max_w`` of :class:`.Radio`.
"""

import jax.numpy as jnp

from collapipe_jax.core.batch_axis import sum_nodes
from collapipe_jax.edge.cost.decision import Allocation, Decision, decision_allocation
from collapipe_jax.edge.cost.fixed_partition import FixedPartition

LEAST_LOG_POWER = -14.0
"""Least power, 61 dB under its maximum."""
LEAST_LOG_SHARE = -30.0
"""Least share, 130 dB under the band. Where only a feeble link is left, little else arrives."""


def to_allocation(fixed: FixedPartition, logs: Allocation) -> Allocation:
    """Shares, and powers in watts, of their logarithms; with batch axes."""
    return Allocation(
        d2d_share=jnp.exp(logs.d2d_share),
        d2d_power=fixed.d2d_power_max_w * jnp.exp(logs.d2d_power),
        d2e_share=jnp.exp(logs.d2e_share),
        d2e_power=fixed.radio.d2e_power_max_w * jnp.exp(logs.d2e_power),
    )


def to_logs(fixed: FixedPartition, decision: Decision) -> Allocation:
    """Logarithms of a decision's shares, and of its powers over their maxima.

    Args:
      fixed: the decision's partition, with batch axes.
      decision: what is 0 though used starts at a tiny number.

    Returns:
      Logarithms, 0 where idle.
    """
    radio, used = fixed.radio, fixed.chain.used

    def log(value, counts):
        return jnp.where(counts, jnp.log(jnp.maximum(value, 1e-30)), 0.0)

    def over(power_w, limit_w):
        return power_w / jnp.where(limit_w > 0, limit_w, 1.0)

    allocation = decision_allocation(decision)
    return Allocation(
        d2d_share=log(allocation.d2d_share, used.d2d_share),
        d2d_power=log(over(allocation.d2d_power, fixed.d2d_power_max_w), used.d2d_power),
        d2e_share=log(allocation.d2e_share, used.d2e_share),
        d2e_power=log(over(allocation.d2e_power, radio.d2e_power_max_w), used.d2e_power),
    )


def to_limits(logs: Allocation, used: Allocation, joint: bool = True) -> Allocation:
    """Logarithms moved into their limits, all shares of a band by one factor; 0 where unused.

    Unless ``joint``, the clusters' D2E shares make up no band, and each is at most 1.
    """

    def fit(log, counts):
        log = jnp.maximum(log, LEAST_LOG_SHARE)
        total = sum_nodes(jnp.where(counts, jnp.exp(log), 0.0))
        return jnp.where(counts, log - jnp.log(jnp.maximum(total, 1.0)), 0.0)

    def clip(log, counts, least):
        return jnp.where(counts, jnp.clip(log, least, 0.0), 0.0)

    if joint:
        d2e_share = fit(logs.d2e_share, used.d2e_share)
    else:
        d2e_share = clip(logs.d2e_share, used.d2e_share, LEAST_LOG_SHARE)
    return Allocation(
        d2d_share=fit(logs.d2d_share, used.d2d_share),
        d2d_power=clip(logs.d2d_power, used.d2d_power, LEAST_LOG_POWER),
        d2e_share=d2e_share,
        d2e_power=clip(logs.d2e_power, used.d2e_power, LEAST_LOG_POWER),
    )
