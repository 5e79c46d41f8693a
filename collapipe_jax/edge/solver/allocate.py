"""Shares and powers of a fixed partition: the optimum, with a certificate."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.core.batch_axis import batch_last, select, sum_nodes
from collapipe_jax.edge.cost.decision import (
    Allocation,
    Decision,
    MicroBatches,
    PerCluster,
    PerRound,
    Segments,
    decision_partition,
    make_decision,
)
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.fixed_partition import FixedPartition, fix_decision
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.static_pipeline import static_pipelines
from collapipe_jax.edge.solver.limits import to_allocation, to_limits, to_logs
from collapipe_jax.edge.solver.smooth_maximum import Weights, initial_weights
from collapipe_jax.edge.solver.smooth_objective import (
    Coupling,
    Evaluation,
    certify,
    evaluate_allocation,
)

# Accelerated projected gradient on the logarithms of shares and powers.
#
# With the partition fixed the problem is jointly convex in them (docs/system-model.md, section
# 5). Steps are scaled by an estimate of the curvature along each variable, carry momentum that
# restarts where it leads uphill, and return to the simplices and boxes by projection in the
# same scale. A step that overshoots is taken back. The weights of the maxima follow in small
# steps.

_WEIGHT_STEP = 0.2
_MOMENTUM = 0.9
_LEAST_STEP, _SHORTER, _LONGER = 0.05, 0.8, 1.05
_LARGEST_RISE, _MUCH_SHORTER, _RECOVERING = 0.1, 0.25, 1.2
"""Relative rise of the smooth objective above which a descent goes back to its best point, the
factor on the step size then, and its growth until the next rise. Chosen on random networks."""
_LARGEST_MOVE = 2.0
_LEAST_CURVATURE = 1e-5
_NEWTON_STEPS = 2

Evaluate = Callable[[Allocation, Weights], Evaluation]
"""Evaluation of logarithms of shares and powers, for weights of the maxima."""


class Descent(NamedTuple):
    """The best point of a descent."""

    logs: Allocation  # logarithms of shares, and of powers over their maxima
    weights: Weights  # of the maxima there
    objective: Array  # exact, ``[...]``, or ``[N, ...]`` for clusters by themselves
    cluster_latency_s: PerCluster
    evaluation: Evaluation | None = None  # there, if asked for


class _State(NamedTuple):
    """Loop carry."""

    reached: Allocation  # last point after projection
    ahead: Allocation  # where to evaluate next, with momentum
    weights: Weights  # of the maxima
    best: Descent  # best point so far
    step: PerRound  # common step size
    age: PerRound  # steps since momentum restarted
    last: PerRound  # smooth objective of the step before; infinite after going back
    recovers: PerRound  # whether no step rose since the last one that was taken back
    evaluation: Evaluation | None  # of the last point, if asked for


def descend(
    evaluate: Evaluate,
    used: Allocation,
    logs: Allocation,
    weights: Weights,
    steps: int | Array,
    joint: bool = True,
    with_evaluation: bool = False,
) -> Descent:
    """Minimise the smooth objective.

    Args:
      evaluate: with objectives ``[...]``, or ``[N, ...]`` of clusters by themselves.
      used: shares and powers that count, as booleans.
      logs: where to start.
      weights: to start with.
      steps: how many points to evaluate, 1 or more; the same for the whole batch.
      joint: whether clusters share an objective and the D2E band. If not, each descends by
        itself.
      with_evaluation: whether to evaluate the best point once more in the end.

    Returns:
      The best point by the exact objective, the start included. Under caps, which are
      exceeded on the way, the last one.
    """
    capped = weights.caps is not None
    shape = used.d2e_share.shape[1:] if joint else used.d2e_share.shape

    def body(number, state):
        point = state.ahead, state.weights
        if with_evaluation:  # of the best point last: in the loop it is compiled once
            best = state.best.logs, state.best.weights
            point = select(number == steps, best, point)
        logs, weights = point
        found = evaluate(logs, weights)
        here = Descent(logs, weights, found.objective, found.cluster_latency_s)
        best = here if capped else _better(here, state.best)
        state = state._replace(best=best, evaluation=found if with_evaluation else None)
        return _step(state, logs, weights, found, used, joint)

    logs = to_limits(logs, used, joint)
    highest, one = jnp.full(shape, jnp.inf), jnp.ones(shape)
    start = Descent(logs, weights, highest, jnp.full(used.d2e_share.shape, jnp.inf))
    state = _State(logs, logs, weights, start, one, jnp.zeros(shape), highest, one < 0, None)
    if not with_evaluation:
        return jax.lax.fori_loop(0, steps, body, state).best
    unknown = Evaluation(
        smooth=highest,
        objective=highest,
        cluster_latency_s=start.cluster_latency_s,
        slope=logs,
        curvature=logs,
        interference_cost_per_w=logs.d2d_power,
        weights=weights,
    )
    end = jax.lax.fori_loop(0, steps + 1, body, state._replace(evaluation=unknown))
    return end.best._replace(evaluation=end.evaluation)


def _step(
    state: _State,
    logs: Allocation,
    weights: Weights,
    found: Evaluation,
    used: Allocation,
    joint: bool,
) -> _State:
    """One accelerated step from an evaluated point, or back to the best one."""
    total = sum_nodes if joint else lambda by_cluster: by_cluster
    slope = jax.tree.map(lambda s: jnp.where(jnp.isfinite(s), s, 0.0), found.slope)
    metric = _metric(found.curvature, slope, logs, state.step, total)
    moved = _projected_step(logs, slope, metric, used, joint)
    # Momentum starts anew after a step uphill, or one that overshot.
    uphill = total(_along(slope, moved, state.reached)) > 0
    back = _overshot(state, found, capped=weights.caps is not None)
    age = jnp.where(uphill | back, 0.0, state.age + 1.0)
    momentum = jnp.minimum(age / (age + 3.0), _MOMENTUM)
    ahead = jax.tree.map(lambda new, old: new + momentum * (new - old), moved, state.reached)
    reached, ahead = jax.tree.map(
        lambda best, new: jnp.where(back, best, new),
        (state.best.logs, state.best.logs),
        (moved, to_limits(ahead, used, joint)),
    )
    rose = found.smooth > state.last
    recovers = back | (state.recovers & ~rose)
    shorter = state.step * jnp.where(back, _MUCH_SHORTER, _SHORTER)
    longer = state.step * jnp.where(recovers, _RECOVERING, _LONGER)
    return state._replace(
        reached=reached,
        ahead=ahead,
        weights=jax.tree.map(lambda a, b: a + _WEIGHT_STEP * (b - a), weights, found.weights),
        step=jnp.where(rose | back, jnp.maximum(shorter, _LEAST_STEP), jnp.minimum(longer, 1.0)),
        age=age,
        last=jnp.where(back, jnp.inf, found.smooth),
        recovers=recovers,
    )


def _overshot(state: _State, found: Evaluation, capped: bool) -> Array:
    """Whether the smooth objective rose by much, or to infinity from a finite best point."""
    if capped:  # multipliers of caps grow, and the objective with them
        return jnp.zeros(found.smooth.shape, bool)
    rose = found.smooth > state.last + _LARGEST_RISE * jnp.abs(state.last)
    return rose | (~jnp.isfinite(found.smooth) & jnp.isfinite(state.best.objective))


def _better(new: Descent, old: Descent) -> Descent:
    return select(new.objective < old.objective, new, old)


def _along(slope: Allocation, new: Allocation, old: Allocation) -> Array:
    """Slope along a move, ``[N, ...]``."""
    part = jax.tree.map(lambda s, a, b: s * (a - b), slope, new, old)
    return sum_nodes(part.d2d_share + part.d2d_power) + part.d2e_share + part.d2e_power


def _metric(curvature, slope, logs, step, total) -> Allocation:
    """Divisors of slopes: curvatures, those of shares with that of their band."""
    band = sum_nodes(jnp.abs(slope.d2d_share))
    d2e_band = total(jnp.abs(slope.d2e_share))
    tiny = _LEAST_CURVATURE * total(band + jnp.abs(slope.d2e_share)) + 1e-30
    curvature = jax.tree.map(
        lambda c: jnp.where(jnp.isfinite(c) & (c >= 0), c, 1e30) + tiny, curvature
    )
    with_bands = curvature._replace(
        d2d_share=curvature.d2d_share + band * jnp.exp(logs.d2d_share),
        d2e_share=curvature.d2e_share + d2e_band * jnp.exp(logs.d2e_share),
    )
    return jax.tree.map(lambda c: c / step, with_bands)


def _projected_step(logs, slope, metric, used, joint) -> Allocation:
    """A step down the slope, projected to simplices and boxes in the step's own metric."""

    def step(log, slope, metric):
        return log - jnp.clip(slope / metric, -_LARGEST_MOVE, _LARGEST_MOVE)

    moved = jax.tree.map(step, logs, slope, metric)
    d2d_share = _project_band(moved.d2d_share, logs.d2d_share, metric.d2d_share, used.d2d_share)
    d2e_share = moved.d2e_share
    if joint:
        d2e_share = _project_band(d2e_share, logs.d2e_share, metric.d2e_share, used.d2e_share)
    return to_limits(moved._replace(d2d_share=d2d_share, d2e_share=d2e_share), used, joint)


def _project_band(moved: Array, logs: Array, metric: Array, used: Array) -> Array:
    """Nearest shares of sum at most 1, to first order, in a diagonal metric.

    Shares fall along ``share / metric`` by a multiplier of the band, found by Newton steps
    on a convex decreasing sum. :func:`to_limits` does what they leave.
    """
    fall = jnp.where(used, jnp.exp(logs) / metric, 0.0)
    share = jnp.where(used, jnp.exp(moved), 0.0)
    multiplier, now = jnp.zeros(moved.shape[1:]), share
    for _ in range(_NEWTON_STEPS):
        total = sum_nodes(now)
        slope = jnp.maximum(sum_nodes(now * fall), 1e-30)
        multiplier = multiplier + jnp.maximum(jnp.log(total), 0.0) * total / slope
        now = share * jnp.exp(-multiplier * fall)
    return moved - multiplier * fall


OPTIMAL, STEP_LIMIT, NO_CLUSTER, BROKEN = range(4)
"""Status of a solution: within tolerance of the bound; out of steps; no cluster can run; a
message cannot be sent, so every cost is infinite."""

TOLERANCE = 1e-3
"""Of the objective over its lower bound, relative, for the status optimal."""


class Solution(NamedTuple):
    """A decision, and how good its shares and powers are.

    Attributes:
      decision: feasible.
      objective: drift plus penalty.
      lower_bound: of the objective over shares and powers, for the decision's partition.
      residual: of the KKT conditions, relative to the objective.
      status: one of :data:`OPTIMAL`, ...
    """

    decision: Decision
    objective: Array
    lower_bound: Array
    residual: Array
    status: Array


def solution_like(problem: RoundProblem, *_) -> Solution:
    """Structure, shapes and types of a solution, with batch axes: `batch_last` asks for them."""
    decision = static_pipelines(problem, 1)
    number = jnp.zeros_like(decision.d2e_share[0])
    return Solution(decision, number, number, number, number.astype(int))


def allocate(problem: RoundProblem, decision: Decision, steps: int = 200) -> Solution:
    """Best shares and powers for the partition of a decision.

    Args:
      problem: one round of one network.
      decision: where to start; a share or power that is 0 where it is used starts small.
      steps: gradient steps (fixes the length of the loop).

    Returns:
      A decision that is feasible if the start was and never has a larger objective.
    """
    solve = batch_last(functools.partial(allocate_batch, steps=steps))
    found = solve(*jax.lax.stop_gradient((problem, decision)))
    start = evaluate(problem, decision).objective
    better, decision = found.objective < start, decision.replace(routes=found.decision.routes)
    chosen = select(better, found.decision, decision)
    return found._replace(decision=chosen, objective=jnp.minimum(found.objective, start))


def allocate_batch(problem: RoundProblem, decision: Decision, steps: int) -> Solution:
    """:func:`allocate` with batch axes; the best point of the descent, without the start."""
    partition, fixed = decision_partition(decision), fix_decision(problem, decision)
    start, weights = to_logs(fixed, decision), initial_weights(fixed)
    descent = descend_jointly(fixed, start, weights, steps, with_evaluation=True)
    assert descent.evaluation is not None
    return certified(fixed, *partition, descent.logs, descent.evaluation)


def descend_jointly(
    fixed: FixedPartition,
    logs: Allocation,
    weights: Weights,
    steps: int | Array,
    with_evaluation: bool = False,
    free: Allocation | None = None,
) -> Descent:
    """Descent of all clusters together, interference following the powers; with batch axes.

    ``free`` says which variables move, one boolean each; by default all do.
    """

    def evaluate(logs, weights):
        found = evaluate_allocation(fixed, logs, weights)
        if free is None:
            return found
        slope = jax.tree.map(lambda moves, s: jnp.where(moves, s, 0.0), free, found.slope)
        return found._replace(slope=slope)

    return descend(
        evaluate, fixed.chain.used, logs, weights, steps, with_evaluation=with_evaluation
    )


def descend_clusters(
    fixed: FixedPartition,
    logs: Allocation,
    coupling: Coupling,
    steps: int | Array,
    with_evaluation: bool = False,
) -> Descent:
    """Descent of every cluster by itself, the others as they are; with batch axes."""
    weights = initial_weights(fixed)
    # Of its own latency and the round's.
    weights = weights._replace(cluster=jnp.full((2, *weights.cluster.shape), 0.5))
    evaluate = functools.partial(evaluate_allocation, fixed, coupling=coupling)
    return descend(
        evaluate,
        fixed.chain.used,
        logs,
        weights,
        steps,
        joint=False,
        with_evaluation=with_evaluation,
    )


def certified(
    fixed: FixedPartition,
    segments: Segments,
    micro_batches: MicroBatches,
    logs: Allocation,
    evaluation: Evaluation,
) -> Solution:
    """An evaluated point as a solution; with batch axes."""
    certificate = certify(evaluation, logs, fixed.chain.used)
    objective = evaluation.objective
    close = objective - certificate.lower_bound <= TOLERANCE * objective
    status = jnp.where(close, OPTIMAL, STEP_LIMIT)
    status = jnp.where(jnp.isfinite(objective), status, BROKEN)
    status = jnp.where(jnp.any(fixed.chain.members[0], axis=0), status, NO_CLUSTER)
    return Solution(
        decision=make_decision(
            segments, micro_batches, to_allocation(fixed, logs), fixed.chain.used, fixed.routes
        ),
        objective=objective,
        lower_bound=certificate.lower_bound,
        residual=certificate.residual,
        status=status,
    )
