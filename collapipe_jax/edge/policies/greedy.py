"""Greedy: every round by itself, with a hard cap on the energy of each node.

The energy budgets are caps of this round instead of averages, and their queues are not
used. The steps are those of :mod:`dssra`, with multipliers of the caps in the place of
queues. Gradient steps meet caps only in the limit. So powers are scaled down to the caps,
and candidates are compared as they are then.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.core.batch_axis import batch_last
from collapipe_jax.edge.cost.computing import block_bytes
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.feasibility import usable_blocks
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.static_pipeline import static_pipelines
from collapipe_jax.edge.network.channel import least_bit_energy_j
from collapipe_jax.edge.policies.dssra import DEFAULT_SEARCH, previous_partition
from collapipe_jax.edge.queues import block_energy_j
from collapipe_jax.edge.solver.allocate import (
    Solution,
    certified,
    descend_jointly,
    solution_like,
)
from collapipe_jax.edge.solver.candidates import (
    Candidates,
    Start,
    at_falling_powers,
    join,
    starting_candidates,
    take,
    with_candidate_axis,
)
from collapipe_jax.edge.solver.energy_caps import (
    IN_REACH,
    air_energy_and_slope,
    fix_capped_partition,
    scale_powers_to_caps,
)
from collapipe_jax.edge.solver.joint_search import Incumbent, SearchConfig, propose_partitions
from collapipe_jax.edge.solver.smooth_objective import evaluate_allocation

_GREEDY_SEARCH = DEFAULT_SEARCH._replace(allocation_steps=(30, 20, 180), cluster_steps=15)
"""Multipliers of caps take longer to settle than the weights of maxima."""

_TOLERANCE = 1e-3
"""Of a cap, relative to the budget: rounding."""
_LEAST_LEFT = 1e-3
"""Of a budget, where idle energy takes all of it."""
_PENALTY, _EXCESS_POWER = 200.0, 10.0
"""Candidates that exceed a cap rank behind all others, by ``F (1 + x)^10`` of the objective
``F`` and the sum ``x`` of the excesses in budgets."""


class _Scaled(NamedTuple):
    """Candidates whose powers are scaled down to the caps."""

    candidates: Candidates  # ``C`` of them
    score: Array  # the less the better, ``[C, R]``
    air_j: Array  # energy of every node on air, ``[P, N, C, R]``


def greedy(
    problem: RoundProblem, micro_batches: int = 8, config: SearchConfig = _GREEDY_SEARCH
) -> Solution:
    """Decide a round by itself, no node spending more than its budget.

    docs/policies.md says what happens where caps cannot be kept.

    Args:
      problem: one round of one network; ``jax.vmap`` over problems is the fast way. Its
        energy queue is not used, nor is hysteresis.
      micro_batches: of the static pipeline to start from.
      config: how much to search.

    Returns:
      A feasible decision. Its objective is (P2) without energy, no larger than that of the
      static pipeline if that one keeps the caps. Lower bound and residual are for this
      partition under the caps, or under the energy spent if that is more. No gradient flows
      through it.
    """

    def solve(problem):
        return _solve(problem, micro_batches, config)

    return batch_last(solve, like=solution_like)(jax.lax.stop_gradient(problem))


def _solve(problem: RoundProblem, micro_batches: int, config: SearchConfig) -> Solution:
    problem = problem.with_energy_queue(jnp.zeros_like(problem.control.energy_queue))
    problem = _without_received_energy(_without_idle_energy(problem), micro_batches)
    relaxed = relax_infeasible_budgets(problem)
    steps = jnp.array((*config.allocation_steps, 0))

    def best_of(scaled):
        return take(scaled, jnp.argmin(scaled.score, axis=0))

    def iterate(state, number):
        candidates, best = state
        scaled = _scale_to_caps(problem, relaxed, candidates)
        # It goes on from where its steps ended, not from the scaled powers: those of a node
        # that only its own cap holds back recover late.
        incumbent = take(candidates, jnp.argmin(scaled.score, axis=0))
        best = best_of(join(with_candidate_axis(best), scaled))
        candidates = jax.lax.cond(
            (number > 0) & (number < len(config.allocation_steps)),
            lambda: _propose_partitions(relaxed, incumbent, config),
            lambda: scaled.candidates,
        )
        return (_optimise(relaxed, candidates, steps[number]), best), None

    candidates = _starting_candidates(problem, relaxed, micro_batches, config.candidates)
    worst = jnp.full(candidates.micro_batches.shape[1:], jnp.inf)
    nothing = best_of(_Scaled(candidates, worst, candidates.logs.d2d_power))
    (_, best), _ = jax.lax.scan(iterate, (candidates, nothing), jnp.arange(len(steps)))
    return _solution(relaxed, best)


def _without_idle_energy(problem: RoundProblem) -> RoundProblem:
    """Budgets less the idle energy of a round of the reference latency, which is an estimate.

    A round that is not longer keeps the caps with its idle energy.
    """
    control = problem.control
    idle_w, budget_j = problem.compute.node_idle_power_w, control.energy_budget_j
    left_j = budget_j - idle_w * control.reference_latency_s
    left_j = jnp.where(idle_w > 0, jnp.maximum(left_j, _LEAST_LEFT * budget_j), budget_j)
    return problem.replace(control=control.replace(energy_budget_j=left_j))


def _without_received_energy(problem: RoundProblem, micro_batches: int) -> RoundProblem:
    """Budgets less what the static pipeline spends on receiving, which is an estimate."""
    control, static = problem.control, static_pipelines(problem, micro_batches)
    budget_j, receive_power_w = control.energy_budget_j, problem.compute.receive_power_w
    spends = jax.vmap(lambda *one: evaluate(*one).energy_j, -1, -1)
    silent = problem.replace(compute=problem.compute.replace(receive_power_w=0.0 * receive_power_w))
    received_j = spends(problem, static) - spends(silent, static)
    left_j = jnp.maximum(budget_j - received_j, _LEAST_LEFT * budget_j)
    left_j = jnp.where(jnp.isnan(left_j), budget_j, left_j)  # a broken pipeline tells nothing
    return problem.replace(control=control.replace(energy_budget_j=left_j))


def _starting_candidates(
    problem: RoundProblem, relaxed: RoundProblem, micro_batches: int, count: int
) -> Candidates:
    """The static pipeline, then pipelines of blocks that the relaxed budgets pay for."""
    affordable = static_pipelines(relaxed, micro_batches)
    starts = at_falling_powers(affordable, count)
    starts[0] = Start(static_pipelines(problem, micro_batches))
    if problem.switching is not None:
        starts[-1] = Start(previous_partition(relaxed, affordable))
    return starting_candidates(relaxed, starts, fix_capped_partition)


def _optimise(relaxed: RoundProblem, candidates: Candidates, steps: Array) -> Candidates:
    """Candidates after gradient steps; caps are met only nearly."""
    relaxed = with_candidate_axis(relaxed)
    fixed = fix_capped_partition(relaxed, candidates.segments, candidates.micro_batches)
    descent = descend_jointly(fixed, candidates.logs, candidates.weights, steps)
    return candidates._replace(logs=descent.logs, weights=descent.weights)


def _scale_to_caps(problem: RoundProblem, relaxed: RoundProblem, candidates: Candidates) -> _Scaled:
    budget_j = with_candidate_axis(problem).by_node.energy_budget_j
    relaxed, weights = with_candidate_axis(relaxed), candidates.weights
    fixed = fix_capped_partition(relaxed, candidates.segments, candidates.micro_batches)
    logs = scale_powers_to_caps(fixed, candidates.logs, weights)
    air_j, _ = air_energy_and_slope(fixed, logs, weights)
    excess = jnp.where(fixed.active, (air_j + fixed.constant_j) / budget_j - 1.0, 0.0)
    exceeds = jnp.max(excess, axis=(0, 1)) > _TOLERANCE
    total = jnp.sum(jnp.maximum(excess, 0.0), axis=(0, 1))
    objective = evaluate_allocation(fixed.replace(caps=None), logs, weights).objective
    score = jnp.log(jnp.maximum(objective, 1e-30))
    score = score + jnp.where(exceeds, _PENALTY + _EXCESS_POWER * jnp.log1p(total), 0.0)
    score = jnp.where(jnp.isnan(score), jnp.inf, score)
    return _Scaled(candidates._replace(logs=logs), score, air_j)


def _propose_partitions(relaxed: RoundProblem, own: Candidates, config: SearchConfig) -> Candidates:
    """A candidate, and others that look better where caps cost what its multipliers say."""
    fixed = fix_capped_partition(relaxed, own.segments, own.micro_batches)
    assert fixed.caps is not None
    evaluation = evaluate_allocation(fixed, own.logs, own.weights)
    cost_per_j = jnp.where(fixed.active, own.weights.caps / fixed.caps.room_j, 0.0)
    queue = jnp.swapaxes(cost_per_j, 0, 1) * relaxed.control.energy_budget_j
    incumbent = Incumbent(own, fixed, evaluation)
    with_costs = relaxed.with_energy_queue(queue)
    return propose_partitions(with_costs, incumbent, config, fix_capped_partition)


def _solution(relaxed: RoundProblem, best: _Scaled) -> Solution:
    own = best.candidates
    fixed = fix_capped_partition(relaxed, own.segments, own.micro_batches)
    assert fixed.caps is not None
    room_j = jnp.where(fixed.active, jnp.maximum(fixed.caps.room_j, best.air_j), 1.0)
    fixed = fixed.replace(caps=fixed.caps._replace(room_j=room_j))
    evaluation = evaluate_allocation(fixed, own.logs, own.weights)
    partition = own.segments, own.micro_batches
    solution = certified(fixed, *partition, own.logs, evaluation)
    # Slopes of a lost round may overflow; and no objective is below 0.
    return solution._replace(
        lower_bound=jnp.fmax(solution.lower_bound, 0.0),
        residual=jnp.nan_to_num(solution.residual, nan=1.0),
    )


_LOG_LARGEST_FACTOR = 30.0
_HALVINGS = 30
_ROUNDING = 1e-4
"""Of a block, so that a budget that just suffices still does so after rounding."""


def relax_infeasible_budgets(problem: RoundProblem) -> RoundProblem:
    """Raise budgets until they pay for the encoder, and cut memory to the blocks they pay for.

    All budgets of a cluster are raised by the least factor that suffices; mostly that is 1.
    """
    control, blocks = problem.control, problem.workload.cluster_blocks
    block_j, fixed_j = _least_device_j(problem)
    most = jnp.max(problem.workload.micro_batch_choices, axis=0)
    held = jax.vmap(usable_blocks, -1, -1)(problem, most)

    def affordable(log_factor, slack=0.0):
        left_j = jnp.exp(log_factor)[:, None] * control.energy_budget_j[:, 1:] - fixed_j
        left = jnp.nan_to_num(left_j / block_j)  # both are infinite over a dead link
        return jnp.clip(jnp.floor(left + slack), 0, blocks)

    def suffices(log_factor, slack=0.0):
        paid_for = jnp.minimum(affordable(log_factor, slack), held)
        return jnp.sum(paid_for, axis=1) >= blocks

    log_factor = _least_log_factor(suffices, jnp.zeros_like(control.energy_budget_j[:, 0]))
    budget_j = jnp.exp(log_factor)[:, None] * control.energy_budget_j
    problem = problem.replace(control=control.replace(energy_budget_j=budget_j))
    # Where links are dead no budget suffices: then all that is held is tried.
    paid_for = affordable(log_factor, _ROUNDING)
    enough = suffices(log_factor, _ROUNDING)[:, None]
    return _with_memory_for(problem, jnp.where(enough, paid_for, blocks))


def _least_device_j(problem: RoundProblem) -> tuple[Array, Array]:
    """Least energy of a block, and of an active device without blocks, ``[N, K, R]``.

    On air at vanishing power, without interference and to the best other node.
    """
    work, radio = problem.workload, problem.radio
    is_own = jnp.eye(problem.compute.memory_bytes.shape[1] + 1, dtype=bool)[1:, :, None]
    gain = jnp.where(is_own, 0.0, radio.d2d_gain[:, 1:])
    bit_j = IN_REACH * least_bit_energy_j(radio, radio.node_noise_w_per_hz, gain)
    block_j = jax.vmap(block_energy_j, -1, -1)(problem)
    bits = 2.0 * work.local_steps * work.batch * work.activation_bits
    collected_bits = work.update_ratio * work.block_param_bits
    return block_j + collected_bits * bit_j[:, :, 0], bits * jnp.min(bit_j, axis=2)


def _least_log_factor(suffices: Callable[[Array], Array], least: Array) -> Array:
    """Logarithm of the least factor on budgets that suffices, at least ``least [N, R]``."""

    def halve(_, ends):
        middle = 0.5 * (ends[0] + ends[1])
        enough = suffices(middle)
        return jnp.where(enough, ends[0], middle), jnp.where(enough, middle, ends[1])

    ends = least, jnp.full_like(least, _LOG_LARGEST_FACTOR)
    return jax.lax.fori_loop(0, _HALVINGS, halve, ends)[1]


def _with_memory_for(problem: RoundProblem, blocks: Array) -> RoundProblem:
    """Cut memory to a number of blocks, with working memory of the smallest micro-batches."""
    work, compute = problem.workload, problem.compute
    samples = work.batch / jnp.max(work.micro_batch_choices, axis=0)
    enough = (blocks + _ROUNDING) * block_bytes(work, work.batch)
    enough = enough + samples * work.block_working_bytes
    cut = jnp.minimum(compute.memory_bytes, enough)
    memory_bytes = jnp.where(blocks < work.cluster_blocks, cut, compute.memory_bytes)
    return problem.replace(compute=compute.replace(memory_bytes=memory_bytes))
