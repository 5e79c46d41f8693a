"""Staying with the layout of the round before unless another is worth the change."""

import jax
import jax.numpy as jnp

from collapipe_jax.allocation.allocate import Tuned, tune_layout
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.feasibility import is_feasible
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.static_pipeline import with_equal_resources


def layout_before(problem: RoundProblem, otherwise: Decision) -> Decision:
    """The layout of the round before, with equal shares, where it is still possible.

    Args:
      problem: with lanes; its moves are used.
      otherwise: a feasible decision for where there was none, or a device left.
    """

    def one(problem, otherwise):
        moves = problem.switching
        before = with_equal_resources(problem, moves.segments, moves.micro_batches)
        possible = is_feasible(problem, before)
        return jax.tree.map(lambda a, b: jnp.where(possible, a, b), before, otherwise)

    return jax.vmap(one, in_axes=-1, out_axes=-1)(problem, otherwise)


def stay_or_go(problem: RoundProblem, before: Decision, found: Tuned, steps: int) -> Tuned:
    """What was found where it pays for the change, else the layout before, tuned.

    Args:
      problem: with lanes; its moves are used.
      before: the layout before.
      found: by the search, the price of moves included.
      steps: on the layout before.
    """
    stays = tune_layout(problem, before, steps)
    goes = found.objective < (1.0 - problem.switching.hysteresis) * stays.objective
    return jax.tree.map(lambda new, old: jnp.where(goes, new, old), found, stays)
