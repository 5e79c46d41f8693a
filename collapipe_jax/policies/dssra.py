"""DSSRA: dynamic segment scheduling and resource allocation, one round of (P2).

Two steps take turns. Shares and powers of a few plans are tuned, all clusters together,
and the best plan is kept; then, around it, layouts of every cluster are looked for and
combined to other plans. The kept plan stays among them, so the price never rises.
docs/dssra.md derives the steps.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from collapipe_jax.allocation.allocate import (
    Tuned,
    tune_chains,
    with_certificate,
)
from collapipe_jax.allocation.variables import PricedPoint
from collapipe_jax.batching import on_lanes
from collapipe_jax.cost.chains import Chains, chains
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.static_pipeline import static_pipeline
from collapipe_jax.partition.hysteresis import layout_before, stay_or_go
from collapipe_jax.partition.incumbents import (
    Plans,
    join_plans,
    static_plans,
    take_plan,
    with_last_plan,
    with_plan_axis,
)
from collapipe_jax.partition.joint_search import other_plans


class Effort(NamedTuple):
    """How much work a decision is worth. All are lengths of loops or of axes.

    Attributes:
      joint_steps: on every plan, all clusters together, by turn; between two turns other
        layouts are looked for.
      plans: how many, the best so far included.
      layouts: candidates of a cluster, besides its own.
      cluster_steps: on every candidate, its cluster by itself.
    """

    joint_steps: tuple[int, ...] = (30, 20, 60)
    plans: int = 3
    layouts: int = 8
    cluster_steps: int = 15


DEFAULT_EFFORT = Effort()


def dssra(problem: RoundProblem, micro_batches: int = 8, effort: Effort = DEFAULT_EFFORT) -> Tuned:
    """Decide a round by drift plus penalty.

    Args:
      problem: one round of one network; ``jax.vmap`` over problems is the fast way.
      micro_batches: of the static pipeline to start from.
      effort: how much to search.

    Returns:
      A feasible decision, its price, and a certificate of its shares and powers. The price
      is at most that of this static pipeline, unless hysteresis holds to the layout before.
      No slopes flow through it: those of the price at the decision held constant are those
      of the optimum (envelope theorem).
    """

    def solve(problem):
        return _solve(problem, micro_batches, effort)

    return on_lanes(solve)(jax.lax.stop_gradient(problem))


def _solve(problem: RoundProblem, micro_batches: int, effort: Effort) -> Tuned:
    static = jax.vmap(lambda one: static_pipeline(one, micro_batches), in_axes=-1, out_axes=-1)(
        problem
    )
    steps = jnp.array(effort.joint_steps)

    def turn(plans, number):
        own, chain, priced = _tune(problem, plans, steps[number])
        layout = static.replace(
            segments=own.segments.astype(jnp.int32),
            micro_batches=own.micro_batches.astype(jnp.int32),
        )
        answer = with_certificate(problem, chain, layout, own.logs, priced)

        def look_around():
            search = effort.layouts, effort.cluster_steps, effort.plans - 1
            others = other_plans(problem, own, chain, priced, *search)
            return join_plans(with_plan_axis(own), others)

        plans = jax.lax.cond(number + 1 < len(steps), look_around, lambda: plans)
        return plans, answer

    start = static_plans(problem, static, effort.plans)
    if problem.switching is not None:
        before = layout_before(problem, static)
        start = with_last_plan(start, static_plans(problem, before, 1))
    _, answers = jax.lax.scan(turn, start, jnp.arange(len(steps)))
    found = jax.tree.map(lambda leaf: leaf[-1], answers)
    if problem.switching is None:
        return found
    return stay_or_go(problem, before, found, sum(effort.joint_steps))


def _tune(problem: RoundProblem, plans: Plans, steps) -> tuple[Plans, Chains, PricedPoint]:
    """The best of the plans once all are tuned, its chains and its price, no axis of plans."""
    problem = with_plan_axis(problem)
    chain = chains(problem, plans.segments, plans.micro_batches)
    tuned = tune_chains(problem, chain, plans.logs, plans.multipliers, steps, with_price=True)
    plans = plans._replace(logs=tuned.logs, multipliers=tuned.multipliers)
    return take_plan((plans, chain, tuned.priced), jnp.argmin(tuned.objective, axis=0))
