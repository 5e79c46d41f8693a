"""Other partitions of a round, put together from candidates of each cluster by itself.

Around an incumbent the other clusters are a background: interference received, and unit
costs of interference caused, of latency and of the D2E band. Against it every cluster's
candidates are refined by themselves, all at once, and the clusters' choices are then
combined.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.core.batch_axis import max_nodes, select
from collapipe_jax.edge.cost.decision import Allocation, Routes
from collapipe_jax.edge.cost.fixed_partition import FixedPartition, fix_partition
from collapipe_jax.edge.cost.link_quality import received_interference_w
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.solver.allocate import Descent, descend_clusters, descend_jointly
from collapipe_jax.edge.solver.candidates import (
    SAME,
    Candidates,
    FixPartition,
    cheapest_within,
    join,
    mix,
    nan_to_inf,
    repeat,
    take,
    with_candidate_axis,
)
from collapipe_jax.edge.solver.cluster_search import (
    ClusterCandidates,
    cheapest,
    diverse,
    search_clusters,
    search_gateways,
)
from collapipe_jax.edge.solver.gateways import Uplinks
from collapipe_jax.edge.solver.limits import to_allocation
from collapipe_jax.edge.solver.neighbours import neighbour_candidates
from collapipe_jax.edge.solver.smooth_objective import (
    Coupling,
    Evaluation,
    band_multiplier,
    coupled_latency_cost,
)


class SearchConfig(NamedTuple):
    """How much a policy searches. Numbers of candidates are lengths of axes, and fixed.

    Attributes:
      allocation_steps: gradient steps, all clusters together, by iteration. All but the last are
        on every candidate; between two of these other partitions are proposed, the last time
        neighbours of the incumbent. By ``dssra`` the last are on the incumbent alone.
      candidates: how many, the incumbent included; at least 2.
      cluster_candidates: partitions of a cluster, besides its own.
      cluster_steps: gradient steps on each of these, its cluster by itself; by ``dssra`` at least.
      starts: of ``dssra``, at least. Small networks have more anyway.
      gateways: whether gateways are decided, from those of the problem's routes on. A scalar, so
        that one program searches with and without; None where there is nothing to decide.
    """

    allocation_steps: tuple[int, ...] = (20, 20, 20, 40, 60)
    candidates: int = 3
    cluster_candidates: int = 8
    cluster_steps: int | Array = 8
    starts: int = 1
    gateways: bool | Array | None = None


class Incumbent(NamedTuple):
    """The best candidate, without the axis of candidates."""

    candidate: Candidates  # its partition and allocation
    fixed: FixedPartition  # its partition
    evaluation: Evaluation  # of its allocation


def _coupling_at(fixed: FixedPartition, allocation: Allocation, evaluation: Evaluation) -> Coupling:
    """Coupling of the clusters at an evaluated point.

    A point that uses a link which carries nothing has no finite costs. There every cluster
    answers for its own latency, and for nothing else.
    """
    usable = jnp.isfinite(evaluation.objective)
    clusters = fixed.active.shape[1]

    def if_usable(cost, otherwise=0.0):
        return jnp.where(usable, cost, otherwise)

    return Coupling(
        interference_w=received_interference_w(fixed, allocation),
        interference_cost_per_w=if_usable(evaluation.interference_cost_per_w),
        latency_cost_per_s=fixed.costs.latency_per_s
        * if_usable(evaluation.weights.cluster, 1.0 / clusters),
        round_s=if_usable(max_nodes(evaluation.cluster_latency_s)),
        bandwidth_cost=if_usable(band_multiplier(evaluation.slope.d2e_share)),
    )


def optimise(
    problem: RoundProblem,
    candidates: Candidates,
    steps: int | Array,
    fix: FixPartition = fix_partition,
) -> Incumbent:
    """Optimise the allocation of every candidate, and take the best."""
    fixed = candidates.fix(with_candidate_axis(problem), fix)
    start = candidates.logs, candidates.weights
    descent = descend_jointly(fixed, *start, steps, with_evaluation=True)
    candidates = candidates._replace(logs=descent.logs, weights=descent.weights)
    best = jnp.argmin(descent.objective, axis=0)
    return Incumbent(*take((candidates, fixed, descent.evaluation), best))


def propose_partitions(
    problem: RoundProblem,
    incumbent: Incumbent,
    config: SearchConfig,
    fix: FixPartition = fix_partition,
    nearby: Array | None = None,
) -> Candidates:
    """The incumbent, and the most promising candidates with other partitions.

    Where ``nearby`` is given and true, the clusters' candidates are neighbours of their own.
    """
    own, fixed, evaluation = incumbent
    allocation = to_allocation(fixed, own.logs)
    coupling = _coupling_at(fixed, allocation, evaluation)

    # Every cluster by itself, at the interference of the incumbent.
    def search():
        if config.gateways is not None:
            assert own.routes is not None
            found = search_gateways(problem, own.routes, allocation, coupling, config.gateways)
        else:
            found = search_clusters(problem, allocation, coupling)
        return diverse(found, config.cluster_candidates)

    def look_nearby():
        count = config.cluster_candidates
        return neighbour_candidates(problem, own, fixed, coupling, count, fix, config.gateways)

    found = search() if nearby is None else _either(nearby, look_nearby, search)
    found = cheapest(found, config.cluster_candidates)
    candidates = _with_own(found, own)
    # Some gradient steps tell which of these candidates are good.
    wide_problem, wide_coupling = with_candidate_axis((problem, coupling))
    wide = candidates.fix(wide_problem, fix)
    start, steps = candidates.logs, config.cluster_steps
    refined = descend_clusters(wide, start, wide_coupling, steps)
    candidates = candidates._replace(logs=refined.logs, weights=refined.weights)
    are_own = _are_own(candidates)
    refined = refined._replace(objective=_own_once(refined.objective, are_own))
    # The best combinations of one candidate a cluster, beside the incumbent.
    choices = _best_choices(wide, wide_coupling, refined, are_own, config.candidates - 1)
    weight = with_candidate_axis(own.weights.cluster)
    others = mix(candidates, choices, 0.5 * weight + 0.5 / weight.shape[0])
    return join(with_candidate_axis(own), others)


def _either(
    first: Array, one: Callable[[], ClusterCandidates], other: Callable[[], ClusterCandidates]
) -> ClusterCandidates:
    """One list of candidates or the other; the shorter ends with some of infinite cost."""
    one, other = jax.jit(one), jax.jit(other)  # each traced once, for its shapes and for its branch
    count = max(jax.eval_shape(each).cost.shape[1] for each in (one, other))

    def padded(found):
        missing = count - found.cost.shape[1]

        def pad(leaf, with_value):
            widths = [*[(0, 0)] * (leaf.ndim - 2), (0, missing), (0, 0)]
            return jnp.pad(leaf, widths, constant_values=with_value)

        filled = jax.tree.map(lambda leaf: pad(leaf, 0), found)
        return filled._replace(cost=pad(found.cost, jnp.inf))

    return jax.lax.cond(first, lambda: padded(one()), lambda: padded(other()))


def _with_own(found: ClusterCandidates, incumbent: Candidates) -> Candidates:
    """Candidates of every cluster by itself; the last is its own partition."""
    count, possible = found.cost.shape[1], jnp.isfinite(found.cost)
    own = incumbent.segments, incumbent.micro_batches, incumbent.logs, incumbent.routes
    own, routes = with_candidate_axis(own), incumbent.routes
    uplinks = repeat(Uplinks(incumbent.logs.d2e_share, incumbent.logs.d2e_power), count)
    if routes is not None:
        gateway = repeat(routes.gateway, count)
        if found.gateway is not None and found.uplinks is not None:
            gateway = jnp.where(possible, found.gateway, gateway)
            uplinks = select(possible, found.uplinks, uplinks)
        routes = Routes(gateway=gateway, broadcast=repeat(routes.broadcast, count))
    others = (
        jnp.where(possible, found.segments, own[0]),
        jnp.where(possible, found.micro_batches, own[1]),
        Allocation(
            d2d_share=found.log_share,
            d2d_power=found.log_power,
            d2e_share=uplinks.share,
            d2e_power=uplinks.power,
        ),
        routes,
    )
    segments, micro_batches, logs, routes = join(others, own)
    return Candidates(segments, micro_batches, logs, incumbent.weights, routes)


def _are_own(candidates: Candidates) -> Array:
    """Candidates of every cluster with partition and gateway of its last one, ``[N, C, R]``."""
    segments, micro_batches = candidates.segments, candidates.micro_batches
    same = jnp.all(segments == segments[:, :, -1:], axis=0)
    same &= micro_batches == micro_batches[:, -1:]
    if candidates.routes is not None:
        same &= candidates.routes.gateway == candidates.routes.gateway[:, -1:]
    return same


def _own_once(objective: Array, are_own: Array) -> Array:
    """Objectives, infinite for all copies of the own partition but the best."""
    best = jnp.argmin(jnp.where(are_own, nan_to_inf(objective), jnp.inf), axis=1, keepdims=True)
    is_best = jnp.arange(objective.shape[1])[:, None] == best
    return jnp.where(are_own & ~is_best, jnp.inf, objective)


def _best_choices(
    fixed: FixedPartition, coupling: Coupling, refined: Descent, are_own: Array, count: int
) -> Array:
    """Candidates of every cluster in each of the best combinations, ``[N, count, R]``.

    With the others as a background, a combination costs its latency, the largest of its
    clusters', and the sum of their other costs. So for every latency that some candidate
    has, every cluster takes the cheapest that keeps to it. The incumbent's partition is left
    out. The last combination takes each cluster's best by its own objective, if that is new.
    """
    per_s, latency_s = fixed.costs.latency_per_s, refined.cluster_latency_s  # [N, C, R]
    participates, objective = fixed.chain.members[0], nan_to_inf(refined.objective)
    other_costs = objective - coupled_latency_cost(coupling, fixed.costs, latency_s)
    latency_s = jnp.where(participates, nan_to_inf(latency_s), 0.0)
    other_costs = jnp.where(participates, nan_to_inf(other_costs), 0.0)
    limit_s, choice, least = cheapest_within(latency_s, other_costs)
    reached_s = jnp.take_along_axis(latency_s[None], choice[:, :, None], axis=2)[:, :, 0]
    # The same choice comes up under every limit until the next; its own is the least.
    own_limit = jnp.max(reached_s, axis=1) >= limit_s * (1.0 - SAME)

    def is_incumbent(choice):
        """Whether all clusters keep their own, by combination, ``[B, R]``."""
        kept = jnp.take_along_axis(are_own[None], choice[:, :, None], axis=2)
        return jnp.all(kept, axis=(1, 2))

    total = nan_to_inf(per_s * limit_s + jnp.sum(least, axis=1))
    total = jnp.where(own_limit & ~is_incumbent(choice), total, jnp.inf)
    best = jax.lax.top_k(-total.T, count)[1].T  # [count, R]
    found = jnp.take_along_axis(choice, best[:, None], axis=0)
    if count > 1:
        alone = jnp.argmin(jnp.where(participates, objective, 0.0), axis=1)[None]
        known = jnp.all(alone == found[:1], axis=1) | is_incumbent(alone)
        last = jnp.where(known[:, None], found[-1:], alone)
        found = jnp.concatenate([found[:-1], last])
    return jnp.moveaxis(found, 0, 1)
