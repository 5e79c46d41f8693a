"""The objective of a fixed partition, exact and smooth, with slope and curvature.

The objective has maxima: of the clusters' latencies, of the stages of either flow, and of a
message's two possible times. Made smooth by :mod:`smooth_maximum`, it is convex in the
logarithms of shares and powers and nowhere above the exact one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.core.batch_axis import max_nodes, sum_nodes
from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.chain import at_senders
from collapipe_jax.edge.cost.decision import Allocation, PerCluster, PerNode, PerRound
from collapipe_jax.edge.cost.fixed_partition import FixedPartition
from collapipe_jax.edge.cost.link_quality import (
    active_power_w,
    received_interference_w,
    round_links,
)
from collapipe_jax.edge.cost.maximum import Maximum
from collapipe_jax.edge.cost.objective import UnitCosts, drift_plus_penalty
from collapipe_jax.edge.cost.round_terms import RoundTerms, round_terms
from collapipe_jax.edge.solver.derivative import (
    Marginals,
    curvature,
    interference_cost_per_w,
    sinr_slopes,
    slope,
    time_slopes,
)
from collapipe_jax.edge.solver.energy_caps import cap_curvature, cap_penalties
from collapipe_jax.edge.solver.limits import to_allocation
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
