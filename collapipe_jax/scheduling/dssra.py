"""DSSRA: dynamic segment scheduling and resource allocation, one round of (P2).

Segments and micro-batches (by candidates) and shares and powers (by projected gradient)
improve in turn, from a static pipeline. Nothing is kept that does not lower the
objective, so the answer is never worse than the static pipeline.
"""

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.cost.decision import Decision, active_nodes
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round import price
from collapipe_jax.scheduling.baselines import static_pipeline
from collapipe_jax.scheduling.feasibility import can_run
from collapipe_jax.scheduling.resources import tune_resources
from collapipe_jax.scheduling.segments import LatencyPrice, propose_segments

_NEARLY_SLOWEST = 0.05
_TUNED_PROPOSALS = 3


def dssra(
    problem: RoundProblem, micro_batches: int = 8, alternations: int = 3, steps: int = 40
) -> Decision:
    """Decide a round by drift plus penalty.

    Args:
      problem: one round of one network.
      micro_batches: of the static pipeline to start from.
      alternations: of segments with resources.
      steps: gradient steps on shares and powers in each.

    Returns:
      A feasible decision; its objective is at most that of this static pipeline.
    """

    def alternate(decision, _):
        starts = _best_layouts(problem, decision)
        tuned, objective = jax.vmap(lambda start: tune_resources(problem, start, steps))(starts)
        best = jnp.argmin(objective)
        return jax.tree.map(lambda leaf: leaf[best], tuned), None

    start = static_pipeline(problem, micro_batches)
    decision, _ = jax.lax.scan(alternate, start, length=alternations)
    return decision


def _best_layouts(problem: RoundProblem, incumbent: Decision) -> Decision:
    """Incumbent and the best proposals, taken for all clusters or for one alone, stacked.

    Resources tuned to one layout speak for it, so a proposal may only win once its own
    are tuned too.
    """
    cost = price(problem, incumbent)
    tentative = _with_tentative_idle(problem, incumbent)
    prices = _latency_prices(problem, cost.cluster_latency_s)
    proposals = jax.vmap(lambda view: propose_segments(problem, tentative, view))(prices)
    candidates = jax.tree.map(
        lambda kept, new: jnp.concatenate([new, _one_by_one(kept, new)]), incumbent, proposals
    )
    objective = jax.vmap(lambda decision: price(problem, decision).objective)(candidates)
    best = jnp.argsort(objective)[:_TUNED_PROPOSALS]
    return jax.tree.map(
        lambda kept, new: jnp.concatenate([kept[None], new[best]]), incumbent, candidates
    )


def _one_by_one(kept: Array, new: Array) -> Array:
    """Rows of one cluster at a time from proposals ``[P, N, ...]``: ``[P N, N, ...]``."""
    clusters = kept.shape[0]
    own = jnp.eye(clusters, dtype=bool).reshape(1, clusters, clusters, *[1] * (kept.ndim - 1))
    mixed = jnp.where(own, new[:, None], kept[None, None])
    return mixed.reshape(-1, *kept.shape)


def _latency_prices(problem: RoundProblem, latency_s: Array) -> LatencyPrice:
    """Two views of what a cluster's latency is worth, stacked ``[2, N]``.

    By the maximum: only seconds beyond the slowest other cluster count, exact while the
    others stand still. By shares: clusters that are nearly the slowest divide the price
    of the round's latency, as its dual variables do where several are slowest.
    """
    clusters = latency_s.shape[0]
    whole = problem.control.v / problem.control.reference_latency_s
    others = jnp.where(jnp.eye(clusters, dtype=bool), 0.0, latency_s[None, :])
    by_maximum = LatencyPrice(jnp.full(clusters, whole), jnp.max(others, axis=1))
    slowest = jnp.max(latency_s)
    scale = _NEARLY_SLOWEST * jnp.where(slowest > 0, slowest, 1.0)
    share = jax.nn.softmax((latency_s - slowest) / scale)
    by_share = LatencyPrice(whole * jnp.maximum(share, 0.1 / clusters), jnp.zeros(clusters))
    return jax.tree.map(lambda *views: jnp.stack(views), by_maximum, by_share)


def _with_tentative_idle(problem: RoundProblem, decision: Decision) -> Decision:
    """Give idle nodes the share and power that they would get as average members.

    At full power, where the active ones save theirs, they would never look worth it.
    """
    active = active_nodes(decision.segments)
    active_count = jnp.maximum(jnp.sum(active, axis=1, keepdims=True), 1)
    runs = can_run(problem)[:, None]
    limit_w = problem.radio.d2d_power_max_w
    sends = active & (limit_w > 0)
    ratio = jnp.where(sends, decision.d2d_power_w / jnp.where(sends, limit_w, 1.0), 1.0)
    mean_ratio = jnp.exp(jnp.sum(jnp.log(ratio), axis=1, keepdims=True) / active_count)
    share = jnp.where(active, decision.d2d_share, 1.0 / active_count)
    power_w = jnp.where(active, decision.d2d_power_w, mean_ratio * limit_w)
    return decision.replace(
        d2d_share=jnp.where(runs, share, 0.0), d2d_power_w=jnp.where(runs, power_w, 0.0)
    )
