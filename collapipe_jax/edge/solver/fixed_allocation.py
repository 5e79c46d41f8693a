"""The best segments, or micro-batches, of all clusters with everything else fixed.

With shares and powers fixed the clusters meet in the latency of the round alone: a device
that falls idle only takes interference away. So every cluster has candidates, with a latency
and other costs each, and the best combination of them is found exactly.
"""

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.core.batch_axis import sum_nodes
from collapipe_jax.edge.cost.computing import pass_times
from collapipe_jax.edge.cost.decision import Allocation
from collapipe_jax.edge.cost.fixed_partition import FixedPartition, fix_partition
from collapipe_jax.edge.cost.link_quality import received_interference_w, round_links
from collapipe_jax.edge.cost.memory import set_capacity
from collapipe_jax.edge.cost.objective import unit_costs
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.round_terms import round_terms
from collapipe_jax.edge.solver.active_sets import candidate_sets
from collapipe_jax.edge.solver.candidates import with_candidate_axis
from collapipe_jax.edge.solver.fill import LinearCosts, cost_at, fill_sets, linear_costs

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
      segments: of the decision so far, ``[N, K, R]``.
      micro_batches: ``[N, R]``.
      allocation: shares and powers in watts.

    Returns:
      Segments ``[N, K, R]``, of no larger objective.
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
    filled = jnp.concatenate([jnp.swapaxes(segments, 0, 1)[None], filled.astype(segments.dtype)])
    chosen = jnp.take_along_axis(filled, choice[None, None], axis=0)[0]
    return jnp.swapaxes(chosen, 0, 1)


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
    one_each = jnp.swapaxes(subsets, 0, 1).astype(own.hop_bits.dtype)
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
    memory_bytes = problem.compute.memory_bytes[:, :, None]
    capacity = set_capacity(problem.workload, memory_bytes, choices, held > 0, axis=1)
    fits = jnp.all(held <= capacity, axis=1)
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
