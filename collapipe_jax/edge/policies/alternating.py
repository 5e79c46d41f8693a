"""Alternating optimisation: each knob of a decision in turn, with the others fixed.

Published solvers of such mixed problems are mostly of this kind. It never changes two knobs
at once, where :mod:`dssra` proposes partitions together with their shares and powers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.core.batch_axis import batch_last
from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.decision import Allocation, Decision, decision_partition
from collapipe_jax.edge.cost.fixed_partition import fix_partition
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.static_pipeline import static_pipelines
from collapipe_jax.edge.solver.allocate import Solution, certified, descend_jointly
from collapipe_jax.edge.solver.fixed_allocation import (
    Candidates,
    best_micro_batches,
    best_segments,
    candidate_of,
    exact_objective,
)
from collapipe_jax.edge.solver.smooth_objective import evaluate_allocation
from collapipe_jax.edge.solver.variables import to_allocation

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

    return batch_last(solve)(jax.lax.stop_gradient(problem))


def alternate(
    problem: RoundProblem, start: Decision, decides: Sequence[str], turns: int | Array
) -> Solution:
    """Turns from a decision, until no network changes; with batch axes."""
    fixed = fix_partition(problem, *decision_partition(start))
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
        point=jax.tree.map(lambda new, old: jnp.where(falls, new, old), point, state.point),
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
