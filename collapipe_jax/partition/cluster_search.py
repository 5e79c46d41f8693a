"""Partitions of every cluster worth a closer look, the other clusters as they are.

Candidates are every active set x number of micro-batches x ceiling on the bottleneck. With
shares and powers given, all but the longest stages is linear in the blocks of each device,
so a set is filled with the cheapest blocks first. Shares follow the set by a rule. All
arrays have the batch last.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.allocation.smooth_objective import Coupling, coupled_latency_cost
from collapipe_jax.batch_axis import fusion_barrier, max_nodes, sum_nodes
from collapipe_jax.cost.chain import at_next_active
from collapipe_jax.cost.decision import Allocation
from collapipe_jax.cost.feasibility import can_run
from collapipe_jax.cost.fixed_partition import fix_partition
from collapipe_jax.cost.link_quality import link_sinrs, links_at
from collapipe_jax.cost.memory import block_capacity
from collapipe_jax.cost.objective import unit_costs
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round_terms import round_terms
from collapipe_jax.cost.switching import switching_cost
from collapipe_jax.network.channel import bit_time_s, sinr_at_hazard
from collapipe_jax.partition.active_sets import (
    RankedSets,
    StepCosts,
    active_sets,
    candidate_sets,
    cost_per_bit_s,
    cost_per_hazard,
    node_costs,
    rank_sets,
    step_costs,
)
from collapipe_jax.partition.candidates import with_candidate_axis

_FILLED_SETS = 12
"""Sets that get shares and blocks, for each number of micro-batches: the first by rank."""
_CEILINGS = (1.0, 1.2, 1.6, 2.5, np.inf)
"""Ceilings on a device's time, over the time of all if blocks could be split at will."""
_EXPECTED_ELASTICITY = 0.6
"""Of the spectral efficiency by the SINR, where losses begin to matter."""
_TARGET_HAZARD = (1e-4, 10.0)
_LEAST_COST, _LARGEST_COST = 1e-30, 1e37


class ClusterCandidates(NamedTuple):
    """Candidates of every cluster, best first."""

    segments: Array  # ``[C, K, N, R]``
    micro_batches: Array  # ``[C, N, R]``
    log_share: Array  # an estimate to start from, ``[C, J, N, R]``
    log_power: Array  # over its maximum, likewise
    cost: Array  # estimated, infinite where there is no candidate, ``[C, N, R]``


class _LinearCosts(NamedTuple):
    """Cost of sets, linear in the blocks but for the longest stages, ``[N, A, R]`` each."""

    share: Array  # of the D2D band, ``[J, N, A, R]``
    power: Array  # over its maximum, likewise
    forward_s: Array  # longest stage with one block on every device
    backward_s: Array  # likewise
    rest_s: Array  # latency that blocks do not change
    rest_cost: Array  # likewise of the other costs
    block_s: Array  # latency of a block on a device, ``[K, N, A, R]``
    block_cost: Array  # its other costs, likewise


def search_clusters(
    problem: RoundProblem, allocation: Allocation, coupling: Coupling, count: int
) -> ClusterCandidates:
    """The most promising partitions of every cluster.

    Args:
      problem: with batch axis ``[R]``.
      allocation: tentative D2E shares and powers, ``[N, R]``.
      coupling: to the other clusters.
      count: ``C``, or as many as there are.

    Returns:
      At most one candidate for an active set and a number of micro-batches.
    """
    runs = jax.vmap(can_run, in_axes=-1, out_axes=-1)(problem)
    choices, blocks = problem.workload.micro_batch_choices, problem.workload.blocks
    memory_bytes = jnp.swapaxes(problem.compute.memory_bytes, 0, 1)

    wide, tentative, others = with_candidate_axis((problem, allocation, coupling))
    nodes = node_costs(wide, others)
    speed = jnp.swapaxes(problem.compute.flops_per_s, 0, 1)
    members = candidate_sets(jnp.stack([1.0 / speed[1:], nodes.collect_s[0, 1:, :, 0]]))
    sets = active_sets(wide, others, nodes, members)

    def of_choice(micro_batches):
        step = step_costs(wide, others, tentative, runs[:, None], micro_batches[None])
        capacity = block_capacity(problem.workload, memory_bytes, micro_batches)
        capacity = capacity.astype(step.block_s.dtype)[:, :, None]
        ranked = _select(rank_sets(wide, nodes, sets, step), capacity, blocks)
        linear = _linear_costs(wide, tentative, others, ranked, step)
        return _fill(wide, others, ranked, linear, step, capacity)

    found = jax.lax.map(of_choice, choices)
    found = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)
    index = _first(found.cost, min(count, found.cost.shape[0]))

    def take(leaf):
        wide = index.reshape(index.shape[0], *[1] * (leaf.ndim - index.ndim), *index.shape[1:])
        return jnp.take_along_axis(leaf, wide, axis=0)

    return jax.tree.map(take, found)


def _first(cost: Array, count: int) -> Array:
    """Indices of the least costs along the first axis. ``[A, N, R] -> [count, N, R]``."""
    ranked = jax.lax.top_k(-jnp.moveaxis(cost, 0, -1), count)[1]
    return jnp.moveaxis(ranked, -1, 0)


def _select(sets: RankedSets, capacity: Array, blocks: int) -> RankedSets:
    """The first sets by rank that can hold the blocks."""
    member = sets.active[1:].astype(capacity.dtype)
    fits = (sum_nodes(member * capacity) >= blocks) & (sum_nodes(member) <= blocks)
    cost = jnp.where(fits, jnp.nan_to_num(sets.cost, nan=jnp.inf), jnp.inf)
    index = _first(jnp.moveaxis(cost, 1, 0), min(_FILLED_SETS, cost.shape[1]))
    index = jnp.moveaxis(index, 0, 1)

    def take(leaf):
        wide = jnp.broadcast_to(index, (*leaf.shape[:-3], *index.shape))
        return jnp.take_along_axis(leaf, wide, axis=-2)

    return jax.tree.map(take, sets)


def _linear_costs(
    problem: RoundProblem,
    tentative: Allocation,
    coupling: Coupling,
    sets: RankedSets,
    step: StepCosts,
) -> _LinearCosts:
    """Cost of sets at their powers: the terms of a round with one block on every device."""
    radio, active = problem.radio, sets.active
    full_sinr = jnp.stack([sets.power, at_next_active(sets.power, active)]) * sets.full_sinr
    share = _shares(problem, active, full_sinr, step, sets.balanced_s)
    share = _narrowed_shares(problem, active, full_sinr, step, share)
    max_power_w = jnp.swapaxes(radio.d2d_power_max_w, 0, 1)
    power_w = jnp.where(active, sets.power * max_power_w, 0.0)
    segments = jnp.swapaxes(active[1:], 0, 1).astype(step.block_s.dtype)
    fixed = fix_partition(problem, segments, jnp.broadcast_to(step.micro_batches, active.shape[1:]))
    allocation = tentative._replace(d2d_share=share, d2d_power=power_w)
    sinr = link_sinrs(fixed, allocation, coupling.interference_w)
    links = links_at(fixed, sinr._replace(hop=full_sinr / share))  # as known already
    terms = round_terms(fixed, allocation, links=links)

    forward_s, backward_s = terms.flows.forward.value, terms.flows.backward.value
    passes = problem.workload.local_steps * (1.0 + problem.workload.backward_ratio)
    collect_s, distribute_s = terms.air.move_s
    block_s = passes * fixed.compute.forward_s[1:] + collect_s + distribute_s
    moved = fixed.sender_cost_per_j.move * terms.message_j.move
    computed = fixed.costs.energy_per_j[1:] * fixed.computing_j[1:]
    block_cost = computed + moved[0] + moved[1]
    interference = sum_nodes(power_w * coupling.interference_cost_per_w)
    return _LinearCosts(
        share=share,
        power=sets.power,
        forward_s=forward_s,
        backward_s=backward_s,
        rest_s=terms.cluster_latency_s - step.waits * (forward_s + backward_s) - sum_nodes(block_s),
        rest_cost=terms.cluster_cost - fixed.switching_cost - sum_nodes(block_cost) + interference,
        block_s=block_s,
        block_cost=block_cost,
    )


def _shares(problem, active, full_sinr, step: StepCosts, balanced_s) -> Array:
    """Shares of the hops by their times at equal ones.

    In proportion to the times, which makes them equal, where hops are the bottleneck; to
    their roots, which makes the sum least, where devices are.

    Returns:
      ``[J, N, A, R]``; 1 on idle nodes.
    """
    band_hz = problem.radio.d2d_bandwidth_hz
    hops = sum_nodes(active.astype(full_sinr.dtype))
    equal_s = bit_time_s(problem.radio, band_hz / hops, full_sinr * hops)
    equal_s = equal_s[0] + equal_s[1]
    mean_s = 0.5 * step.bits * sum_nodes(jnp.where(active, equal_s, 0.0)) / hops
    hops_wait = (mean_s > balanced_s) & (step.micro_batches > 1.0)
    wanted = jnp.where(active, jnp.where(hops_wait, equal_s, jnp.sqrt(equal_s)), 0.0)
    return jnp.where(active, wanted / sum_nodes(wanted), 1.0)


def _narrowed_shares(problem, active, full_sinr, step: StepCosts, share) -> Array:
    """Shares narrowed where losses cost more than time.

    docs/dssra.md, partitions of a cluster, derives the hazard to aim at.
    """
    radio = problem.radio
    bit_s = bit_time_s(radio, share * radio.d2d_bandwidth_hz, full_sinr / share)
    time_cost = (bit_s[0] + bit_s[1]) * cost_per_bit_s(problem, step, active)
    hazard_cost = jnp.maximum(cost_per_hazard(problem, step), _LEAST_COST)
    hazard = (1.0 - _EXPECTED_ELASTICITY) * time_cost / (radio.harq_attempts * hazard_cost)
    wanted = sinr_at_hazard(radio, jnp.clip(hazard, *_TARGET_HAZARD))
    return jnp.where(active, jnp.minimum(share, jnp.min(full_sinr, axis=0) / wanted), 1.0)


def _fill(
    problem, coupling, sets: RankedSets, linear: _LinearCosts, step: StepCosts, capacity
) -> ClusterCandidates:
    """Cheapest segments of sets under several ceilings."""
    blocks, active = problem.workload.blocks, sets.active[1:]
    comes_first = fill_order(
        fusion_barrier(step.latency_per_s * linear.block_s + linear.block_cost)
    )

    def fill(best, limit_s):
        limit = jnp.floor(jnp.maximum(limit_s / step.block_s, 1.0) + 1e-4)
        segments = fill_in_order(comes_first, jnp.minimum(limit, capacity), active, blocks)
        cost = _partition_cost(problem, coupling, linear, step, segments)
        cost = jnp.where(sum_nodes(segments) == blocks, cost, jnp.inf)
        wins = cost < best[1]
        return (jnp.where(wins, segments, best[0]), jnp.where(wins, cost, best[1])), None

    ceilings = jnp.array(_CEILINGS).reshape(-1, 1, 1, 1)
    # Up to the longest stage that is there anyway, a device's time costs nothing more.
    free_s = jnp.maximum(linear.forward_s, sets.balanced_s)
    limits_s = jnp.concatenate([sets.balanced_s * ceilings, free_s[None]])
    nothing = jnp.zeros_like(linear.block_s), jnp.full_like(linear.rest_s, jnp.inf)
    (segments, cost), _ = jax.lax.scan(fill, nothing, limits_s)
    return ClusterCandidates(
        segments=jnp.moveaxis(segments, 2, 0),
        micro_batches=jnp.moveaxis(jnp.broadcast_to(step.micro_batches, cost.shape), 1, 0),
        log_share=jnp.moveaxis(jnp.log(linear.share), 2, 0),
        log_power=jnp.moveaxis(jnp.log(linear.power), 2, 0),
        cost=jnp.moveaxis(cost, 1, 0),
    )


def _partition_cost(problem, coupling, linear: _LinearCosts, step: StepCosts, segments) -> Array:
    """Cost of segments, at least one block on every active device, ``[N, A, R]``."""
    slowest_s = max_nodes(segments * step.block_s)
    backward_s = problem.workload.backward_ratio * slowest_s
    longest_s = jnp.maximum(linear.forward_s, slowest_s)
    longest_s = longest_s + jnp.maximum(linear.backward_s, backward_s)
    held = segments > 0  # a dead link costs nothing to a device without blocks
    block_s = sum_nodes(jnp.where(held, segments * linear.block_s, 0.0))
    block_cost = sum_nodes(jnp.where(held, segments * linear.block_cost, 0.0))
    latency_s = linear.rest_s + block_s + step.waits * longest_s
    cost = coupled_latency_cost(coupling, unit_costs(problem), latency_s)
    cost = cost + linear.rest_cost + block_cost
    cost = cost + switching_cost(problem.switching, segments, problem.workload.blocks)
    # A link on which nearly all is lost must still win against not fitting at all.
    return fusion_barrier(jnp.minimum(jnp.nan_to_num(cost, nan=jnp.inf), _LARGEST_COST))


def fill_order(unit_cost: Array) -> Array:
    """1 where the second device is filled before the first, ``[K, K, ...]``."""
    order = jnp.arange(unit_cost.shape[0])
    first = (order[None] < order[:, None]).reshape(-1, len(order), *[1] * (unit_cost.ndim - 1))
    mine, other = unit_cost[:, None], unit_cost[None]
    return ((other < mine) | ((other == mine) & first)).astype(unit_cost.dtype)


def fill_in_order(comes_first: Array, capacity: Array, active: Array, blocks: int) -> Array:
    """Cheapest segments of a cluster when every block costs the same on a device.

    Every active device gets one block, and the rest goes to the cheapest devices first:
    optimal, since blocks of one device are alike.

    Args:
      comes_first: as :func:`fill_order` returns it.
      capacity: ``[K, ...]``.
      active: ``[K, ...]``.
      blocks: ``L``.

    Returns:
      ``[K, ...]``, whole numbers; zeros where the active devices cannot hold the blocks,
      or are more than there are blocks.
    """
    room = fusion_barrier(jnp.where(active, capacity - 1.0, 0.0))
    rest = blocks - sum_nodes(active.astype(room.dtype))
    before = sum(comes_first[:, k] * room[k] for k in range(room.shape[0]))
    filled = jnp.clip(rest - before, 0.0, room) + active
    short = sum_nodes(jnp.where(active & (capacity < 1.0), 1.0, 0.0))
    enough = (rest >= 0) & (sum_nodes(room) >= rest) & (short == 0)
    return fusion_barrier(jnp.where(enough, filled, 0.0))
