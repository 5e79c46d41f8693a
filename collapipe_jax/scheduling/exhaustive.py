"""Every layout of a small network: the yardstick for what a policy decides.

All compositions of the blocks over the devices, with every number of micro-batches, for all
clusters jointly. Lower bounds leave few to solve. First each cluster alone: a maximum of
latencies is at least any weighted mean of them, no interference is at most what there is,
and the D2E band is lent at a price; what remains is a sum over clusters, bounded for every
layout of each. Then the joint layouts in order of their bounds, in batches, at first with
few steps: the certificate of a solution is the better bound.
"""

import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round import price
from collapipe_jax.errors import InputError
from collapipe_jax.scheduling.baselines import static_pipeline
from collapipe_jax.scheduling.chain_price import (
    Multipliers,
    PricedPoint,
    Resources,
    Surroundings,
    add_up,
    price_point,
    uniform_multipliers,
)
from collapipe_jax.scheduling.chains import Chains, chains
from collapipe_jax.scheduling.descent import TEMPERATURE, Descent, certify, descend
from collapipe_jax.scheduling.feasibility import usable_blocks
from collapipe_jax.scheduling.lanes import on_lanes
from collapipe_jax.scheduling.resources import (
    to_decision,
    to_logs,
    to_resources,
    tune_chains,
)

MOST_LAYOUTS = 3_000_000
"""Joint layouts whose bounds still fit in memory."""

_BATCH = 128
_ROUNDS = (20, 80, 300, 1000)
_CLUSTER_STEPS = 100
_WEIGHT_PARTS = 8
_LEAST_WEIGHT = 0.1
_ROUNDING = {"float32": 2e-5, "float64": 1e-9}


class ClusterLayouts(NamedTuple):
    """All that a cluster can do with its blocks.

    Attributes:
      segments: integers, ``[J, K]``.
      micro_batches: integers, ``[J]``.
    """

    segments: np.ndarray
    micro_batches: np.ndarray


class Exhausted(NamedTuple):
    """The best decision of all, and how the search went.

    Attributes:
      decision: what to do.
      objective: (P2).
      lower_bound: of (P2) over all decisions; what rounding may have put on it is taken off.
      layouts: joint layouts in all.
      solved: those whose shares and powers were looked for; the rest was ruled out before.
      unsettled: those whose bound still lay below the objective, by more than the
        tolerance, when the steps were used up.
    """

    decision: Decision
    objective: float
    lower_bound: float
    layouts: int
    solved: int
    unsettled: int


def compositions(total: int, parts: int) -> np.ndarray:
    """All ways to write a number as an ordered sum, zeros allowed.

    Args:
      total: 0 or more.
      parts: 1 or more.

    Returns:
      ``[binomial(total + parts - 1, parts - 1), parts]``.
    """
    bars = itertools.combinations(range(total + parts - 1), parts - 1)
    return np.array(
        [np.diff([-1, *places, total + parts - 1]) - 1 for places in bars], dtype=np.int32
    )


def enumerate_layouts(problem: RoundProblem) -> list[ClusterLayouts]:
    """Every layout of every cluster that its memory allows.

    Args:
      problem: one round of one network.

    Returns:
      For each cluster; a single layout of zeros where it must sit out.
    """
    splits = compositions(problem.workload.blocks, problem.devices)
    choices = np.unique(np.asarray(problem.workload.micro_batch_choices))
    capacity = np.stack([np.asarray(usable_blocks(problem, count)) for count in choices])
    return [_cluster_layouts(splits, choices, capacity[:, n]) for n in range(problem.clusters)]


def _cluster_layouts(splits, choices, capacity) -> ClusterLayouts:
    fits = np.all(splits[None] <= capacity[:, None], axis=2)
    which_choice, which_split = np.nonzero(fits)
    if not which_choice.size:
        return ClusterLayouts(np.zeros_like(splits[:1]), choices[-1:])
    return ClusterLayouts(splits[which_split], choices[which_choice])


def exhaustive(
    problem: RoundProblem, start: Decision | None = None, tolerance: float = 1e-5
) -> Exhausted:
    """Best decision of a round by looking at every layout. Not to be compiled.

    Args:
      problem: one round of one small network.
      start: a feasible decision to beat, the static pipeline's by default. A better one
        leaves less to solve.
      tolerance: relative; layouts that could not be better by more are left alone.

    Raises:
      InputError: if there are more than :data:`MOST_LAYOUTS` joint layouts.
    """
    layouts = enumerate_layouts(problem)
    count = math.prod(len(each.micro_batches) for each in layouts)
    if count > MOST_LAYOUTS:
        raise InputError(
            "layouts", count, f"more than {MOST_LAYOUTS}", "Take fewer devices or blocks"
        )
    if start is None:
        start = static_pipeline(problem, int(np.max(problem.workload.micro_batch_choices)))
    search = _Search(problem, layouts, start, tolerance)
    for steps in _ROUNDS:
        search.refine(steps)
    return search.result()


class _Refined(NamedTuple):
    """Joint layouts with their resources, a leading axis of layouts on everything."""

    logs: Resources
    multipliers: Multipliers
    decision: Decision
    objective: Array
    lower_bound: Array
    price_per_share: Array


@functools.partial(jax.jit, static_argnames="steps_as_lanes")
def _unused(steps_as_lanes):
    return steps_as_lanes
