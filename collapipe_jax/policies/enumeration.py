"""Every layout of a small network: segments by numbers of micro-batches. On the host."""

import itertools
from typing import NamedTuple

import numpy as np

from collapipe_jax.cost.feasibility import usable_blocks
from collapipe_jax.cost.problem import RoundProblem


class ClusterLayouts(NamedTuple):
    """All that a cluster can do with its blocks.

    Attributes:
      segments: integers, ``[J, K]``.
      micro_batches: integers, ``[J]``.
    """

    segments: np.ndarray
    micro_batches: np.ndarray


def compositions(total: int, parts: int) -> np.ndarray:
    """All ways to write a number as an ordered sum, zeros allowed.

    Args:
      total: 0 or more.
      parts: 1 or more.

    Returns:
      Integers, ``[binomial(total + parts - 1, parts - 1), parts]``.
    """
    bars = itertools.combinations(range(total + parts - 1), parts - 1)
    ends = np.array([(-1, *places, total + parts - 1) for places in bars], np.int32)
    return np.diff(ends, axis=1) - 1


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
    return [_layouts_within(capacity[:, n], splits, choices) for n in range(problem.clusters)]


def _layouts_within(capacity, splits, choices) -> ClusterLayouts:
    choice, split = np.nonzero(np.all(splits[None] <= capacity[:, None], axis=2))
    if not choice.size:
        return ClusterLayouts(np.zeros_like(splits[:1]), choices[-1:])
    return ClusterLayouts(splits[split], choices[choice])
