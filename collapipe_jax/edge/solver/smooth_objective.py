"""The objective of a fixed partition, exact and smooth, with slope and curvature.

The objective has maxima: of the clusters' latencies, of the stages of either flow, and of a
message's two possible times. Made smooth by :mod:`smooth_maximum`, it is convex in the
logarithms of shares and powers and nowhere above the exact one. So it certifies an allocation: its
tangent is a lower bound, and its slope says what violates KKT.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from collapipe_jax.core.batch_axis import max_nodes, sum_nodes
from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.chain import at_senders
from collapipe_jax.edge.cost.decision import Allocation, PerCluster, PerNode, PerRound
from collapipe_jax.edge.cost.evaluate import RoundTerms, round_terms
from collapipe_jax.edge.cost.fixed_partition import FixedPartition
from collapipe_jax.edge.cost.link_quality import (
    active_power_w,
    received_interference_w,
    round_links,
)
from collapipe_jax.edge.cost.maximum import Maximum
from collapipe_jax.edge.cost.objective import UnitCosts, drift_plus_penalty
from collapipe_jax.edge.solver.derivative import (
    Marginals,
    curvature,
    interference_cost_per_w,
    sinr_slopes,
    slope,
    time_slopes,
)
from collapipe_jax.edge.solver.energy_caps import cap_curvature, cap_penalties
from collapipe_jax.edge.solver.limits import LEAST_LOG_POWER, LEAST_LOG_SHARE, to_allocation
from collapipe_jax.edge.solver.smooth_maximum import (
    TEMPERATURE,
    PowerMean,
    Weights,
    floored,
    mean_slope,
    power_mean,
)


class Coupling(NamedTuple):
    """What a cluster sees of the others while these stay as they are."""

    interference_w: PerNode  # at its nodes
    interference_cost_per_w: PerNode  # of a watt of its nodes on the others
    latency_cost_per_s: Array  # of latency below the round's, ``[N, ...]``; above, in full
    round_s: PerRound  # latency of the round
    bandwidth_cost: PerRound  # of the D2E band


def coupled_latency_cost(
    coupling: Coupling, costs: UnitCosts, latency_s: PerCluster, longer_s: PerCluster | None = None
) -> PerCluster:
    """Cost of a cluster's latency, and the longer of it and the round's, the others fixed."""
    if longer_s is None:
        longer_s = jnp.maximum(latency_s, coupling.round_s)
    own = coupling.latency_cost_per_s
    return own * latency_s + (costs.latency_per_s - own) * longer_s


def coupled_objective(
    fixed: FixedPartition,
    allocation: Allocation,
    terms: RoundTerms,
    coupling: Coupling,
    longer_s: PerCluster | None = None,
) -> PerCluster:
    """Cost of every cluster by itself, others fixed; ``longer_s`` as in the cost of latency."""
    power_w = active_power_w(fixed, allocation)
    others = sum_nodes(power_w * coupling.interference_cost_per_w)
    others = others + _band_cost(fixed, allocation, coupling)
    latency_s = terms.cluster_latency_s
    latency_cost = coupled_latency_cost(coupling, fixed.costs, latency_s, longer_s)
    return latency_cost + (terms.cluster_cost + others)


def _band_cost(fixed: FixedPartition, allocation: Allocation, coupling: Coupling) -> PerCluster:
    return jnp.where(fixed.chain.members[0], allocation.d2e_share * coupling.bandwidth_cost, 0.0)


class Evaluation(NamedTuple):
    """The objective at a point, and how it changes there."""

    smooth: Array  # smooth objective, ``[...]``, or ``[N, ...]`` with a coupling
    objective: Array  # the exact one
    cluster_latency_s: PerCluster
    slope: Allocation  # of the smooth objective by the logarithms of shares and powers
    curvature: Allocation  # about as much as the slope changes where a logarithm grows by 1
    interference_cost_per_w: PerNode  # of a watt of a node on other clusters
    weights: Weights  # better ones


def evaluate_allocation(
    fixed: FixedPartition,
    logs: Allocation,
    weights: Weights,
    coupling: Coupling | None = None,
    temperature: float = TEMPERATURE,
) -> Evaluation:
    """Evaluate shares and powers of a fixed partition.

    Args:
      fixed: with batch axes.
      logs: logarithms of shares, and of powers over their maxima.
      weights: of the maxima.
      coupling: if given, every cluster is evaluated by itself, and the cluster weights are
        those of its own latency and the round's, ``[2, N, ...]``.
      temperature: of the means.

    Raises:
      InputError: if attempts are counted, with which the problem is not convex.
    """
    if fixed.radio.retransmissions == "counted":
        remedy = "Decide for `problem.as_policies_see`"
        raise InputError("radio.retransmissions", "counted", "not convex", remedy)
    allocation = to_allocation(fixed, logs)
    if coupling is None:
        received_w = received_interference_w(fixed, allocation)
    else:
        received_w = coupling.interference_w
    links = round_links(fixed, allocation, received_w)
    exact = round_terms(fixed, allocation, links=links)
    smooth = round_terms(fixed, allocation, PowerMean(weights, temperature), links)
    cost_per_j, caps = fixed.sender_cost_per_j, None
    if fixed.caps is not None:
        caps = cap_penalties(fixed, smooth, weights.caps, temperature)
        exact = exact._replace(cluster_cost=exact.cluster_cost + caps.exact)
        smooth = smooth._replace(cluster_cost=smooth.cluster_cost + caps.smooth)
        of_caps = at_senders(caps.cost_per_j, fixed.chain)
        cost_per_j = jax.tree.map(jnp.add, cost_per_j, of_caps)
    if coupling is None:
        total = _joint(fixed, exact, smooth, weights, temperature)
    else:
        total = _coupled(fixed, allocation, exact, smooth, weights, coupling, temperature)

    marginals = Marginals(total.cost_per_s, total.latency_part, cost_per_j, total.smooth)
    times = time_slopes(fixed, smooth, marginals)
    sinrs = sinr_slopes(fixed, smooth, times)
    if coupling is None:  # not charged: the slopes of the other clusters contain it
        cost_per_w = interference_cost_per_w(fixed, sinrs, received_w)
    else:
        cost_per_w = coupling.interference_cost_per_w
    interference_cost = active_power_w(fixed, allocation) * cost_per_w
    curved = curvature(fixed, smooth, marginals, times, sinrs, interference_cost, temperature)
    if caps is not None:
        capped = cap_curvature(fixed, smooth, sinrs, caps.stiffness)
        curved = jax.tree.map(jnp.add, curved, capped)
    return Evaluation(
        smooth=total.smooth,
        objective=total.objective,
        cluster_latency_s=exact.cluster_latency_s,
        slope=slope(fixed, times, sinrs, interference_cost, total.bandwidth_cost),
        curvature=curved,
        interference_cost_per_w=cost_per_w,
        weights=_better_weights(smooth, total.cluster_weights, caps),
    )


class _Total(NamedTuple):
    """Objective, exact and smooth, and what follows from the maximum of the latencies."""

    objective: Array
    smooth: Array
    cost_per_s: Array
    latency_part: Array
    cluster_weights: Array
    bandwidth_cost: PerCluster  # of a share of the D2E band; 0 for all clusters together


def _joint(fixed, exact, smooth, weights, temperature) -> _Total:
    """All clusters together: the round lasts as long as the slowest."""
    costs, latency_s = fixed.costs, smooth.cluster_latency_s
    mean = power_mean(latency_s, weights.cluster, temperature)
    exact_s = max_nodes(exact.cluster_latency_s)
    return _Total(
        objective=drift_plus_penalty(costs, exact_s, exact.cluster_cost),
        smooth=drift_plus_penalty(costs, mean.value, smooth.cluster_cost),
        cost_per_s=costs.latency_per_s * mean_slope(mean.value, mean.part, latency_s),
        latency_part=mean.part,
        cluster_weights=_next_weights(mean),
        bandwidth_cost=jnp.zeros_like(smooth.cluster_cost),
    )


def _coupled(fixed, allocation, exact, smooth, weights, coupling, temperature) -> _Total:
    """Every cluster by itself: part of the cost of latency, all of it beyond the round's."""
    costs, own = fixed.costs, coupling.latency_cost_per_s
    smooth_s = smooth.cluster_latency_s
    both = jnp.stack([smooth_s, jnp.broadcast_to(coupling.round_s, smooth_s.shape)])
    mean = power_mean(both, weights.cluster, temperature)
    own_slope = mean_slope(mean.value, mean.part[0], smooth_s)
    return _Total(
        objective=coupled_objective(fixed, allocation, exact, coupling),
        smooth=coupled_objective(fixed, allocation, smooth, coupling, mean.value),
        cost_per_s=own + (costs.latency_per_s - own) * own_slope,
        latency_part=mean.part[0],
        cluster_weights=_next_weights(mean),
        bandwidth_cost=_band_cost(fixed, allocation, coupling),
    )


def _better_weights(smooth, cluster_weights, caps) -> Weights:
    """Weights of all maxima by the parts of their entries, and multipliers of caps."""
    return Weights(
        forward=_next_weights(smooth.flows.forward),
        backward=_next_weights(smooth.flows.backward),
        cluster=cluster_weights,
        hop=floored(smooth.bit_time.hop.part, 2),
        move=floored(smooth.bit_time.move.part, 2),
        uplink=floored(smooth.bit_time.uplink.part, 2),
        caps=None if caps is None else caps.multiplier,
    )


def _next_weights(mean: Maximum) -> Array:
    return floored(mean.part, mean.part.shape[0])


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
