"""Exhaustive search over the partitions of a small network: the reference for policies.

All compositions of the blocks over the devices, with every number of micro-batches, for all
clusters jointly. Lower bounds leave few to solve: first sums of bounds of single clusters,
then, in their order, the certificates of joint solutions with few steps.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.allocation.allocate import Solution, certified, descend_jointly
from collapipe_jax.allocation.certificate import band_multiplier
from collapipe_jax.allocation.smooth_maximum import Weights, initial_weights
from collapipe_jax.allocation.variables import to_logs
from collapipe_jax.batching import batch_last
from collapipe_jax.cost.decision import Allocation, Decision
from collapipe_jax.cost.evaluate import evaluate
from collapipe_jax.cost.fixed_partition import fix_partition
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.static_pipeline import static_pipeline
from collapipe_jax.errors import InputError
from collapipe_jax.policies.cluster_bounds import ClusterBounds, bound_clusters
from collapipe_jax.policies.enumeration import (
    ClusterPartitions,
    compositions,
    enumerate_partitions,
)

MOST_PARTITIONS = 1_000_000
"""Joint partitions whose bounds and starting points fit in memory."""

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
    """The best decision of all, and how much was searched.

    Attributes:
      decision: the best.
      objective: its objective.
      lower_bound: of the objective over all decisions, less rounding.
      partitions: joint partitions in all.
      solved: those with optimised shares and powers; bounds ruled out the others.
    """

    decision: Decision
    objective: float
    lower_bound: float
    partitions: int
    solved: int


def exhaustive(
    problem: RoundProblem, start: Decision | None = None, tolerance: float = 1e-5
) -> ExhaustiveSolution:
    """Best decision of a round over all its partitions. A host loop, not to be compiled.

    Args:
      problem: one round of one small network.
      start: a feasible decision to beat, the static pipeline's by default. The better it
        is, the less is left to solve.
      tolerance: relative; partitions that could not be better by more are skipped.

    Raises:
      InputError: if there are more than :data:`MOST_PARTITIONS` joint partitions.
    """
    partitions = enumerate_partitions(problem)
    count = math.prod(len(each.micro_batches) for each in partitions)
    if count > MOST_PARTITIONS:
        remedy = "Take fewer devices, blocks or numbers of micro-batches"
        raise InputError("joint partitions", count, f"more than {MOST_PARTITIONS}", remedy)
    if start is None:
        start = static_pipeline(problem, 1)
    search = _Search(problem, partitions, start, tolerance)
    for steps in _ROUNDS:
        search.refine(steps)
    return search.result()


class _Points(NamedTuple):
    """Points of joint partitions, along a leading axis.

    Attributes:
      logs: logarithms of shares and powers.
      weights: of the maxima.
    """

    logs: Allocation
    weights: Weights


class _Refined(NamedTuple):
    """Solutions of joint partitions.

    Attributes:
      points: to continue from.
      solution: decisions, objectives and bounds.
      bandwidth_cost: of the D2E band.
    """

    points: _Points
    solution: Solution
    bandwidth_cost: Array


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0, 0, 0, None))
def _refine(problem, segments, micro_batches, points: _Points, steps) -> _Refined:
    def solve(problem, segments, micro_batches, points, steps):
        fixed = fix_partition(problem, segments, micro_batches)
        logs, weights = points
        steps = jnp.max(steps)
        found = descend_jointly(problem, fixed, logs, weights, steps, with_evaluation=True)
        return _Refined(
            _Points(found.logs, found.weights),
            certified(problem, fixed, segments, micro_batches, found.logs, found.evaluation),
            band_multiplier(found.evaluation.slope.d2e_share),
        )

    return batch_last(solve)(problem, segments, micro_batches, points, steps)


@jax.jit
def _point_of(problem, decision: Decision) -> _Points:
    def solve(problem, decision):
        fixed = fix_partition(problem, decision.segments, decision.micro_batches)
        return _Points(to_logs(problem, fixed.active, decision), initial_weights(fixed))

    return batch_last(solve)(problem, decision)


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, None, None, 0, None))
@functools.partial(jax.vmap, in_axes=(None, 0, 0, None, None))
def _bound_clusters(problem, segments, micro_batches, weight, bandwidth_cost) -> ClusterBounds:
    return bound_clusters(problem, segments, micro_batches, weight, bandwidth_cost, _CLUSTER_STEPS)


class _Search:
    """Bounds and points of every joint partition, numbered as in ``np.ndindex``."""

    def __init__(
        self,
        problem: RoundProblem,
        partitions: list[ClusterPartitions],
        start: Decision,
        tolerance: float,
    ):
        self.problem, self.tolerance = problem, tolerance
        self.sizes = tuple(len(each.micro_batches) for each in partitions)
        self.segments, self.micro_batches = _side_by_side(problem, partitions)
        self.decision = start
        self.objective = float(jax.jit(evaluate)(problem, start).objective)
        self.solved = np.zeros(math.prod(self.sizes), bool)
        bandwidth_cost = self._optimise_start(start)
        self.bound, self.points, self.open = self._bound_all(bandwidth_cost)

    def refine(self, steps: int) -> None:
        """Solve open partitions in order of their bounds, and close those they rule out."""
        self._keep(np.argsort(self.bound[self.open], kind="stable"))
        for first in range(0, len(self.open), _BATCH):
            if self.bound[self.open[first]] >= self._enough():
                break
            self._refine_batch(np.arange(first, min(first + _BATCH, len(self.open))), steps)
        self._keep(np.flatnonzero(self.bound[self.open] < self._enough()))

    def result(self) -> ExhaustiveSolution:
        """The best so far."""
        # The best partition's bound is among them, so only rounding lifts the least above
        # the objective.
        least = float(np.min(self.bound))
        rounding = _ROUNDING[self.problem.radio.d2d_gain.dtype.name]
        lower_bound = min(least, self.objective) - rounding * abs(least)
        return ExhaustiveSolution(
            decision=self.decision,
            objective=self.objective,
            lower_bound=lower_bound,
            partitions=len(self.bound),
            solved=int(np.sum(self.solved)),
        )

    def _enough(self) -> float:
        return self.objective * (1.0 - self.tolerance)

    def _optimise_start(self, start: Decision) -> float:
        """Optimise the start's allocation; returns the cost of the D2E band there."""
        one = start.segments, start.micro_batches, _point_of(self.problem, start)
        segments, micro_batches, points = jax.tree.map(lambda leaf: np.asarray(leaf)[None], one)
        found = self._solve(segments, micro_batches, points, _START_STEPS)
        self._take_best(found)
        # Any cost gives a bound; a start of infinite cost leaves 0.
        return float(np.nan_to_num(found.bandwidth_cost[0], posinf=0.0))

    def _solve(self, segments, micro_batches, points: _Points, steps: int) -> _Refined:
        """Solve a batch, padded with its last partition to a fixed size."""
        count = len(segments)
        index = np.minimum(np.arange(_BATCH), count - 1)
        full = jax.tree.map(lambda leaf: leaf[index], (segments, micro_batches, points))
        found = jax.device_get(_refine(self.problem, *full, steps))
        return jax.tree.map(lambda leaf: leaf[:count], found)

    def _take_best(self, found: _Refined) -> None:
        objective = np.where(np.isnan(found.solution.objective), np.inf, found.solution.objective)
        best = int(np.argmin(objective))
        if objective[best] < self.objective:
            self.objective = float(objective[best])
            decision = found.solution.decision
            self.decision = jax.tree.map(lambda leaf: jnp.asarray(leaf[best]), decision)

    def _refine_batch(self, places: np.ndarray, steps: int) -> None:
        """Solve some open partitions, by their places among the open ones."""
        which = self.open[places]
        here = jax.tree.map(lambda leaf: leaf[places], self.points)
        found = self._solve(*self._partitions(which), here, steps)
        self._take_best(found)
        self.bound[which] = np.fmax(self.bound[which], found.solution.lower_bound)
        self.solved[which] = True
        jax.tree.map(lambda kept, new: _put(kept, places, new), self.points, found.points)

    def _partitions(self, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Segments ``[B, N, K]`` and micro-batches ``[B, N]`` of joint partitions."""
        own = np.unravel_index(which, self.sizes)
        clusters = range(len(self.sizes))
        segments = np.stack([self.segments[own[n], n] for n in clusters], axis=1)
        return segments, np.stack([self.micro_batches[own[n], n] for n in clusters], axis=1)

    def _keep(self, places: np.ndarray) -> None:
        self.open = self.open[places]
        self.points = jax.tree.map(lambda leaf: leaf[places], self.points)

    def _bound_all(self, bandwidth_cost: float):
        """Bounds of all joint partitions, and points of those that stay open."""
        clusters = len(self.sizes)
        parts = compositions(_WEIGHT_PARTS, clusters)
        # With weight 0 the cost of latency would have no curvature.
        weights = np.arange(_WEIGHT_PARTS + 1) + _LEAST_WEIGHT
        weights = weights / (_WEIGHT_PARTS + clusters * _LEAST_WEIGHT)
        dtype = self.problem.radio.d2d_gain.dtype
        partitions = self.segments, self.micro_batches
        found = jax.device_get(
            _bound_clusters(self.problem, *partitions, weights.astype(dtype), bandwidth_cost)
        )
        own = np.nan_to_num(found.lower_bound.astype(np.float64), nan=-np.inf)
        bound = np.full(math.prod(self.sizes), -np.inf)
        best = np.zeros(len(bound), np.int32)
        for index, part in enumerate(parts):
            rows = [own[part[n], : self.sizes[n], n] for n in range(clusters)]
            total = functools.reduce(np.add.outer, rows).reshape(-1) - bandwidth_cost
            best = np.where(total > bound, index, best)
            bound = np.maximum(bound, total)
        left = np.flatnonzero(bound < self._enough())
        places = np.unravel_index(left, self.sizes)
        return bound, _joint_points(found, weights, parts[best[left]], places), left


def _put(kept: np.ndarray, places: np.ndarray, new: np.ndarray) -> None:
    kept[places] = new


def _side_by_side(problem, partitions: list[ClusterPartitions]) -> tuple[np.ndarray, np.ndarray]:
    """Partitions ``[J, N, K]`` and ``[J, N]``; short lists are padded with their last."""
    # As many as there can be, so that one compiled function serves every network.
    most = math.comb(problem.workload.blocks + problem.devices - 1, problem.devices - 1)
    most *= len(problem.workload.micro_batch_choices)
    index = [np.minimum(np.arange(most), len(each.micro_batches) - 1) for each in partitions]
    chosen = list(zip(partitions, index, strict=True))
    return (
        np.stack([each.segments[i] for each, i in chosen], axis=1),
        np.stack([each.micro_batches[i] for each, i in chosen], axis=1),
    )


def _joint_points(found: ClusterBounds, weights, parts, places) -> _Points:
    """Starting points of joint partitions: every cluster at its best by itself.

    Args:
      found: of every weight and cluster's partition, ``[W, J, ...]``.
      weights: ``[W]``.
      parts: index of each cluster's weight, ``[B, N]``.
      places: index of its partition, ``[B]`` for every cluster.
    """

    def pick(leaf):
        columns = [leaf[parts[:, n], place, ..., n] for n, place in enumerate(places)]
        return np.stack(columns, axis=-1)

    logs, maxima = jax.tree.map(pick, (found.logs, found.weights))
    cluster = weights[parts].astype(maxima.cluster.dtype)
    return _Points(logs, maxima._replace(cluster=cluster))
