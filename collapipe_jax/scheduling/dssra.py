"""DSSRA: dynamic segment scheduling and resource allocation, one round of (P2)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round import price
from collapipe_jax.scheduling.baselines import static_pipeline
from collapipe_jax.scheduling.chain_price import (
    Multipliers,
    Resources,
    Surroundings,
    add_up,
    heard_w,
    price_point,
    first_multipliers,
)
from collapipe_jax.scheduling.chains import Chains, chains
from collapipe_jax.scheduling.descent import TEMPERATURE, Descent, descend
from collapipe_jax.scheduling.lanes import on_lanes
from collapipe_jax.scheduling.resources import (
    Tuned,
    to_logs,
    to_resources,
    tune_chains,
    with_certificate,
)
from collapipe_jax.scheduling.segments import propose_layouts


class Effort(NamedTuple):
    """How much work a decision is worth. All are lengths of loops or of axes.

    Attributes:
      joint_steps: on combinations, all clusters together, by turn; between two turns
        layouts are looked for anew.
      combinations: how many, the best so far included.
      layouts: candidates of a cluster, besides its own.
      cluster_steps: on every candidate, its cluster by itself.
    """

    joint_steps: tuple[int, ...] = (20, 25, 80)
    combinations: int = 4
    layouts: int = 8
    cluster_steps: int = 20


class _Plans(NamedTuple):
    """Layouts with resources: ``C`` of them, next to last in every array.

    Attributes:
      segments: ``[N, K, C, R]``.
      micro_batches: ``[N, C, R]``.
      logs, multipliers: where to go on from.
    """

    segments: Array
    micro_batches: Array
    logs: Resources
    multipliers: Multipliers


def dssra(problem: RoundProblem, micro_batches: int = 8, effort: Effort = Effort()) -> Tuned:
    """Decide a round by drift plus penalty."""

    def solve(problem):
        return _solve(problem, micro_batches, effort)

    return on_lanes(solve)(jax.lax.stop_gradient(problem))


_START_POWERS = (1.0, 0.3, 0.1, 0.03)


def _solve(problem, micro_batches, effort) -> Tuned:
    static = jax.vmap(lambda one: static_pipeline(one, micro_batches), in_axes=-1, out_axes=-1)(
        problem
    )
    spread = jax.tree.map(lambda leaf: leaf[..., None, :], problem)
    plans = _static_plans(problem, static, effort.combinations)
    steps = jnp.array(effort.joint_steps)

    def turn(plans, number):
        tuned = _tune(spread, plans, steps[number])
        best = jnp.argmin(tuned.objective, axis=0)
        kept = jax.tree.map(
            lambda leaf: _take(leaf, best[None]),
            plans._replace(logs=tuned.logs, multipliers=tuned.multipliers),
        )
        one = jax.tree.map(lambda leaf: leaf[..., 0, :], kept)
        chain = chains(problem, one.segments, one.micro_batches)
        point = to_resources(problem, one.logs)
        priced = price_point(problem, chain, point, one.multipliers, TEMPERATURE)
        layout = static.replace(
            segments=one.segments.astype(jnp.int32),
            micro_batches=one.micro_batches.astype(jnp.int32),
        )
        answer = with_certificate(problem, chain, layout, one.logs, priced)
        plans = jax.lax.cond(
            number + 1 < len(effort.joint_steps),
            lambda: _other_plans(problem, spread, kept, chain, priced, effort),
            lambda: plans,
        )
        return plans, answer

    _, answers = jax.lax.scan(turn, plans, jnp.arange(len(effort.joint_steps)))
    return jax.tree.map(lambda leaf: leaf[-1], answers)


def _take(leaf, index):
    """Plans ``index [C, R]`` of a leaf ``[..., C', R]``."""
    index = jnp.broadcast_to(index, (*leaf.shape[:-2], *index.shape))
    return jnp.take_along_axis(leaf, index, axis=-2)


def _static_plans(problem, static: Decision, count: int) -> _Plans:
    chain = chains(problem, static.segments, static.micro_batches)
    logs = to_logs(problem, chain, static)
    level = jnp.log(jnp.array((_START_POWERS * count)[:count])[:, None])

    def repeat(leaf):
        shape = (*leaf.shape[:-1], count, leaf.shape[-1])
        return jnp.broadcast_to(leaf[..., None, :], shape)

    logs = jax.tree.map(repeat, logs)
    logs = logs._replace(d2d_power=logs.d2d_power + level)
    dtype = logs.d2d_power.dtype
    return _Plans(
        repeat(static.segments).astype(dtype),
        repeat(static.micro_batches).astype(dtype),
        logs,
        jax.tree.map(repeat, first_multipliers(chain)),
    )


def _tune(spread, plans: _Plans, steps) -> Descent:
    chain = chains(spread, plans.segments, plans.micro_batches)
    return tune_chains(spread, chain, plans.logs, plans.multipliers, steps)


def _other_plans(problem, spread, kept: _Plans, chain: Chains, priced, effort) -> _Plans:
    """The kept plan, and the best combinations of other layouts."""
    around = _surroundings(problem, kept, chain, priced)
    wide = jax.tree.map(lambda leaf: leaf[..., None, :], around)
    candidates, tuned = _refine_candidates(problem, spread, kept, chain, around, wide, effort)
    present = kept.segments[:, 0] * 0 == 0
    choices = _combine(spread, chain, wide, tuned, effort.combinations - 1)
    index = jnp.moveaxis(choices, 0, 1)  # [N, C, R]
    cluster = _take(kept.multipliers.cluster, jnp.zeros((effort.combinations - 1, 1), int))
    others = _Plans(
        _take_each(candidates.segments, index, 0),
        _take_each(candidates.micro_batches, index, 0),
        Resources(
            _take_each(tuned.logs.d2d_share, index, 1),
            _take_each(tuned.logs.d2d_power, index, 1),
            _take_each(tuned.logs.d2e_share, index, 0),
            _take_each(tuned.logs.d2e_power, index, 0),
        ),
        Multipliers(
            _take_each(tuned.multipliers.forward, index, 1),
            _take_each(tuned.multipliers.backward, index, 1),
            0.5 * cluster + 0.5 / cluster.shape[0],
            _take_each(tuned.multipliers.hop, index, 2),
            _take_each(tuned.multipliers.move, index, 2),
            _take_each(tuned.multipliers.up, index, 0),
        ),
    )
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=-2), kept, others)


def _take_each(leaf, index, axis):
    """Every cluster's own candidates: ``[..., N, .., J, R]``, clusters at ``axis``."""
    shape = [1] * leaf.ndim
    shape[axis], shape[-2], shape[-1] = index.shape
    index = index.reshape(shape)
    full = (*leaf.shape[:-2], *index.shape[-2:])
    return jnp.take_along_axis(leaf, jnp.broadcast_to(index, full), axis=-2)


def _refine_candidates(problem, spread, kept, chain, around, wide, effort):
    own = jax.tree.map(lambda leaf: leaf[..., 0, :], kept)
    layouts = propose_layouts(problem, to_resources(problem, own.logs), around, effort.layouts)
    possible = jnp.isfinite(layouts.price)
    own_segments = jnp.swapaxes(own.segments, 0, 1)
    segments = jnp.where(possible[:, None], layouts.segments, own_segments)
    counts = jnp.where(possible, layouts.micro_batches, own.micro_batches)
    segments = jnp.concatenate([jnp.moveaxis(segments, 0, 2), own_segments[:, :, None]], axis=2)
    counts = jnp.concatenate([jnp.moveaxis(counts, 0, 1), own.micro_batches[:, None]], axis=1)
    plans_segments = jnp.swapaxes(segments, 0, 1)
    cand = chains(spread, plans_segments, counts)

    def pricer(logs, multipliers, temperature):
        return price_point(spread, cand, to_resources(spread, logs), multipliers, temperature, wide)

    m = first_multipliers(cand)
    m = m._replace(cluster=jnp.full((2, *m.cluster.shape), 0.5))
    start = _start_of_candidates(cand, layouts, own.logs)
    tuned = descend(pricer, cand.active, start, m, effort.cluster_steps, joint=False)
    return _Plans(plans_segments, counts, None, None), tuned


def _start_of_candidates(cand, layouts, own: Resources) -> Resources:
    """Estimated shares and powers; the last candidate goes on from where it is."""
    count = layouts.price.shape[0]

    def repeat(leaf):
        return jnp.broadcast_to(leaf[..., None, :], (*leaf.shape[:-1], count, leaf.shape[-1]))

    start = Resources(
        jnp.moveaxis(layouts.log_share, 0, -2),
        jnp.moveaxis(layouts.log_power, 0, -2),
        repeat(own.d2e_share),
        repeat(own.d2e_power),
    )
    return jax.tree.map(
        lambda new, old: jnp.concatenate([new, old[..., None, :]], axis=-2), start, own
    )


def _surroundings(problem, kept, chain: Chains, priced) -> Surroundings:
    power = jnp.where(
        chain.active,
        to_resources(problem, jax.tree.map(lambda leaf: leaf[..., 0, :], kept.logs)).d2d_power,
        0.0,
    )
    return Surroundings(
        heard_w=heard_w(chain.cross_gain, power),
        price_per_w=priced.price_per_heard_w,
        price_per_s=chain.price_per_s * priced.multipliers.cluster,
        round_s=jnp.max(priced.cluster_latency_s, axis=0),
        price_per_share=jnp.maximum(-add_up(priced.slope.d2e_share), 0.0),
    )


def _combine(spread, chain, wide, tuned: Descent, count):
    """Choices ``[C, N, R]`` from candidates ``[N, J, R]``."""
    latency = tuned.cluster_latency_s
    rest = chain.price_per_s - wide.price_per_s
    own = wide.price_per_s * latency + rest * jnp.maximum(latency, wide.round_s)
    drift = tuned.objective - own
    runs = chain.active[0][:, None]
    latency = jnp.where(runs, jnp.nan_to_num(latency, nan=jnp.inf), 0.0)
    drift = jnp.where(runs, jnp.nan_to_num(drift, nan=jnp.inf, posinf=jnp.inf), 0.0)
    clusters, candidates, lanes = latency.shape
    limit = latency.reshape(-1, lanes)  # [T, R]
    fits = latency[None] <= limit[:, None, None] * (1 + 1e-6)
    cost = jnp.where(fits, drift[None], jnp.inf)
    least = jnp.min(cost, axis=2)  # [T, N, R]
    choice = jnp.argmin(cost, axis=2)
    total = chain.price_per_s * limit + jnp.sum(least, axis=1)
    reached = jnp.max(jnp.where(least < jnp.inf, _chosen_latency(latency, choice), 0.0), axis=1)
    tight = reached >= limit * (1 - 1e-6)
    total = jnp.where(jnp.isnan(total) | ~tight, jnp.inf, total)
    order = jnp.argsort(total, axis=0)[: max(count - 1, 1)]
    found = jnp.take_along_axis(choice, order[:, None], axis=0)
    objective = jnp.where(jnp.isnan(tuned.objective), jnp.inf, tuned.objective)
    by_price = jnp.argmin(objective, axis=1)[None]
    return jnp.concatenate([found, by_price])[:count] if count > 1 else found


def _chosen_latency(latency, choice):
    """``[N, J, R]``, ``[T, N, R]`` -> ``[T, N, R]``."""
    return jnp.take_along_axis(latency[None], choice[:, :, None], axis=2)[:, :, 0]
