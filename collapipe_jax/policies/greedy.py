"""Greedy: every round by itself, under a hard cap on what each node spends.

The budgets of energy are caps of this round instead of averages, and their queues are not
looked at. The steps are those of :mod:`dssra`, with multipliers of the caps in the place of
queues. A descent keeps caps only in the end and only nearly; so powers are lowered to
them, and points count as they are then.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.allocation.allocate import Tuned, price_logs, tune_chains, with_certificate
from collapipe_jax.allocation.energy_caps import capped_chains
from collapipe_jax.allocation.lowering import lower_to_caps, on_air
from collapipe_jax.batching import on_lanes
from collapipe_jax.cost.chains import computing_j
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.static_pipeline import static_pipeline
from collapipe_jax.partition.hysteresis import layout_before
from collapipe_jax.partition.incumbents import (
    Plans,
    join_plans,
    static_plans,
    take_plan,
    with_last_plan,
    with_plan_axis,
)
from collapipe_jax.partition.joint_search import other_plans
from collapipe_jax.partition.payable import with_payable_blocks
from collapipe_jax.policies.dssra import DEFAULT_EFFORT, Effort

GREEDY_EFFORT = DEFAULT_EFFORT._replace(joint_steps=(30, 20, 180))
"""As :func:`dssra`, but for a longer last descent: multipliers of caps take longer to settle
than those of maxima."""

_KEPT = 1e-3
"""Excess over a cap, in budgets, that is left to rounding."""
_LAST, _EXCESS_POWER = 200.0, 10.0
"""Plans that do not keep all caps rank behind all others: by ``F (1 + x)^10``, objective
``F`` and sum ``x`` of the excesses in budgets."""


class _Met(NamedTuple):
    """Plans whose powers are lowered to the caps.

    Attributes:
      plans: ``C`` of them.
      rank: the less the better, ``[C, R]``.
      air_j: what nodes spend on air, ``[P, N, C, R]``.
    """

    plans: Plans
    rank: Array
    air_j: Array


def greedy(problem: RoundProblem, micro_batches: int = 8, effort: Effort = GREEDY_EFFORT) -> Tuned:
    """Decide a round by itself, no node spending more than its budget.

    What happens where caps cannot be kept is told in docs/policies.md.

    Args:
      problem: one round of one network; ``jax.vmap`` over problems is the fast way. Its
        queue of energy is not used, nor is hysteresis.
      micro_batches: of the static pipeline to start from.
      effort: how much to search.

    Returns:
      A feasible decision. Its objective is (P2) without energy, no larger than that of the
      static pipeline if that one keeps the caps. Lower bound and residual are for this
      layout under the caps, or under what is spent if that is more. No slopes flow through.
    """

    def solve(problem):
        return _solve(problem, micro_batches, effort)

    return on_lanes(solve)(jax.lax.stop_gradient(problem))


def _solve(problem: RoundProblem, micro_batches: int, effort: Effort) -> Tuned:
    problem = _with_queue(problem, jnp.zeros_like(problem.control.energy_queue))
    payable = with_payable_blocks(problem)
    steps = jnp.array((*effort.joint_steps, 0))

    def turn(state, number):
        plans, met = state
        points = _meet(problem, payable, plans)
        own = take_plan(plans, jnp.argmin(points.rank, axis=0))
        met = _best(join_plans(with_plan_axis(met), points))
        plans = jax.lax.cond(
            (number > 0) & (number < len(effort.joint_steps)),
            lambda: _look_around(payable, own, effort),
            lambda: points.plans,
        )
        return (_tune(payable, plans, steps[number]), met), None

    plans = _first_plans(problem, payable, micro_batches, effort.plans)
    worst = jnp.full(plans.micro_batches.shape[1:], jnp.inf)
    nothing = _best(_Met(plans, worst, plans.logs.d2d_power))
    (_, met), _ = jax.lax.scan(turn, (plans, nothing), jnp.arange(len(steps)))
    return _answer(payable, met)


def _with_queue(problem: RoundProblem, queue: Array) -> RoundProblem:
    return problem.replace(control=problem.control.replace(energy_queue=queue))


def _best(met: _Met) -> _Met:
    """The best plan, without the axis of plans."""
    return take_plan(met, jnp.argmin(met.rank, axis=0))


def _first_plans(problem, payable, micro_batches: int, count: int) -> Plans:
    """The static pipeline as it is, and :func:`static_plans` of blocks that are paid for."""

    def static(problem):
        return jax.vmap(lambda one: static_pipeline(one, micro_batches), -1, -1)(problem)

    layout = static(payable)
    plans = static_plans(payable, layout, count, capped_chains)
    if problem.switching is not None:
        before = layout_before(payable, layout)
        plans = with_last_plan(plans, static_plans(payable, before, 1, capped_chains))
    others = jax.tree.map(lambda leaf: leaf[..., 1:, :], plans)
    return join_plans(static_plans(payable, static(problem), 1, capped_chains), others)


def _tune(payable, plans: Plans, steps: Array) -> Plans:
    """Plans after a descent, caps not yet quite kept."""
    payable = with_plan_axis(payable)
    chain = capped_chains(payable, plans.segments, plans.micro_batches)
    tuned = tune_chains(payable, chain, plans.logs, plans.multipliers, steps)
    return plans._replace(logs=tuned.logs, multipliers=tuned.multipliers)


def _meet(problem, payable, plans: Plans) -> _Met:
    """Plans with powers lowered to the caps, and their ranks."""
    budget_j = jnp.swapaxes(with_plan_axis(problem).control.energy_budget_j, 0, 1)
    payable = with_plan_axis(payable)
    chain = capped_chains(payable, plans.segments, plans.micro_batches)
    logs = lower_to_caps(payable, chain, plans.logs, plans.multipliers)
    air_j, _ = on_air(payable, chain, logs, plans.multipliers)
    computed_j = computing_j(payable, jnp.moveaxis(plans.segments, 1, 0), chain.active[0])
    excess = jnp.where(chain.active, (air_j + computed_j) / budget_j - 1.0, 0.0)
    over = jnp.max(excess, axis=(0, 1)) > _KEPT
    total = jnp.sum(jnp.maximum(excess, 0.0), axis=(0, 1))
    objective = price_logs(payable, chain.replace(caps=None), logs, plans.multipliers).objective
    rank = jnp.log(jnp.maximum(objective, 1e-30))
    rank = rank + jnp.where(over, _LAST + _EXCESS_POWER * jnp.log1p(total), 0.0)
    rank = jnp.where(jnp.isnan(rank), jnp.inf, rank)
    return _Met(plans._replace(logs=logs), rank, air_j)


def _look_around(payable, own: Plans, effort: Effort) -> Plans:
    """A plan, and others with layouts that look better at its multipliers.

    It goes on from where its descent ended and not from the lowered powers: those of a
    node that is held by its cap alone come back late.
    """
    chain = capped_chains(payable, own.segments, own.micro_batches)
    priced = price_logs(payable, chain, own.logs, own.multipliers)
    worth_per_j = jnp.where(chain.active, own.multipliers.caps / chain.caps.room_j, 0.0)
    queue = jnp.swapaxes(worth_per_j, 0, 1) * payable.control.energy_budget_j
    search = effort.layouts, effort.cluster_steps, effort.plans - 1
    priced_problem = _with_queue(payable, queue)
    others = other_plans(priced_problem, own, chain, priced, *search, capped_chains)
    return join_plans(with_plan_axis(own), others)


def _answer(payable, met: _Met) -> Tuned:
    """A plan as an answer; with lanes."""
    own = met.plans
    chain = capped_chains(payable, own.segments, own.micro_batches)
    room_j = jnp.where(chain.active, jnp.maximum(chain.caps.room_j, met.air_j), 1.0)
    chain = chain.replace(caps=chain.caps._replace(room_j=room_j))
    priced = price_logs(payable, chain, own.logs, own.multipliers)
    idle = jnp.zeros_like(payable.control.energy_budget_j)
    layout = Decision(
        segments=own.segments.astype(jnp.int32),
        micro_batches=own.micro_batches.astype(jnp.int32),
        d2d_share=idle,
        d2d_power_w=idle,
        d2e_share=idle[:, 0],
        d2e_power_w=idle[:, 0],
    )
    tuned = with_certificate(payable, chain, layout, own.logs, priced)
    # A lost round's slopes can be beyond all numbers; and nothing costs less than nothing.
    return tuned._replace(
        lower_bound=jnp.fmax(tuned.lower_bound, 0.0),
        residual=jnp.nan_to_num(tuned.residual, nan=1.0),
    )
