"""Certificate of an allocation: a lower bound for its partition, and what violates KKT."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from collapipe_jax.core.batch_axis import sum_nodes
from collapipe_jax.edge.cost.decision import Allocation
from collapipe_jax.edge.solver.limits import LEAST_LOG_POWER, LEAST_LOG_SHARE
from collapipe_jax.edge.solver.smooth_objective import Evaluation

_AT_LIMIT = 1e-4


class Certificate(NamedTuple):
    """How far a point can be from the optimum of its partition.

    Attributes:
      lower_bound: of the objective with these segments and micro-batches, ``[...]``, over
        powers of at least e^-14 of the largest (61 dB), and shares of at least e^-30, where
        they are used. Rounding, some 1e-6 of the objective in single precision, is not included.
      residual: of the KKT conditions, ``[...]``: sizes of the slopes that no limit
        explains, over the objective.
    """

    lower_bound: Array
    residual: Array


def certify(
    evaluation: Evaluation, logs: Allocation, used: Allocation, joint: bool = True
) -> Certificate:
    """Certificate of a point from the smooth objective there.

    The smooth objective is convex and nowhere above the exact one, so the minimum of its
    tangent within the limits is a lower bound.

    Args:
      evaluation: of the point.
      logs: the point.
      used: shares and powers that count, as booleans.
      joint: whether clusters share an objective and the D2E band. If not, the numbers are
        those of every cluster by itself, ``[N, ...]``.
    """
    slope = evaluation.slope
    total = sum_nodes if joint else lambda by_cluster: by_cluster

    def over_limits(on_band, in_box):
        d2e_band = slope.d2e_share, logs.d2e_share, used.d2e_share
        if not joint:
            d2e_band = (values[None] for values in d2e_band)
        d2d = on_band(slope.d2d_share, logs.d2d_share, used.d2d_share)
        d2d = d2d + sum_nodes(in_box(slope.d2d_power, logs.d2d_power, used.d2d_power))
        d2e_power = in_box(slope.d2e_power, logs.d2e_power, used.d2e_power)
        return total(d2d + d2e_power) + on_band(*d2e_band)

    size = jnp.where(evaluation.objective > 0, evaluation.objective, 1.0)
    return Certificate(
        lower_bound=evaluation.smooth + over_limits(_least_on_band, _least_in_box),
        residual=over_limits(_residual_on_band, _residual_in_box) / size,
    )


def band_multiplier(slope: Float[Array, " shares *any"]) -> Float[Array, "*any"]:
    """Multiplier of a full band: at the optimum, a slope is minus it times the share.

    Args:
      slope: by the logarithms of all its shares, over the first axis; 0 where idle.
    """
    return jnp.maximum(-sum_nodes(slope), 0.0)


def full_band_multiplier(slope, log, used, tolerance: float):
    """:func:`band_multiplier`, 0 where more than a tolerance of the band is left empty."""
    share = sum_nodes(jnp.where(used, jnp.exp(log), 0.0))
    return jnp.where(share > 1.0 - tolerance, band_multiplier(slope), 0.0)


def _least_on_band(slope, log, used):
    """Least of ``slope (x - log)`` over shares ``e^x`` of sum at most 1."""
    down = jnp.where(used & (slope < 0), -slope, 0.0)
    total = sum_nodes(down)
    best = jnp.log(jnp.maximum(down, 1e-30) / jnp.maximum(total, 1e-30))
    gained = jnp.where(down > 0, -down * (best - log), 0.0)
    lost = jnp.where(used & (slope > 0), slope * (LEAST_LOG_SHARE - log), 0.0)
    return sum_nodes(gained + lost)


def _least_in_box(slope, log, used):
    """Least of ``slope (x - log)`` over ``x`` between the least logarithm and 0."""
    end = jnp.where(slope < 0, 0.0, LEAST_LOG_POWER)
    return jnp.where(used, slope * (end - log), 0.0)


def _residual_on_band(slope, log, used):
    """Sizes of slopes that no multiplier of the band cancels, summed over the band."""
    multiplier = full_band_multiplier(slope, log, used, _AT_LIMIT)
    return sum_nodes(jnp.where(used, jnp.abs(slope + multiplier * jnp.exp(log)), 0.0))


def _residual_in_box(slope, log, used):
    """Sizes of slopes that no end of the box explains."""
    at_top = (log >= -_AT_LIMIT) & (slope < 0)
    at_bottom = (log <= LEAST_LOG_POWER + _AT_LIMIT) & (slope > 0)
    return jnp.where(used & ~at_top & ~at_bottom, jnp.abs(slope), 0.0)
