"""Exhaustive search over the partitions of a small network: the reference for policies.

All compositions of the blocks over the devices, with every number of micro-batches, for all
clusters jointly. Lower bounds leave few to solve. The first are sums over clusters, each by
itself. Three terms couple the clusters (docs/system-model.md, section 5), and each is relaxed:
the maximum of latencies to a mean with weights of sum 1, interference to none, and the limit of
the D2E band to a Lagrangian term. Later bounds are certificates of the joint solutions.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.core.batch_axis import batch_last
from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.computing import set_capacity
from collapipe_jax.edge.cost.decision import Allocation, Decision
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.fixed_partition import fix_decision, fix_partition
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.solver.allocate import (
    Solution,
    certified,
    descend_clusters,
    descend_jointly,
)
from collapipe_jax.edge.solver.limits import to_logs
from collapipe_jax.edge.solver.smooth_maximum import Weights, initial_weights
from collapipe_jax.edge.solver.smooth_objective import Coupling, band_multiplier, certify

MOST_PARTITIONS = 1_000_000
"""Joint partitions whose bounds fit in memory."""

_BATCH = 64
_STAGES = (20, 80, 300, 1000)
"""Gradient steps of descents, each from where the last ended. Partitions that no bound has ruled
out are solved again with one stage more."""
_CLUSTER_STEPS = 80
_WEIGHT_PARTS = 8
_LEAST_WEIGHT = 0.1
_TOLERANCE = 1e-5
ROUNDING = {"float32": 2e-5, "float64": 1e-9}
"""Relative error of a lower bound."""


class ExhaustiveSolution(NamedTuple):
    """The best decision of all, and how much was searched."""

    decision: Decision  # the best
    objective: float  # its objective
    lower_bound: float  # of the objective over all decisions, less rounding
    partitions: int  # joint partitions in all
    solved: int  # those with optimised shares and powers; bounds ruled out the others


def exhaustive(
    problem: RoundProblem, start: Decision | None = None, tolerance: float = _TOLERANCE
) -> ExhaustiveSolution:
    """Best decision of a round of a small network. A host loop, not to be compiled.

    Args:
      problem: one round of one small network.
      start: a feasible decision to beat, the static pipeline's by default. The better it
        is, the less is left to solve.
      tolerance: relative; partitions that could not be better by more are skipped.

    Raises:
      InputError: if there are more than :data:`MOST_PARTITIONS` joint partitions.
    """
    own = enumerate_partitions(problem)
    count = math.prod(own.allowed.sum(axis=0).tolist())
    if count > MOST_PARTITIONS:
        remedy = "Take fewer devices, blocks or numbers of micro-batches"
        raise InputError("joint partitions", count, f"more than {MOST_PARTITIONS}", remedy)
    choices = [np.flatnonzero(allowed) for allowed in own.allowed.T]
    joint = np.stack([part.ravel() for part in np.meshgrid(*choices, indexing="ij")], axis=1)
    best = static_pipeline(problem, 1) if start is None else start
    objective = float(jax.jit(evaluate)(problem, best).objective)

    def solve(batch, stages: int):
        """Solve segments and micro-batches from some points, and keep the best decision."""
        nonlocal best, objective
        filled = np.minimum(np.arange(_BATCH), len(batch[0]) - 1)  # so that all have one size
        steps = np.where(np.arange(len(_STAGES)) < stages, _STAGES, 0)
        full = jax.tree.map(lambda leaf: leaf[filled], batch)
        found = jax.device_get(_solve(problem, *full, steps))
        first = np.argmin(np.nan_to_num(found.solution.objective, nan=np.inf))
        if found.solution.objective[first] < objective:
            objective = float(found.solution.objective[first])
            best = jax.tree.map(lambda leaf: jnp.asarray(leaf[first]), found.solution.decision)
        return found

    alone = best.segments, best.micro_batches, _point_of(problem, best)
    found = solve(jax.tree.map(lambda leaf: np.asarray(leaf)[None], alone), stages=3)
    # Any cost gives a bound; a start of infinite cost leaves 0.
    bandwidth_cost = float(np.nan_to_num(found.bandwidth_cost[0], posinf=0.0))
    bound, point = _sums_of_bounds(problem, own, joint, bandwidth_cost)
    solved = np.zeros(count, bool)
    for stages in range(1, len(_STAGES) + 1):
        left = np.flatnonzero(bound < objective * (1.0 - tolerance))
        left = left[np.argsort(bound[left], kind="stable")]
        for first in range(0, len(left), _BATCH):
            which = left[first : first + _BATCH]
            if bound[which[0]] >= objective * (1.0 - tolerance):
                break
            partition = own.segments[joint[which]], own.micro_batches[joint[which]]
            found = solve((*partition, point(which)), stages)
            certificates = found.solution.lower_bound[: len(which)]
            bound[which], solved[which] = np.fmax(bound[which], certificates), True
    # The best partition's bound is among them, so only rounding lifts the least above the
    # objective.
    least = float(np.min(bound))
    rounding = ROUNDING[problem.radio.d2d_gain.dtype.name] * abs(least)
    lower_bound = min(least, objective) - rounding
    return ExhaustiveSolution(best, objective, lower_bound, count, int(np.sum(solved)))


class Partitions(NamedTuple):
    """All partitions of a cluster; the last is of zeros, for one that cannot participate."""

    segments: np.ndarray  # integers, ``[J, K]``
    micro_batches: np.ndarray  # integers, ``[J]``
    allowed: np.ndarray  # those that each cluster may take, booleans ``[J, N]``; one at least


def enumerate_partitions(problem: RoundProblem) -> Partitions:
    """Every partition of a cluster, and which of them the clusters' memory allows."""
    splits = compositions(int(problem.workload.cluster_blocks), problem.devices)
    counts = np.unique(np.asarray(problem.workload.micro_batch_choices))
    work, memory_bytes = problem.workload, problem.compute.memory_bytes[None]
    active = jnp.asarray(splits[:, None] > 0)
    capacity = np.stack([set_capacity(work, memory_bytes, count, active, 2) for count in counts])
    fits = np.all(splits[:, None] <= capacity, axis=3).reshape(-1, problem.clusters)
    return Partitions(
        segments=np.concatenate([np.tile(splits, (len(counts), 1)), np.zeros_like(splits[:1])]),
        micro_batches=np.append(np.repeat(counts, len(splits)), counts[-1]),
        allowed=np.concatenate([fits, ~np.any(fits, axis=0, keepdims=True)]),
    )


def compositions(total: int, parts: int) -> np.ndarray:
    """All ways to write a number as an ordered sum of some parts, zeros allowed, one a row."""
    bars = itertools.combinations(range(total + parts - 1), parts - 1)
    ends = np.array([(-1, *places, total + parts - 1) for places in bars], np.int32)
    return np.diff(ends, axis=1) - 1


class _Point(NamedTuple):
    """Logarithms of shares and powers, and weights of the maxima."""

    logs: Allocation
    weights: Weights


class _Found(NamedTuple):
    """Solution of a joint partition, and the cost of the whole D2E band there."""

    solution: Solution
    bandwidth_cost: Array


@jax.jit
def _point_of(problem: RoundProblem, decision: Decision) -> _Point:
    def find(problem, decision):
        fixed = fix_decision(problem, decision)
        return _Point(to_logs(fixed, decision), initial_weights(fixed))

    return batch_last(find)(problem, decision)


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0, 0, 0, None))
def _solve(problem, segments: Array, micro_batches: Array, start: _Point, steps: Array) -> _Found:
    def solve(problem, segments, micro_batches, start, steps):
        partition = jnp.swapaxes(segments, 0, 1), micro_batches
        fixed = fix_partition(problem, *partition)

        def descend(point: _Point, steps):
            (logs, weights), steps = point, jnp.max(steps)  # the same in all problems
            found = descend_jointly(fixed, logs, weights, steps, with_evaluation=True)
            assert found.evaluation is not None
            solution = certified(fixed, *partition, found.logs, found.evaluation)
            bandwidth_cost = band_multiplier(found.evaluation.slope.d2e_share)
            return _Point(found.logs, found.weights), _Found(solution, bandwidth_cost)

        _, found = jax.lax.scan(descend, start, steps)
        return jax.tree.map(lambda leaf: leaf[-1], found)

    return batch_last(solve)(problem, segments, micro_batches, start, steps)


def _sums_of_bounds(
    problem: RoundProblem, own: Partitions, joint: np.ndarray, bandwidth_cost: float
) -> tuple[np.ndarray, Callable[[np.ndarray], _Point]]:
    """Lower bounds ``[B]`` of joint partitions, the best over some weights of latencies.

    Returns:
      Also the points to start from at some places of ``joint``, every cluster at its best alone.
    """
    clusters = range(problem.clusters)
    # With weight 0 the cost of latency would have no curvature.
    weights = np.arange(_WEIGHT_PARTS + 1) + _LEAST_WEIGHT
    weights = weights / (_WEIGHT_PARTS + len(clusters) * _LEAST_WEIGHT)
    weights = weights.astype(problem.radio.d2d_gain.dtype)
    own_weights = np.repeat(weights[:, None], len(clusters), axis=1)
    found = jax.device_get(bound_clusters(problem, *own[:2], own_weights, bandwidth_cost))
    each, points = np.nan_to_num(found.bound.astype(np.float64), nan=-np.inf), found.point
    parts = compositions(_WEIGHT_PARTS, len(clusters))
    bound, best = np.full(len(joint), -np.inf), np.zeros(len(joint), np.int32)
    for index, part in enumerate(parts):
        total = sum(each[part[n], joint[:, n], n] for n in clusters) - bandwidth_cost
        bound, best = np.maximum(bound, total), np.where(total > bound, index, best)

    def point(which: np.ndarray) -> _Point:
        part = parts[best[which]]

        def pick(leaf):
            own = [leaf[part[:, n], joint[which, n], ..., n] for n in clusters]
            return np.stack(own, axis=-1)

        logs, maxima = jax.tree.map(pick, points)
        return _Point(logs, maxima._replace(cluster=weights[part]))

    return bound, point


class ClusterBounds(NamedTuple):
    """Lower bounds of the cost of clusters, each by itself, and where they were found."""

    bound: Array  # ``[W, J, N]``
    latency_s: Array  # ``[W, J, N]``
    point: _Point


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, None, None, 0, None))
@functools.partial(jax.vmap, in_axes=(None, 0, 0, None, None))
def bound_clusters(
    problem: RoundProblem,
    segments: Array,
    micro_batches: Array,
    weights: Array,
    bandwidth_cost: Array,
) -> ClusterBounds:
    """Bounds of the cost of weighted latency, energy, divergence and D2E band of each cluster.

    Args:
      problem: one round of one network.
      segments: ``[J, K]``, tried by every cluster.
      micro_batches: ``[J]``.
      weights: of the clusters' latencies in the mean, ``[W, N]``, positive.
      bandwidth_cost: of the whole D2E band, scalar.
    """

    def solve(problem, segments, micro_batches, weights, bandwidth_cost):
        fixed = fix_partition(problem, segments, micro_batches)
        node, per_s = jnp.zeros_like(fixed.hop_bits), weights * fixed.costs.latency_per_s
        fixed = fixed.replace(costs=fixed.costs._replace(latency_per_s=per_s))
        coupling = Coupling(
            interference_w=node,
            interference_cost_per_w=node,
            latency_cost_per_s=node[0] + per_s,
            round_s=jnp.zeros_like(bandwidth_cost),
            bandwidth_cost=bandwidth_cost,
        )
        # Full power; D2D shares of 1, which the descent projects to its limits.
        start = Allocation(node, node, node[0] - jnp.log(1.0 * node.shape[1]), node[0])
        found = descend_clusters(fixed, start, coupling, _CLUSTER_STEPS, with_evaluation=True)
        assert found.evaluation is not None
        bound = certify(found.evaluation, found.logs, fixed.chain.used, joint=False).lower_bound
        latency_s = found.evaluation.cluster_latency_s
        return ClusterBounds(bound, latency_s, _Point(found.logs, found.weights))

    segments = jnp.broadcast_to(segments[:, None], (problem.devices, problem.clusters))
    micro_batches = jnp.broadcast_to(micro_batches, (problem.clusters,))
    return batch_last(solve)(problem, segments, micro_batches, weights, bandwidth_cost)
