"""Combinations of layouts of all clusters, from candidates of each by itself.

Around a plan that has been tuned, the other clusters are a background: interference heard,
a price of the interference made, a price of a second of latency, of a share of the D2E
band. Against it every cluster's candidates are tuned by themselves, all at once, and the
clusters' choices are then put together.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.allocation.allocate import to_resources, tune_clusters
from collapipe_jax.allocation.projected_gradient import Descent, band_price
from collapipe_jax.allocation.smooth_maximum import largest
from collapipe_jax.allocation.variables import PricedPoint, Resources, Surroundings
from collapipe_jax.cost.chains import Chains, chains, heard_w
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.partition.candidates import Layouts, propose_layouts
from collapipe_jax.partition.incumbents import Plans, mix_plans, repeat_plans, with_plan_axis

_SAME = 1e-6


def surroundings(chain: Chains, point: Resources, priced: PricedPoint) -> Surroundings:
    """What every cluster sees of the others at a tuned point.

    Args:
      chain: of the layout.
      point: shares, and powers in watts.
      priced: its price, all clusters together.
    """
    return Surroundings(
        heard_w=heard_w(chain.cross_gain, jnp.where(chain.active, point.d2d_power, 0.0)),
        price_per_w=priced.price_per_heard_w,
        price_per_s=chain.price_per_s * priced.multipliers.cluster,
        round_s=largest(priced.cluster_latency_s),
        price_per_share=band_price(priced.slope.d2e_share),
    )


def other_plans(
    problem: RoundProblem,
    own: Plans,
    chain: Chains,
    priced: PricedPoint,
    layouts: int,
    steps: int,
    count: int,
    make_chains: Callable[..., Chains] = chains,
) -> Plans:
    """The most promising plans with other layouts.

    Args:
      problem: with lanes ``[R]``.
      own: a tuned plan, without the axis of plans.
      chain: of its layout.
      priced: its price.
      layouts: candidates of a cluster, besides its own.
      steps: on each.
      count: how many plans.
      make_chains: of layouts, as :func:`chains` makes them.
    """
    around = surroundings(chain, to_resources(problem, own.logs), priced)
    proposed = propose_layouts(problem, to_resources(problem, own.logs), around, layouts)
    candidates = _with_own(proposed, own)
    candidates, tuned = _tune_candidates(problem, candidates, around, steps, make_chains)
    choices = _combine(chain, with_plan_axis(around), tuned, count)
    weight = with_plan_axis(own.multipliers.cluster)
    return mix_plans(candidates, choices, 0.5 * weight + 0.5 / weight.shape[0])


def _with_own(layouts: Layouts, own: Plans) -> Plans:
    """Candidates of every cluster by itself; the last is its own, as tuned as it is."""
    count = layouts.price.shape[0]
    possible = jnp.isfinite(layouts.price)
    own_segments = jnp.swapaxes(own.segments, 0, 1)
    segments = jnp.where(possible[:, None], layouts.segments, own_segments)
    counts = jnp.where(possible, layouts.micro_batches, own.micro_batches)
    start = Resources(
        jnp.moveaxis(layouts.log_share, 0, -2),
        jnp.moveaxis(layouts.log_power, 0, -2),
        repeat_plans(own.logs.d2e_share, count),
        repeat_plans(own.logs.d2e_power, count),
    )

    def add_own(new, old):
        return jnp.concatenate([new, old[..., None, :]], axis=-2)

    return Plans(
        add_own(jnp.moveaxis(segments, (0, 2), (2, 0)), own.segments),
        add_own(jnp.moveaxis(counts, 0, 1), own.micro_batches),
        jax.tree.map(add_own, start, own.logs),
        own.multipliers,
    )


def _tune_candidates(problem, candidates: Plans, around: Surroundings, steps: int, make_chains):
    """Every candidate with shares and powers tuned against the background."""
    problem, around = with_plan_axis(problem), with_plan_axis(around)
    chain = make_chains(problem, candidates.segments, candidates.micro_batches)
    tuned = tune_clusters(problem, chain, candidates.logs, around, steps)
    return candidates._replace(logs=tuned.logs, multipliers=tuned.multipliers), tuned


def _combine(chain: Chains, around: Surroundings, tuned: Descent, count: int) -> Array:
    """Candidates of every cluster in each of the best combinations, ``[N, count, R]``.

    With the others as a background, a combination costs its latency, the largest of its
    clusters', and the sum of what else they cost. So for every latency that some candidate
    has, every cluster takes the cheapest that keeps to it. One more combination takes each
    cluster's best by its own price.
    """
    price_per_s = chain.price_per_s
    latency_s = tuned.cluster_latency_s  # [N, J, R]
    late_s = jnp.maximum(latency_s, around.round_s)
    of_latency = around.price_per_s * latency_s + (price_per_s - around.price_per_s) * late_s
    runs = chain.active[0][:, None]
    latency_s = jnp.where(runs, _or_infinite(latency_s), 0.0)
    rest = jnp.where(runs, _or_infinite(tuned.objective - of_latency), 0.0)
    limit_s = latency_s.reshape(-1, latency_s.shape[-1])  # [N J, R]
    keeps = latency_s <= limit_s[:, None, None] * (1.0 + _SAME)
    cost = jnp.where(keeps, rest, jnp.inf)
    choice = jnp.argmin(cost, axis=2)  # [N J, N, R]
    least = jnp.min(cost, axis=2)
    reached_s = jnp.take_along_axis(latency_s[None], choice[:, :, None], axis=2)[:, :, 0]
    # The same choice stands under every limit up to the next; its own is the least.
    own_limit = jnp.max(reached_s, axis=1) >= limit_s * (1.0 - _SAME)
    total = jnp.where(own_limit, price_per_s * limit_s + jnp.sum(least, axis=1), jnp.inf)
    best = jax.lax.top_k(-_or_infinite(total).T, count)[1].T  # [count, R]
    found = jnp.take_along_axis(choice, best[:, None], axis=0)
    by_price = jnp.argmin(_or_infinite(tuned.objective), axis=1)[None]
    if count > 1:
        found = jnp.concatenate([found[: count - 1], by_price])
    return jnp.moveaxis(found, 0, 1)


def _or_infinite(values: Array) -> Array:
    return jnp.where(jnp.isnan(values), jnp.inf, values)
