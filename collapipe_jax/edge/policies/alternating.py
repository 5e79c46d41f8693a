"""Alternating optimisation: each knob of a decision in turn, with the others fixed.

Published solvers of such mixed problems are mostly of this kind. It never changes two knobs
at once, where :mod:`dssra` proposes partitions together with their shares and powers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.core.batch_axis import batch_last, select, sum_nodes
from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.computing import pass_times, set_capacity
from collapipe_jax.edge.cost.decision import Allocation, Decision
from collapipe_jax.edge.cost.evaluate import round_terms
from collapipe_jax.edge.cost.fixed_partition import FixedPartition, fix_decision, fix_partition
from collapipe_jax.edge.cost.link_quality import received_interference_w, round_links
from collapipe_jax.edge.cost.objective import unit_costs
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.static_pipeline import static_pipelines
from collapipe_jax.edge.solver.active_sets import (
    LinearCosts,
    candidate_sets,
    cost_at,
    fill_sets,
    linear_costs,
)
from collapipe_jax.edge.solver.allocate import (
    Solution,
    certified,
    descend_jointly,
    solution_like,
)
from collapipe_jax.edge.solver.candidates import (
    Candidates,
    candidate_of,
    cheapest_within,
    exact_objective,
    nan_to_inf,
    with_candidate_axis,
)
from collapipe_jax.edge.solver.limits import to_allocation
from collapipe_jax.edge.solver.smooth_objective import evaluate_allocation

KNOBS = ("segments", "micro_batches", "shares", "powers")
"""Parts of a decision, in the order of their turns."""
_TURNS = 10
"""Most turns of all knobs; 50 more change no quartile on 64 random networks."""
_STEPS = 20
"""Gradient steps of shares, or of powers, in a turn: as many as between two proposals of dssra."""
_SETTLED = 1e-4
"""Relative fall of the objective in a turn under which a network has settled."""
_FREE = {"shares": (True, False, True, False), "powers": (False, True, False, True)}
"""Fields of an allocation that move in a turn."""


class _State(NamedTuple):
    """Loop carry."""

    point: Candidates  # without the axis of candidates
    objective: Array  # ``[R]``
    settled: Array  # whether the last turn changed nothing, ``[R]``
    turn: Array


def alternating(
    problem: RoundProblem,
    micro_batches: int = 8,
    decides: Sequence[str] = KNOBS,
    turns: int = _TURNS,
) -> Solution:
    """Decide a round by turns of segments, micro-batches, shares and powers.

    docs/policies.md says what each turn does.

    Args:
      problem: one round of one network; ``jax.vmap`` over problems is the fast way.
      micro_batches: of the static pipeline to start from.
      decides: knobs that are optimised, of :data:`KNOBS`; others keep the static pipeline's.
      turns: at most so many, each of all knobs.

    Returns:
      A feasible decision whose objective is no larger than that of the static pipeline, and
      a certificate of its shares and powers. No gradient flows through it.

    Raises:
      InputError: if there is no such knob.
    """
    for knob in decides:
        if knob not in KNOBS:
            raise InputError("policy.decides", knob, "no knob", f"Choose among: {', '.join(KNOBS)}")

    def solve(problem):
        return alternate(problem, static_pipelines(problem, micro_batches), decides, turns)

    return batch_last(solve, like=solution_like)(jax.lax.stop_gradient(problem))


def alternate(
    problem: RoundProblem, start: Decision, decides: Sequence[str], turns: int | Array
) -> Solution:
    """Turns from a decision, until no network changes; with batch axes."""
    fixed = fix_decision(problem, start)
    point = candidate_of(fixed, start)
    objective = exact_objective(fixed, point.logs)
    state = _State(point, objective, jnp.zeros(objective.shape, bool), jnp.zeros((), int))

    def goes_on(state):
        return (state.turn < turns) & ~jnp.all(state.settled)

    def turn(state):
        return _turn(problem, state, decides)

    point = jax.lax.while_loop(goes_on, turn, state).point
    fixed = fix_partition(problem, point.segments, point.micro_batches)
    evaluation = evaluate_allocation(fixed, point.logs, point.weights)
    return certified(fixed, point.segments, point.micro_batches, point.logs, evaluation)


def _turn(problem: RoundProblem, state: _State, decides: Sequence[str]) -> _State:
    """One turn of all knobs; a network that has settled stays as it is."""
    point = state.point
    if "segments" in decides:
        segments = best_segments(problem, *_fixed_numbers(problem, point))
        point = point._replace(segments=segments)
    if "micro_batches" in decides:
        count = best_micro_batches(problem, *_fixed_numbers(problem, point))
        point = point._replace(micro_batches=count)
    if masks := [free for knob, free in _FREE.items() if knob in decides]:
        point = _descend(problem, point, masks)
    fixed = fix_partition(problem, point.segments, point.micro_batches)
    objective = exact_objective(fixed, point.logs)
    falls = ~state.settled & (objective < state.objective)
    return _State(
        point=select(falls, point, state.point),
        objective=jnp.where(falls, objective, state.objective),
        settled=~(falls & (objective < (1.0 - _SETTLED) * state.objective)),
        turn=state.turn + 1,
    )


def _descend(problem: RoundProblem, point: Candidates, masks: Sequence[tuple]) -> Candidates:
    """Gradient steps of some variables, then of others, by one loop that is compiled once."""
    fixed = fix_partition(problem, point.segments, point.micro_batches)

    def descend(start, free):
        logs, weights = start
        found = descend_jointly(fixed, logs, weights, _STEPS, free=free)
        return (found.logs, found.weights), None

    free = Allocation(*jnp.array(masks).T)
    (logs, weights), _ = jax.lax.scan(descend, (point.logs, point.weights), free)
    return point._replace(logs=logs, weights=weights)


def _fixed_numbers(problem: RoundProblem, point: Candidates) -> tuple[Array, Array, Allocation]:
    fixed = fix_partition(problem, point.segments, point.micro_batches)
    return point.segments, point.micro_batches, to_allocation(fixed, point.logs)


# The best segments, or micro-batches, of all clusters with everything else fixed.
#
# With shares and powers fixed the clusters meet in the latency of the round alone: a device
# that falls idle only takes interference away. So every cluster has candidates, with a latency
# and other costs each, and the best combination of them is found exactly.

_LATENCY_PARTS = (0.0, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Parts of the cost of the round's latency that a cluster may bear; all of them sum to 1."""


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
    blocks, per_s = problem.workload.cluster_blocks, unit_costs(problem).latency_per_s
    wide, count = with_candidate_axis((problem, micro_batches))
    memory_bytes = wide.by_node.memory_bytes
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
    latency_s = jnp.stack([own.cluster_latency_s, *latency_s], axis=1)
    cost = jnp.stack([own.cluster_cost, *cost], axis=1)
    choice = best_combination(per_s, latency_s, cost, jnp.zeros_like(micro_batches, int))
    filled = jnp.concatenate([segments[None], filled.astype(segments.dtype)])
    return jnp.take_along_axis(filled, choice[None, None], axis=0)[0]


def _subsets(
    problem: RoundProblem, own: FixedPartition, micro_batches: Array, allocation: Allocation
) -> tuple[Array, LinearCosts]:
    """Subsets ``[K, N, A, R]`` of the active devices, and their costs."""
    received_w = received_interference_w(own, allocation)
    speed = problem.by_node.flops_per_s[1:]
    held = own.chain.members[1:, :, None]
    subsets = candidate_sets(1.0 / speed[None]) & held
    # An empty one counts for the present one: all clusters that take part still do.
    subsets = jnp.where(jnp.any(subsets, axis=0), subsets, held)
    wide, given, received_w, count = with_candidate_axis(
        (problem, allocation, received_w, micro_batches)
    )
    one_each = subsets.astype(own.hop_bits.dtype)
    count_each = jnp.broadcast_to(count, subsets.shape[1:])
    fixed = fix_partition(wide, one_each, count_each, terms=())
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
    memory_bytes = wide.by_node.memory_bytes
    capacity = set_capacity(problem.workload, memory_bytes, choices, held > 0, axis=0)
    fits = jnp.all(held <= capacity, axis=0)
    latency_s = jnp.where(fits, terms.cluster_latency_s, jnp.inf)
    cost = jnp.where(fits, terms.cluster_cost, jnp.inf)
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
      latency_s: of every candidate, ``[N, C, R]``.
      cost: its other costs, likewise.
      own: candidates where no combination has a finite objective, ``[N, R]``.

    Returns:
      Indices ``[N, R]``.
    """
    latency_s, cost = nan_to_inf(latency_s), nan_to_inf(cost)
    limit_s, choices, least = cheapest_within(latency_s, cost)
    total = nan_to_inf(latency_per_s * limit_s + jnp.sum(least, axis=1))
    best = jnp.argmin(total, axis=0)[None, None]  # [1, 1, R]
    choice = jnp.take_along_axis(choices, best, axis=0)[0]
    return jnp.where(jnp.isfinite(jnp.min(total, axis=0)), choice, own)
