"""Partitions of every cluster worth a closer look, the other clusters as they are.

Candidates are every active set x number of micro-batches x ceiling on the bottleneck. With
shares and powers given, all but the longest stages is linear in the blocks of each device,
so a set is filled with the cheapest blocks first. Shares follow the set by a rule. All
arrays have the batch last.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.core.batch_axis import fusion_barrier, sum_nodes
from collapipe_jax.edge.cost.chain import at_next
from collapipe_jax.edge.cost.computing import set_capacity
from collapipe_jax.edge.cost.decision import Allocation, Routes
from collapipe_jax.edge.cost.evaluate import round_terms
from collapipe_jax.edge.cost.feasibility import can_run
from collapipe_jax.edge.cost.fixed_partition import fix_partition
from collapipe_jax.edge.cost.link_quality import link_sinrs, links_at
from collapipe_jax.edge.cost.objective import unit_costs
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.network.channel import bit_time_s, narrowed_bit_time_s, sinr_at_hazard
from collapipe_jax.edge.solver.active_sets import (
    LinearCosts,
    RankedSets,
    StepCosts,
    active_sets,
    candidate_sets,
    cost_at,
    cost_per_bit_s,
    cost_per_hazard,
    fill_sets,
    linear_costs,
    node_costs,
    rank_sets,
    step_costs,
)
from collapipe_jax.edge.solver.candidates import repeat, with_candidate_axis
from collapipe_jax.edge.solver.gateways import Uplinks, likely_gateways, uplinks_at
from collapipe_jax.edge.solver.smooth_objective import Coupling, coupled_latency_cost

_FILLED_SETS = 8
"""Sets that get shares and blocks, for each number of micro-batches: the first by rank."""
_LIKELY_GATEWAYS = 3
"""Gateways beside the own one whose sets a cluster looks at."""
_OF_A_SET = 3
"""Candidates of an active set that rank with those of others; its further ones come last. Chosen on
random networks."""
_EXPECTED_ELASTICITY = 0.6
"""Of the spectral efficiency by the SINR, where losses begin to matter."""
_TARGET_HAZARD = (1e-4, 10.0)
_LEAST_COST, _LARGEST_COST = 1e-30, 1e37


class ClusterCandidates(NamedTuple):
    """Candidates of every cluster."""

    segments: Array  # ``[K, N, C, R]``
    micro_batches: Array  # ``[N, C, R]``
    log_share: Array  # an estimate to start from, ``[J, N, C, R]``
    log_power: Array  # over its maximum, likewise
    cost: Array  # estimated, infinite where there is no candidate, ``[N, C, R]``
    gateway: Array | None = None  # where gateways are decided, ``[N, C, R]``
    uplinks: Uplinks | None = None  # likewise, to start from


def search_clusters(
    problem: RoundProblem, allocation: Allocation, coupling: Coupling
) -> ClusterCandidates:
    """Promising partitions of every cluster.

    Args:
      problem: with batch axis ``[R]``.
      allocation: tentative D2E shares and powers, ``[N, R]``.
      coupling: to the other clusters.

    Returns:
      At most one candidate for an active set and a number of micro-batches.
    """
    runs = jax.vmap(can_run, in_axes=-1, out_axes=-1)(problem)
    choices, blocks = problem.workload.micro_batch_choices, problem.workload.cluster_blocks

    wide, tentative, others = with_candidate_axis((problem, allocation, coupling))
    nodes = node_costs(wide, others)
    speed = problem.by_node.flops_per_s
    members = candidate_sets(jnp.stack([1.0 / speed[1:], nodes.collect_s[0, 1:, :, 0]]))
    sets = active_sets(wide, others, nodes, members)

    def of_choice(micro_batches):
        step = step_costs(wide, others, tentative, runs[:, None], micro_batches[None])
        ranked = rank_sets(wide, nodes, sets, step)
        ranked = _select(ranked, _capacity(wide, ranked, step), blocks)
        linear, share = _linear_costs(wide, tentative, others, ranked, step)
        return _fill(wide, others, ranked, linear, share, step, _capacity(wide, ranked, step))

    return jax.tree.map(_side_by_side, jax.lax.map(of_choice, choices))


def _side_by_side(leaf: Array) -> Array:
    """Candidates of several searches, ``[S, ..., C, R]``, as ``[..., S C, R]``."""
    by_search = jnp.moveaxis(leaf, 0, -3)
    return by_search.reshape(*by_search.shape[:-3], -1, by_search.shape[-1])


def search_gateways(
    problem: RoundProblem,
    routes: Routes,
    allocation: Allocation,
    coupling: Coupling,
    others_too: Array | bool = True,
) -> ClusterCandidates:
    """:func:`search_clusters` with the gateways of the routes and the likeliest others.

    Args:
      problem: with batch axis ``[R]``.
      routes: of the incumbent, ``[N, R]`` and ``[R]``.
      allocation: as in :func:`search_clusters`.
      coupling: likewise.
      others_too: whether there are these others; else their candidates have infinite cost.
    """
    others = likely_gateways(problem, _LIKELY_GATEWAYS, left_out=routes.gateway)
    gateways = jnp.concatenate([routes.gateway[None].astype(others.dtype), others])

    limit_w = problem.radio.d2e_power_max_w
    own = Uplinks(jnp.log(allocation.d2e_share), jnp.log(allocation.d2e_power / limit_w))

    @jax.jit  # traced once, for its shapes and for the loop
    def search(gateway):
        through = problem.replace(routes=routes.replace(gateway=gateway))
        uplinks = uplinks_at(problem, own, routes.gateway, gateway)
        share, power = jax.tree.map(jnp.exp, uplinks)
        tentative = allocation._replace(d2e_share=share, d2e_power=power * limit_w)
        found = search_clusters(through, tentative, coupling)
        gateway, uplinks = repeat((gateway, uplinks), found.cost.shape[1])
        return found._replace(gateway=gateway, uplinks=uplinks)

    def search_one(place, found):
        one = search(gateways[place])
        return jax.tree.map(lambda all_of_them, own: all_of_them.at[place].set(own), found, one)

    count = len(gateways)
    shapes = jax.eval_shape(search, gateways[0])
    none = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), shapes)
    none = none._replace(cost=jnp.full_like(none.cost, jnp.inf))
    found = jax.lax.fori_loop(0, jnp.where(others_too, count, 1), search_one, none)
    return jax.tree.map(_side_by_side, found)


def diverse(found: ClusterCandidates, count: int) -> ClusterCandidates:
    """The cheapest candidates, a few of each active set and gateway before any others.

    There are ``3 count`` at most.

    Sets differ more than numbers of micro-batches: against a coupling that is not final, a list
    of one set with all its numbers would miss the best set.
    """
    found = cheapest(found, 3 * count)
    bits = 2.0 ** jnp.arange(found.segments.shape[0])[:, None, None, None]
    active_set = jnp.sum(jnp.where(found.segments > 0, bits, 0.0), axis=0)
    if found.gateway is not None:
        active_set = active_set + 2.0 ** len(bits) * found.gateway
    place = jnp.arange(active_set.shape[1])
    is_cheaper = (place[:, None] > place)[..., None]
    cheaper = jnp.sum(is_cheaper & (active_set[:, :, None] == active_set[:, None]), axis=2)
    behind = jnp.maximum(found.cost, _LARGEST_COST)  # infinite where there is no candidate
    return found._replace(cost=jnp.where(cheaper < _OF_A_SET, found.cost, behind))


def cheapest(found: ClusterCandidates, count: int) -> ClusterCandidates:
    """Candidates of least cost, best first; as many as there are if those are fewer."""
    return _least(found, found.cost, count)


def _least(tree, cost: Array, count: int):
    """What every cluster has ``[..., N, C, R]`` at its least costs ``[N, C, R]``, least first."""
    ranked = jax.lax.top_k(-jnp.swapaxes(cost, 1, 2), min(count, cost.shape[1]))[1]
    index = jnp.swapaxes(ranked, 1, 2)

    def take(leaf):
        wide = index.reshape(*[1] * (leaf.ndim - index.ndim), *index.shape)
        return jnp.take_along_axis(leaf, wide, axis=-2)

    return jax.tree.map(take, tree)


def _capacity(problem: RoundProblem, sets: RankedSets, step: StepCosts) -> Array:
    """Most blocks of every device in every set, ``[K, N, A, R]``; of GPipe 1 in place of ``A``."""
    active, count = sets.chain.members[1:], step.micro_batches
    memory_bytes = problem.by_node.memory_bytes
    capacity = set_capacity(problem.workload, memory_bytes, count, active, axis=0)
    return capacity.astype(step.block_s.dtype)


def _select(sets: RankedSets, capacity: Array, blocks: Array | int) -> RankedSets:
    """The first sets by rank that can hold the blocks."""
    member = sets.chain.members[1:].astype(capacity.dtype)
    fits = (sum_nodes(member * capacity) >= blocks) & (sum_nodes(member) <= blocks)
    cost = jnp.where(fits, jnp.nan_to_num(sets.cost, nan=jnp.inf), jnp.inf)
    return _least(sets, cost, _FILLED_SETS)


def _linear_costs(
    problem: RoundProblem,
    tentative: Allocation,
    coupling: Coupling,
    sets: RankedSets,
    step: StepCosts,
) -> tuple[LinearCosts, Array]:
    """Cost of sets at their powers, and shares ``[J, N, A, R]`` of the D2D band."""
    radio, chain, hops = problem.radio, sets.chain, sets.chain.hops
    full_sinr = jnp.stack([sets.power, at_next(sets.power, chain)]) * sets.full_sinr
    share = _shares(problem, hops, full_sinr, step, sets.balanced_s)
    share = _narrowed_shares(problem, hops, full_sinr, step, share)
    power_w = jnp.where(chain.active, sets.power * problem.by_node.d2d_power_max_w, 0.0)
    segments = chain.members[1:].astype(step.block_s.dtype)
    micro_batches = jnp.broadcast_to(step.micro_batches, segments.shape[1:])
    fixed = fix_partition(problem, segments, micro_batches, terms=())
    allocation = tentative._replace(d2d_share=share, d2d_power=power_w)
    sinr = link_sinrs(fixed, allocation, coupling.interference_w)
    hop_sinr = full_sinr / share  # as known already
    if radio.retransmissions == "reliable":  # attempts of idle nodes could overflow
        hop_sinr = jnp.where(hops, hop_sinr, 1.0)
    links = links_at(fixed, sinr._replace(hop=hop_sinr))
    terms = round_terms(fixed, allocation, links=links)

    interference = sum_nodes(power_w * coupling.interference_cost_per_w)
    linear = linear_costs(problem, fixed, terms, step.block_s, step.waits)
    return linear._replace(rest_cost=linear.rest_cost + interference), share


def _shares(problem, has_hop, full_sinr, step: StepCosts, balanced_s) -> Array:
    """Shares of the hops by their times at equal ones.

    In proportion to the times, which makes them equal, where hops are the bottleneck; to
    their roots, which makes the sum least, where devices are.

    Returns:
      ``[J, N, A, R]``; 1 where no hop starts.
    """
    band_hz = problem.radio.d2d_bandwidth_hz
    hops = sum_nodes(has_hop.astype(full_sinr.dtype))
    equal_s = narrowed_bit_time_s(problem.radio, band_hz / hops, full_sinr * hops)
    equal_s = equal_s[0] + equal_s[1]
    stage_bits = 0.5 * problem.radio.hops_per_stage * step.bits
    stage_s = stage_bits * sum_nodes(jnp.where(has_hop, equal_s, 0.0)) / hops
    hops_wait = (stage_s > balanced_s) & (step.micro_batches > 1.0)
    wanted = jnp.where(has_hop, jnp.where(hops_wait, equal_s, jnp.sqrt(equal_s)), 0.0)
    return jnp.where(has_hop, wanted / sum_nodes(wanted), 1.0)


def _narrowed_shares(problem, has_hop, full_sinr, step: StepCosts, share) -> Array:
    """Shares narrowed where losses cost more than time.

    docs/dssra.md, partitions of a cluster, derives the hazard to aim at.
    """
    radio = problem.radio
    bit_s = bit_time_s(radio, share * radio.d2d_bandwidth_hz, full_sinr / share)
    time_cost = (bit_s[0] + bit_s[1]) * cost_per_bit_s(problem, step, has_hop)
    hazard_cost = jnp.maximum(cost_per_hazard(problem, step), _LEAST_COST)
    hazard = (1.0 - _EXPECTED_ELASTICITY) * time_cost / (radio.harq_attempts * hazard_cost)
    wanted = sinr_at_hazard(radio, jnp.clip(hazard, *_TARGET_HAZARD))
    return jnp.where(has_hop, jnp.minimum(share, jnp.min(full_sinr, axis=0) / wanted), 1.0)


def _fill(
    problem,
    coupling,
    sets: RankedSets,
    linear: LinearCosts,
    share: Array,
    step: StepCosts,
    capacity: Array,
) -> ClusterCandidates:
    """Cheapest segments of sets, at the cost of latency of their clusters."""

    def cost_of(segments):
        latency_s, cost = cost_at(problem, linear, segments)
        cost = coupled_latency_cost(coupling, unit_costs(problem), latency_s) + cost
        return fusion_barrier(within_range(cost))

    blocks, active = problem.workload.cluster_blocks, sets.chain.members[1:]
    segments, cost = fill_sets(linear, active, capacity, blocks, step.latency_per_s, cost_of)
    return ClusterCandidates(
        segments=segments,
        micro_batches=jnp.broadcast_to(step.micro_batches, cost.shape),
        log_share=jnp.log(share),
        log_power=jnp.log(sets.power),
        cost=cost,
    )


def within_range(cost: Array) -> Array:
    """Finite costs, so that a link on which nearly all is lost wins against not fitting at all."""
    return jnp.minimum(jnp.nan_to_num(cost, nan=jnp.inf), _LARGEST_COST)
