"""Hysteresis: the partition of the round before is kept unless another pays for the change."""

import jax
import jax.numpy as jnp

from collapipe_jax.edge.cost.decision import Decision
from collapipe_jax.edge.cost.feasibility import is_feasible
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.static_pipeline import with_equal_allocation
from collapipe_jax.edge.solver.allocate import Solution, allocate_batch


def previous_partition(problem: RoundProblem, fallback: Decision) -> Decision:
    """The partition of the round before with equal shares, where possible, else a fallback."""

    def one(problem, fallback):
        switching = problem.switching
        before = with_equal_allocation(problem, switching.segments, switching.micro_batches)
        possible = is_feasible(problem, before)
        return jax.tree.map(lambda a, b: jnp.where(possible, a, b), before, fallback)

    return jax.vmap(one, in_axes=-1, out_axes=-1)(problem, fallback)


def apply_hysteresis(
    problem: RoundProblem, before: Decision, found: Solution, steps: int
) -> Solution:
    """A solution where it pays for the change, else the partition before, reallocated."""
    assert problem.switching is not None
    stays = allocate_batch(problem, before, steps)
    switches = found.objective < (1.0 - problem.switching.hysteresis) * stays.objective
    return jax.tree.map(lambda new, old: jnp.where(switches, new, old), found, stays)
