"""Every layout of a small network: the yardstick for what a policy decides.

All compositions of the blocks over the devices, with every number of micro-batches, for all
clusters jointly. Lower bounds leave few to solve: first those that add up the clusters' own,
then, for the joint layouts in order of these, the certificates of solutions with few steps.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.allocation.allocate import (
    Tuned,
    to_logs,
    tune_chains,
    with_certificate,
)
from collapipe_jax.allocation.projected_gradient import band_price
from collapipe_jax.allocation.variables import Multipliers, Resources, first_multipliers
from collapipe_jax.batching import on_lanes
from collapipe_jax.cost.chains import chains
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round import price
from collapipe_jax.cost.static_pipeline import static_pipeline
from collapipe_jax.errors import InputError
from collapipe_jax.policies.cluster_bounds import ClusterBounds, bound_clusters
from collapipe_jax.policies.enumeration import ClusterLayouts, compositions, enumerate_layouts

MOST_LAYOUTS = 1_000_000
"""Joint layouts that fit in memory with what is known of each."""

_BATCH = 64
_ROUNDS = (20, 80, 300, 1000)
"""Steps on what no bound has ruled out yet."""
_START_STEPS = 300
_CLUSTER_STEPS = 80
_WEIGHT_PARTS = 8
_LEAST_WEIGHT = 0.1
_ROUNDING = {"float32": 2e-5, "float64": 1e-9}
"""What rounding may put on a lower bound, relative."""


class Exhausted(NamedTuple):
    """The best decision of all, and how the search went.

    Attributes:
      decision: what to do.
      objective: (P2).
      lower_bound: of (P2) over all decisions, less what rounding may have put on it.
      layouts: joint layouts in all.
      solved: those whose shares and powers were looked for; bounds ruled out the others.
    """

    decision: Decision
    objective: float
    lower_bound: float
    layouts: int
    solved: int


def exhaustive(
    problem: RoundProblem, start: Decision | None = None, tolerance: float = 1e-5
) -> Exhausted:
    """Best decision of a round by looking at every layout. A host loop, not to be compiled.

    Args:
      problem: one round of one small network.
      start: a feasible decision to beat, the static pipeline's by default. The better it
        is, the less is left to solve.
      tolerance: relative; layouts that could not be better by more are left alone.

    Raises:
      InputError: if there are more than :data:`MOST_LAYOUTS` joint layouts.
    """
    layouts = enumerate_layouts(problem)
    count = math.prod(len(each.micro_batches) for each in layouts)
    if count > MOST_LAYOUTS:
        remedy = "Take fewer devices, blocks or numbers of micro-batches"
        raise InputError("joint layouts", count, f"more than {MOST_LAYOUTS}", remedy)
    if start is None:
        start = static_pipeline(problem, 1)
    search = _Search(problem, layouts, start, tolerance)
    for steps in _ROUNDS:
        search.refine(steps)
    return search.result()


class _Points(NamedTuple):
    """Where joint layouts have got to, one after another along a leading axis.

    Attributes:
      logs: of shares and powers.
      multipliers: of the maxima.
    """

    logs: Resources
    multipliers: Multipliers


class _Refined(NamedTuple):
    """Solutions of joint layouts.

    Attributes:
      points: where to go on from.
      tuned: decisions, objectives and bounds.
      price_per_share: of the D2E band.
    """

    points: _Points
    tuned: Tuned
    price_per_share: Array


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0, 0, 0, None))
def _refine(problem, segments, micro_batches, points: _Points, steps) -> _Refined:
    def solve(problem, segments, micro_batches, points, steps):
        chain = chains(problem, segments, micro_batches)
        found = tune_chains(problem, chain, *points, jnp.max(steps), with_price=True)
        layout = Decision(
            segments=segments,
            micro_batches=micro_batches,
            d2d_share=segments,  # shares and powers are filled in
            d2d_power_w=segments,
            d2e_share=micro_batches,
            d2e_power_w=micro_batches,
        )
        return _Refined(
            _Points(found.logs, found.multipliers),
            with_certificate(problem, chain, layout, found.logs, found.priced),
            band_price(found.priced.slope.d2e_share),
        )

    return on_lanes(solve)(problem, segments, micro_batches, points, steps)


@jax.jit
def _point_of(problem, decision: Decision) -> _Points:
    def solve(problem, decision):
        chain = chains(problem, decision.segments, decision.micro_batches)
        return _Points(to_logs(problem, chain, decision), first_multipliers(chain))

    return on_lanes(solve)(problem, decision)


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, None, None, 0, None))
@functools.partial(jax.vmap, in_axes=(None, 0, 0, None, None))
def _bound_clusters(problem, segments, micro_batches, weight, price_per_share) -> ClusterBounds:
    return bound_clusters(problem, segments, micro_batches, weight, price_per_share, _CLUSTER_STEPS)


class _Search:
    """What is known of every joint layout, numbered as in ``np.ndindex``."""

    def __init__(self, problem, layouts: list[ClusterLayouts], start: Decision, tolerance: float):
        self.problem, self.tolerance = problem, tolerance
        self.sizes = tuple(len(each.micro_batches) for each in layouts)
        self.segments, self.micro_batches = _side_by_side(problem, layouts)
        self.decision = start
        self.objective = float(jax.jit(price)(problem, start).objective)
        self.solved = np.zeros(math.prod(self.sizes), bool)
        band_price = self._tune_start(start)
        self.bound, self.points, self.open = self._bound_all(band_price)

    def refine(self, steps: int) -> None:
        """Solve what is open in order of bounds, and close what they rule out."""
        self._keep(np.argsort(self.bound[self.open], kind="stable"))
        for first in range(0, len(self.open), _BATCH):
            if self.bound[self.open[first]] >= self._enough():
                break
            self._refine_batch(np.arange(first, min(first + _BATCH, len(self.open))), steps)
        self._keep(np.flatnonzero(self.bound[self.open] < self._enough()))

    def result(self) -> Exhausted:
        """The best so far."""
        # The best layout's own bound is among them, so the least is not above the objective
        # but by rounding.
        least = float(np.min(self.bound))
        rounding = _ROUNDING[self.problem.radio.d2d_gain.dtype.name]
        lower_bound = min(least, self.objective) - rounding * abs(least)
        return Exhausted(
            self.decision, self.objective, lower_bound, len(self.bound), int(np.sum(self.solved))
        )

    def _enough(self) -> float:
        return self.objective * (1.0 - self.tolerance)

    def _tune_start(self, start: Decision) -> float:
        """Tune the start's layout; price of the D2E band there."""
        one = start.segments, start.micro_batches, _point_of(self.problem, start)
        found = self._solve(*jax.tree.map(lambda leaf: np.asarray(leaf)[None], one), _START_STEPS)
        self._take_best(found)
        # Any price gives a bound; a start that cannot be priced leaves 0.
        return float(np.nan_to_num(found.price_per_share[0], posinf=0.0))

    def _solve(self, segments, micro_batches, points: _Points, steps: int) -> _Refined:
        """A batch, filled up with its last layout to its fixed size."""
        count = len(segments)
        index = np.minimum(np.arange(_BATCH), count - 1)
        full = jax.tree.map(lambda leaf: leaf[index], (segments, micro_batches, points))
        found = jax.device_get(_refine(self.problem, *full, steps))
        return jax.tree.map(lambda leaf: leaf[:count], found)

    def _take_best(self, found: _Refined) -> None:
        objective = np.where(np.isnan(found.tuned.objective), np.inf, found.tuned.objective)
        best = int(np.argmin(objective))
        if objective[best] < self.objective:
            self.objective = float(objective[best])
            self.decision = jax.tree.map(lambda leaf: jnp.asarray(leaf[best]), found.tuned.decision)

    def _refine_batch(self, places: np.ndarray, steps: int) -> None:
        """Solve some open layouts by their places among these."""
        which = self.open[places]
        here = jax.tree.map(lambda leaf: leaf[places], self.points)
        found = self._solve(*self._layouts(which), here, steps)
        self._take_best(found)
        self.bound[which] = np.fmax(self.bound[which], found.tuned.lower_bound)
        self.solved[which] = True
        jax.tree.map(lambda kept, new: _put(kept, places, new), self.points, found.points)

    def _layouts(self, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Segments ``[B, N, K]`` and micro-batches ``[B, N]`` of joint layouts."""
        own = np.unravel_index(which, self.sizes)
        clusters = range(len(self.sizes))
        segments = np.stack([self.segments[own[n], n] for n in clusters], axis=1)
        return segments, np.stack([self.micro_batches[own[n], n] for n in clusters], axis=1)

    def _keep(self, places: np.ndarray) -> None:
        self.open = self.open[places]
        self.points = jax.tree.map(lambda leaf: leaf[places], self.points)

    def _bound_all(self, band_price: float):
        """Bounds of all joint layouts, and starts of those that stay open."""
        clusters = len(self.sizes)
        parts = compositions(_WEIGHT_PARTS, clusters)
        # A weight of 0 would leave nothing to bend the price of latency.
        weights = np.arange(_WEIGHT_PARTS + 1) + _LEAST_WEIGHT
        weights = weights / (_WEIGHT_PARTS + clusters * _LEAST_WEIGHT)
        dtype = self.problem.radio.d2d_gain.dtype
        found = jax.device_get(
            _bound_clusters(
                self.problem, self.segments, self.micro_batches, weights.astype(dtype), band_price
            )
        )
        own = np.nan_to_num(found.lower_bound.astype(np.float64), nan=-np.inf)
        bound = np.full(math.prod(self.sizes), -np.inf)
        best = np.zeros(len(bound), np.int32)
        for index, part in enumerate(parts):
            rows = [own[part[n], : self.sizes[n], n] for n in range(clusters)]
            total = functools.reduce(np.add.outer, rows).reshape(-1) - band_price
            best = np.where(total > bound, index, best)
            bound = np.maximum(bound, total)
        left = np.flatnonzero(bound < self._enough())
        places = np.unravel_index(left, self.sizes)
        return bound, _joint_points(found, weights, parts[best[left]], places), left


def _put(kept: np.ndarray, places: np.ndarray, new: np.ndarray) -> None:
    kept[places] = new


def _side_by_side(problem, layouts: list[ClusterLayouts]) -> tuple[np.ndarray, np.ndarray]:
    """Layouts ``[J, N, K]`` and ``[J, N]``; short lists are filled up with their last."""
    # As many as there can be, so that one compiled function does for every network.
    most = math.comb(problem.workload.blocks + problem.devices - 1, problem.devices - 1)
    most *= len(problem.workload.micro_batch_choices)
    index = [np.minimum(np.arange(most), len(each.micro_batches) - 1) for each in layouts]
    chosen = list(zip(layouts, index, strict=True))
    return (
        np.stack([each.segments[i] for each, i in chosen], axis=1),
        np.stack([each.micro_batches[i] for each, i in chosen], axis=1),
    )


def _joint_points(found: ClusterBounds, weights, parts, places) -> _Points:
    """Starts of joint layouts: every cluster as it did best by itself.

    Args:
      found: of every weight and cluster's layout, ``[W, J, ...]``.
      weights: ``[W]``.
      parts: which of the weights each cluster has, ``[B, N]``.
      places: which of its layouts, ``[B]`` for every cluster.
    """

    def pick(leaf):
        columns = [leaf[parts[:, n], place, ..., n] for n, place in enumerate(places)]
        return np.stack(columns, axis=-1)

    logs, multipliers = jax.tree.map(pick, (found.logs, found.multipliers))
    cluster = weights[parts].astype(multipliers.cluster.dtype)
    return _Points(logs, multipliers._replace(cluster=cluster))
