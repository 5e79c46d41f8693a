"""Shares and powers of a fixed partition: the optimum, with a certificate."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.core.batch_axis import batch_last
from collapipe_jax.edge.cost.decision import Allocation, Decision, make_decision
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.fixed_partition import FixedPartition, fix_partition
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.shapes import MicroBatches, Segments
from collapipe_jax.edge.solver.certificate import certify
from collapipe_jax.edge.solver.projected_gradient import Descent, descend
from collapipe_jax.edge.solver.smooth_maximum import Weights, initial_weights
from collapipe_jax.edge.solver.smooth_objective import Coupling, Evaluation, evaluate_allocation
from collapipe_jax.edge.solver.variables import to_allocation, to_logs

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
    better = found.objective < start
    chosen = jax.tree.map(lambda new, old: jnp.where(better, new, old), found.decision, decision)
    return found._replace(decision=chosen, objective=jnp.minimum(found.objective, start))


def allocate_batch(problem: RoundProblem, decision: Decision, steps: int) -> Solution:
    """:func:`allocate` with batch axes; the best point of the descent, without the start."""
    fixed = fix_partition(problem, decision.segments, decision.micro_batches)
    start, weights = to_logs(fixed, decision), initial_weights(fixed)
    descent = descend_jointly(fixed, start, weights, steps, with_evaluation=True)
    assert descent.evaluation is not None
    partition = decision.segments, decision.micro_batches
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

    return descend(evaluate, fixed.active, logs, weights, steps, with_evaluation=with_evaluation)


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
        evaluate, fixed.active, logs, weights, steps, joint=False, with_evaluation=with_evaluation
    )


def certified(
    fixed: FixedPartition,
    segments: Segments,
    micro_batches: MicroBatches,
    logs: Allocation,
    evaluation: Evaluation,
) -> Solution:
    """An evaluated point as a solution; with batch axes."""
    certificate = certify(evaluation, logs, fixed.active)
    objective = evaluation.objective
    close = objective - certificate.lower_bound <= TOLERANCE * objective
    status = jnp.where(close, OPTIMAL, STEP_LIMIT)
    status = jnp.where(jnp.isfinite(objective), status, BROKEN)
    status = jnp.where(jnp.any(fixed.active[0], axis=0), status, NO_CLUSTER)
    return Solution(
        decision=make_decision(segments, micro_batches, to_allocation(fixed, logs), fixed.active),
        objective=objective,
        lower_bound=certificate.lower_bound,
        residual=certificate.residual,
        status=status,
    )
