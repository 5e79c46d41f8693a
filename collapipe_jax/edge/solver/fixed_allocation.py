"""The best segments, or micro-batches, of all clusters with everything else fixed.

With shares and powers fixed the clusters meet in the latency of the round alone: a device
that falls idle only takes interference away. So every cluster has candidates, with a latency
and other costs each, and the best combination of them is found exactly.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.core.batch_axis import max_nodes, sum_nodes
from collapipe_jax.edge.cost.computing import pass_times, set_capacity
from collapipe_jax.edge.cost.decision import Allocation, Decision, decision_partition
from collapipe_jax.edge.cost.fixed_partition import FixedPartition, fix_partition
from collapipe_jax.edge.cost.link_quality import link_sinrs, received_interference_w, round_links
from collapipe_jax.edge.cost.objective import round_objective, unit_costs
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.round_terms import round_terms
from collapipe_jax.edge.network.channel import sinr_at_hazard
from collapipe_jax.edge.solver.active_sets import (
    LinearCosts,
    candidate_sets,
    cost_at,
    fill_sets,
    linear_costs,
)
from collapipe_jax.edge.solver.smooth_maximum import Weights, initial_weights
from collapipe_jax.edge.solver.variables import to_allocation, to_logs

_LATENCY_PARTS = (0.0, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Parts of the cost of the round's latency that a cluster may bear; all of them sum to 1."""
SAME = 1e-6
"""Relative difference of latencies that count as equal."""


def best_segments(
    problem: RoundProblem, segments: Array, micro_batches: Array, allocation: Allocation
) -> Array:
    """Cheapest segments found on the devices that have a share, other numbers fixed.

    Every subset of the active devices is filled, blocks of the least unit cost first; of more
    than five devices, the subsets of the fastest. A device that is idle has no share to send
    with, and remains idle.

    Args:
      problem: with batch axis ``[R]``.
      segments: of the decision so far, ``[K, N, R]``.
      micro_batches: ``[N, R]``.
      allocation: shares and powers in watts.

    Returns:
      Segments ``[K, N, R]``, of no larger objective.
    """
    fixed = fix_partition(problem, segments, micro_batches)
    active, linear = _subsets(problem, fixed, micro_batches, allocation)
    blocks, per_s = problem.workload.blocks, unit_costs(problem).latency_per_s
    wide, count = with_candidate_axis((problem, micro_batches))
    memory_bytes = jnp.swapaxes(wide.compute.memory_bytes, 0, 1)
    capacity = set_capacity(wide.workload, memory_bytes, count, active, axis=0)
    capacity = capacity.astype(linear.stage_s.dtype)

    def fill(part):
        def cost_of(filled):
            latency_s, cost = cost_at(wide, linear, filled)
            return nan_to_inf(part * per_s * latency_s + cost)

        filled, cost = fill_sets(linear, active, capacity, blocks, part * per_s, cost_of)
        best = jnp.argmin(cost, axis=1)[None, :, None]  # [1, N, 1, R]
        terms = (filled, *(values[None] for values in cost_at(wide, linear, filled)))
        filled, latency_s, other = (
            jnp.take_along_axis(leaf, best, axis=2)[:, :, 0] for leaf in terms
        )
        holds = sum_nodes(filled) == blocks
        return filled, *(jnp.where(holds, values[0], jnp.inf) for values in (latency_s, other))

    filled, latency_s, cost = jax.lax.map(fill, jnp.array(_LATENCY_PARTS, linear.rest_s.dtype))
    own = round_terms(fixed, allocation)
    latency_s = jnp.concatenate([own.cluster_latency_s[None], latency_s])
    cost = jnp.concatenate([own.cluster_cost[None], cost])
    choice = best_combination(per_s, latency_s, cost, jnp.zeros_like(micro_batches, int))
    filled = jnp.concatenate([segments[None], filled.astype(segments.dtype)])
    return jnp.take_along_axis(filled, choice[None, None], axis=0)[0]


def _subsets(
    problem: RoundProblem, own: FixedPartition, micro_batches: Array, allocation: Allocation
) -> tuple[Array, LinearCosts]:
    """Subsets ``[K, N, A, R]`` of the active devices, and their costs."""
    received_w = received_interference_w(own, allocation)
    speed = jnp.swapaxes(problem.compute.flops_per_s, 0, 1)[1:]
    held = own.active[1:, :, None]
    subsets = candidate_sets(1.0 / speed[None]) & held
    # An empty one counts for the present one: all clusters that take part still do.
    subsets = jnp.where(jnp.any(subsets, axis=0), subsets, held)
    wide, given, received_w, count = with_candidate_axis(
        (problem, allocation, received_w, micro_batches)
    )
    one_each = subsets.astype(own.hop_bits.dtype)
    count_each = jnp.broadcast_to(count, subsets.shape[1:])
    fixed = fix_partition(wide.replace(switching=None), one_each, count_each)
    terms = round_terms(fixed, given, links=round_links(fixed, given, received_w))
    stage_s = pass_times(wide, count).block_s
    waits = problem.workload.local_steps * (count - 1.0)
    return subsets, linear_costs(wide, fixed, terms, stage_s, waits)


def best_micro_batches(
    problem: RoundProblem, segments: Array, micro_batches: Array, allocation: Allocation
) -> Array:
    """Best allowed number of micro-batches of every cluster, ``[N, R]``, other numbers fixed.

    Arguments are those of :func:`best_segments`. The optimum is exact.
    """
    choices = problem.workload.micro_batch_choices  # [C, R]
    wide, given, held = with_candidate_axis((problem, allocation, segments))
    shape = micro_batches.shape[0], *choices.shape
    held = jnp.broadcast_to(held, (*segments.shape[:2], *choices.shape))
    fixed = fix_partition(wide, held, jnp.broadcast_to(choices, shape))
    terms = round_terms(fixed, given)
    memory_bytes = jnp.swapaxes(wide.compute.memory_bytes, 0, 1)
    capacity = set_capacity(problem.workload, memory_bytes, choices, held > 0, axis=0)
    fits = jnp.all(held <= capacity, axis=0)
    latency_s = jnp.moveaxis(jnp.where(fits, terms.cluster_latency_s, jnp.inf), 1, 0)
    cost = jnp.moveaxis(jnp.where(fits, terms.cluster_cost, jnp.inf), 1, 0)
    own = jnp.argmin(jnp.abs(choices[:, None] - micro_batches), axis=0)
    choice = best_combination(unit_costs(problem).latency_per_s, latency_s, cost, own)
    return jnp.take_along_axis(choices[:, None], choice[None], axis=0)[0].astype(
        micro_batches.dtype
    )


def best_combination(latency_per_s: Array, latency_s: Array, cost: Array, own: Array) -> Array:
    """Candidate of every cluster in the combination of least drift plus penalty.

    A round lasts as long as some candidate of some cluster. So for every such latency each
    cluster takes the cheapest candidate that keeps to it.

    Args:
      latency_per_s: unit cost of the round's latency, ``[R]``.
      latency_s: of every candidate, ``[J, N, R]``.
      cost: its other costs, likewise.
      own: candidates where no combination has a finite objective, ``[N, R]``.

    Returns:
      Indices ``[N, R]``.
    """
    latency_s, cost = nan_to_inf(latency_s), nan_to_inf(cost)
    limit_s, choices, least = cheapest_within(latency_s, cost, axis=1)
    total = nan_to_inf(latency_per_s * limit_s + jnp.sum(least, axis=1))
    best = jnp.argmin(total, axis=0)[None, None]  # [1, 1, R]
    choice = jnp.take_along_axis(choices, best, axis=0)[0]
    return jnp.where(jnp.isfinite(jnp.min(total, axis=0)), choice, own)


def cheapest_within(latency_s: Array, cost: Array, axis: int) -> tuple[Array, Array, Array]:
    """For the latency of every candidate, each cluster's cheapest that keeps to it.

    Args:
      latency_s: of every candidate of every cluster, ``[J, N, R]`` or ``[N, J, R]``.
      cost: its other costs, likewise.
      axis: that of the candidates, counted behind a new first one for the latencies.

    Returns:
      The latencies ``[J N, R]``; indices and costs of the cheapest, ``[J N, N, R]`` each.
    """
    limit_s = latency_s.reshape(-1, latency_s.shape[-1])
    keeps = latency_s <= limit_s[:, None, None] * (1.0 + SAME)
    possible = jnp.where(keeps, cost, jnp.inf)
    return limit_s, jnp.argmin(possible, axis=axis), jnp.min(possible, axis=axis)


def nan_to_inf(values: Array) -> Array:
    """The values, infinite in place of nan."""
    return jnp.where(jnp.isnan(values), jnp.inf, values)


# Candidate decisions of a round, side by side: partitions with allocations to start from.
#
# Candidates have an axis of their own, ``C``, next to the batch ``R``.

_START_POWERS = (1.0, 0.3, 0.1, 0.03)
_LARGEST_HAZARD = 1.0
"""Of a message in a start."""

FixPartition = Callable[[RoundProblem, Array, Array], FixedPartition]
"""Signature of :func:`.cost.fixed_partition.fix_partition`."""


class Candidates(NamedTuple):
    """Candidate decisions."""

    segments: Array  # whole numbers, ``[K, N, C, R]``
    micro_batches: Array  # ``[N, C, R]``
    logs: Allocation  # logarithms of shares and powers, each ``[..., C, R]``
    weights: Weights  # of the maxima, likewise


def with_candidate_axis(tree):
    """Leaves ``[..., R]`` as ``[..., 1, R]``, the same for every candidate."""
    return jax.tree.map(lambda leaf: leaf[..., None, :], tree)


def repeat(tree, count: int):
    """Leaves ``[..., R]`` as ``[..., count, R]``."""
    return jax.tree.map(lambda leaf: jnp.repeat(leaf[..., None, :], count, axis=-2), tree)


def candidate_of(fixed: FixedPartition, decision: Decision) -> Candidates:
    """A decision, with or without an axis of candidates, whose partition is fixed."""
    segments, micro_batches = decision_partition(decision)
    number = fixed.hop_bits.dtype
    return Candidates(
        segments=segments.astype(number),
        micro_batches=micro_batches.astype(number),
        logs=to_logs(fixed, decision),
        weights=initial_weights(fixed),
    )


class Start(NamedTuple):
    """A decision to start from."""

    decision: Decision
    power: float = 1.0  # factor on all powers


def at_falling_powers(decision: Decision, count: int) -> list[Start]:
    """A decision as it is, then at lower and lower powers."""
    return [Start(decision, _START_POWERS[i % len(_START_POWERS)]) for i in range(count)]


def starting_candidates(
    problem: RoundProblem, starts: Sequence[Start], fix: FixPartition = fix_partition
) -> Candidates:
    """Starts side by side; those at lower powers with shares that most messages survive."""
    stacked = jax.tree.map(
        lambda *leaves: jnp.stack(leaves, axis=-2), *(start.decision for start in starts)
    )
    fixed = fix(with_candidate_axis(problem), *decision_partition(stacked))
    candidates, power = candidate_of(fixed, stacked), jnp.array([start.power for start in starts])
    logs = candidates.logs
    lower = logs._replace(d2d_power=logs.d2d_power + jnp.log(power)[:, None])
    narrowed = _narrow_shares(fixed, lower)
    as_it_is = power[:, None] == 1.0
    return candidates._replace(
        logs=jax.tree.map(lambda old, new: jnp.where(as_it_is, old, new), logs, narrowed)
    )


def exact_objective(fixed: FixedPartition, logs: Allocation) -> Array:
    """Drift plus penalty at logarithms of shares and powers, infinite where a message is lost."""
    terms = round_terms(fixed, to_allocation(fixed, logs))
    return round_objective(fixed.costs, max_nodes(terms.cluster_latency_s), terms.cluster_cost)


def _narrow_shares(fixed: FixedPartition, logs: Allocation) -> Allocation:
    """Shares narrowed until a micro-batch mostly survives every message.

    From where nearly all is lost a descent takes long to come back.
    """
    allocation = to_allocation(fixed, logs)
    sinr = link_sinrs(fixed, allocation, received_interference_w(fixed, allocation))

    def narrow(log_share, sinr, transport_blocks):
        hazard = _LARGEST_HAZARD / jnp.maximum(transport_blocks, 1.0)
        wanted = sinr_at_hazard(fixed.radio, hazard)
        return log_share + jnp.minimum(jnp.log(jnp.maximum(sinr, 1e-30) / wanted), 0.0)

    return logs._replace(
        d2d_share=narrow(logs.d2d_share, jnp.min(sinr.hop, axis=0), fixed.hop_blocks),
        d2e_share=narrow(logs.d2e_share, sinr.uplink, fixed.uplink_blocks),
    )


def take(tree, index: Array):
    """The candidate of every problem at ``index [R]``, without the axis of candidates.

    That axis may have length 1, where all candidates share the numbers.
    """
    count = max(leaf.shape[-2] for leaf in jax.tree.leaves(tree))
    chosen = jnp.arange(count)[:, None] == index

    def take_leaf(leaf):
        if leaf.shape[-2] == 1:
            return leaf[..., 0, :]
        pick = jnp.any if leaf.dtype == bool else jnp.sum
        return pick(leaf, axis=-2, where=chosen)

    return jax.tree.map(take_leaf, tree)


def join(first, second):
    """All candidates of two trees."""
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=-2), first, second)


def mix(candidates: Candidates, choices: Array, cluster_weight: Array) -> Candidates:
    """Candidates whose clusters come from different ones.

    Args:
      candidates: of every cluster by itself, ``C`` of them.
      choices: candidate of every cluster in every mix, ``[N, C, R]``.
      cluster_weight: weights of the maximum of latencies to start with, ``[N, 1, R]``.
    """

    def pick(leaf, axis):
        shape = [1] * leaf.ndim
        shape[axis], shape[-2:] = choices.shape[0], choices.shape[1:]
        wide = jnp.broadcast_to(choices.reshape(shape), (*leaf.shape[:-2], *choices.shape[1:]))
        return jnp.take_along_axis(leaf, wide, axis=-2)

    # The axis of clusters of every leaf, with candidates and realisations behind it.
    logs, weights = candidates.logs, candidates.weights
    return Candidates(
        segments=pick(candidates.segments, 1),
        micro_batches=pick(candidates.micro_batches, 0),
        logs=Allocation(
            d2d_share=pick(logs.d2d_share, 1),
            d2d_power=pick(logs.d2d_power, 1),
            d2e_share=pick(logs.d2e_share, 0),
            d2e_power=pick(logs.d2e_power, 0),
        ),
        weights=Weights(
            forward=pick(weights.forward, 1),
            backward=pick(weights.backward, 1),
            cluster=jnp.broadcast_to(cluster_weight, choices.shape),
            hop=pick(weights.hop, 2),
            move=pick(weights.move, 2),
            uplink=pick(weights.uplink, 0),
            caps=None if weights.caps is None else pick(weights.caps, 1),
        ),
    )
