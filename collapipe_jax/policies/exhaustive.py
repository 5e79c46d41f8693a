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
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.allocation.allocate import Solution, certified, descend_clusters, descend_jointly
from collapipe_jax.allocation.certificate import band_multiplier, certify
from collapipe_jax.allocation.evaluation import Coupling
from collapipe_jax.allocation.smooth_maximum import initial_weights
from collapipe_jax.allocation.variables import to_logs
from collapipe_jax.batching import batch_last
from collapipe_jax.cost.decision import Allocation, Decision
from collapipe_jax.cost.evaluate import evaluate
from collapipe_jax.cost.feasibility import usable_blocks
from collapipe_jax.cost.fixed_partition import fix_partition
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.static_pipeline import static_pipeline, with_equal_allocation
from collapipe_jax.errors import InputError

MOST_PARTITIONS = 1_000_000
"""Joint partitions whose bounds fit in memory."""

_BATCH = 64
_ROUNDS = (20, 80, 300, 1000)
"""Gradient steps on partitions that no bound has ruled out yet."""
_START_STEPS = 300
_CLUSTER_STEPS = 80
_WEIGHT_PARTS = 8
_LEAST_WEIGHT = 0.1
_ROUNDING = {"float32": 2e-5, "float64": 1e-9}
"""Relative error of a lower bound."""


class ExhaustiveSolution(NamedTuple):
    """The best decision of all, and how much was searched."""

    decision: Decision  # the best
    objective: float  # its objective
    lower_bound: float  # of the objective over all decisions, less rounding
    partitions: int  # joint partitions in all
    solved: int  # those with optimised shares and powers; bounds ruled out the others


def exhaustive(
    problem: RoundProblem, start: Decision | None = None, tolerance: float = 1e-5
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

    def solve(segments: np.ndarray, micro_batches: np.ndarray, steps: int):
        """Solve a batch, filled up to one size, and keep the best decision."""
        nonlocal best, objective
        filled = np.minimum(np.arange(_BATCH), len(segments) - 1)
        found = jax.device_get(_solve(problem, segments[filled], micro_batches[filled], steps))
        first = np.argmin(np.nan_to_num(found.solution.objective, nan=np.inf))
        if found.solution.objective[first] < objective:
            objective = float(found.solution.objective[first])
            best = jax.tree.map(lambda leaf: jnp.asarray(leaf[first]), found.solution.decision)
        return found

    segments, micro_batches = np.asarray(best.segments), np.asarray(best.micro_batches)
    found = solve(segments[None], micro_batches[None], _START_STEPS)
    # Any cost gives a bound; a start of infinite cost leaves 0.
    bandwidth_cost = float(np.nan_to_num(found.bandwidth_cost[0], posinf=0.0))
    bound = _sums_of_bounds(problem, own, joint, bandwidth_cost)
    solved = np.zeros(count, bool)
    for steps in _ROUNDS:
        left = np.flatnonzero(bound < objective * (1.0 - tolerance))
        left = left[np.argsort(bound[left], kind="stable")]
        for first in range(0, len(left), _BATCH):
            which = left[first : first + _BATCH]
            if bound[which[0]] >= objective * (1.0 - tolerance):
                break
            found = solve(own.segments[joint[which]], own.micro_batches[joint[which]], steps)
            certificates = found.solution.lower_bound[: len(which)]
            bound[which], solved[which] = np.fmax(bound[which], certificates), True
    # The best partition's bound is among them, so only rounding lifts the least above the
    # objective.
    least = float(np.min(bound))
    rounding = _ROUNDING[problem.radio.d2d_gain.dtype.name] * abs(least)
    lower_bound = min(least, objective) - rounding
    return ExhaustiveSolution(best, objective, lower_bound, count, int(np.sum(solved)))


class Partitions(NamedTuple):
    """All partitions of a cluster; the last is of zeros, for one that cannot participate."""

    segments: np.ndarray  # integers, ``[J, K]``
    micro_batches: np.ndarray  # integers, ``[J]``
    allowed: np.ndarray  # those that each cluster may take, booleans ``[J, N]``; one at least


def enumerate_partitions(problem: RoundProblem) -> Partitions:
    """Every partition of a cluster, and which of them the clusters' memory allows."""
    splits = compositions(problem.workload.blocks, problem.devices)
    counts = np.unique(np.asarray(problem.workload.micro_batch_choices))
    capacity = np.stack([np.asarray(usable_blocks(problem, count)) for count in counts])
    fits = np.all(splits[:, None] <= capacity[:, None], axis=3).reshape(-1, problem.clusters)
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


class _Found(NamedTuple):
    """Solution of a joint partition, and the cost of the whole D2E band there."""

    solution: Solution
    bandwidth_cost: Array


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0, 0, None))
def _solve(problem: RoundProblem, segments: Array, micro_batches: Array, steps: Array) -> _Found:
    def solve(problem, decision, steps):
        partition = decision.segments, decision.micro_batches
        fixed = fix_partition(problem, *partition)
        logs, weights = to_logs(problem, fixed.active, decision), initial_weights(fixed)
        steps = jnp.max(steps)
        found = descend_jointly(problem, fixed, logs, weights, steps, with_evaluation=True)
        solution = certified(problem, fixed, *partition, found.logs, found.evaluation)
        return _Found(solution, band_multiplier(found.evaluation.slope.d2e_share))

    decision = with_equal_allocation(problem, segments, micro_batches)
    return batch_last(solve)(problem, decision, steps)


def _sums_of_bounds(
    problem: RoundProblem, own: Partitions, joint: np.ndarray, bandwidth_cost: float
) -> np.ndarray:
    """Lower bounds ``[B]`` of joint partitions, the best over some weights of latencies.

    Args:
      problem: one round of one network.
      own: partitions of a cluster.
      joint: row of ``own`` for every cluster, ``[B, N]``.
      bandwidth_cost: of the whole D2E band.
    """
    clusters = range(problem.clusters)
    # With weight 0 the cost of latency would have no curvature.
    weights = np.arange(_WEIGHT_PARTS + 1) + _LEAST_WEIGHT
    weights = weights / (_WEIGHT_PARTS + len(clusters) * _LEAST_WEIGHT)
    weights = weights.astype(problem.radio.d2d_gain.dtype)
    found = bound_clusters(problem, own.segments, own.micro_batches, weights, bandwidth_cost)
    each = np.nan_to_num(np.asarray(found, np.float64), nan=-np.inf)
    bound = np.full(len(joint), -np.inf)
    for part in compositions(_WEIGHT_PARTS, len(clusters)):
        total = sum(each[part[n], joint[:, n], n] for n in clusters) - bandwidth_cost
        bound = np.maximum(bound, total)
    return bound


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, None, None, 0, None))
@functools.partial(jax.vmap, in_axes=(None, 0, 0, None, None))
def bound_clusters(
    problem: RoundProblem,
    segments: Array,
    micro_batches: Array,
    weight: Array,
    bandwidth_cost: Array,
) -> Array:
    """Bounds of the cost of each cluster by itself, ``[W, J, N]``.

    Of weighted latency, energy, divergence and D2E band.

    Args:
      problem: one round of one network.
      segments: ``[J, K]``, tried by every cluster.
      micro_batches: ``[J]``.
      weight: of a cluster's latency in the mean, ``[W]``, positive.
      bandwidth_cost: of the whole D2E band, scalar.
    """

    def solve(problem, segments, micro_batches, weight, bandwidth_cost):
        fixed = fix_partition(problem, segments, micro_batches)
        per_s, node = weight * fixed.costs.latency_per_s, jnp.zeros_like(fixed.hop_bits)
        fixed = fixed.replace(costs=fixed.costs._replace(latency_per_s=per_s))
        coupling = Coupling(
            interference_w=node,
            interference_cost_per_w=node,
            latency_cost_per_s=node[0] + per_s,
            round_s=jnp.zeros_like(per_s),
            bandwidth_cost=bandwidth_cost,
        )
        # Full power; D2D shares of 1, which the descent projects to its limits.
        start = Allocation(node, node, node[0] - jnp.log(1.0 * node.shape[1]), node[0])
        steps = _CLUSTER_STEPS
        found = descend_clusters(problem, fixed, start, coupling, steps, with_evaluation=True)
        return certify(found.evaluation, found.logs, fixed.active, joint=False).lower_bound

    segments = jnp.broadcast_to(segments, (problem.clusters, problem.devices))
    micro_batches = jnp.broadcast_to(micro_batches, (problem.clusters,))
    return batch_last(solve)(problem, segments, micro_batches, weight, bandwidth_cost)
