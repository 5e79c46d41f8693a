"""Every partition of a small network: segments and micro-batches. On the host."""

import itertools
from typing import NamedTuple

import numpy as np

from collapipe_jax.cost.feasibility import usable_blocks
from collapipe_jax.cost.problem import RoundProblem


class ClusterPartitions(NamedTuple):
    """All partitions of a cluster.

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


def enumerate_partitions(problem: RoundProblem) -> list[ClusterPartitions]:
    """Every partition of every cluster that its memory allows.

    Args:
      problem: one round of one network.

    Returns:
      For each cluster; a single one of zeros where it cannot participate.
    """
    splits = compositions(problem.workload.blocks, problem.devices)
    choices = np.unique(np.asarray(problem.workload.micro_batch_choices))
    capacity = np.stack([np.asarray(usable_blocks(problem, count)) for count in choices])
    return [_partitions_within(capacity[:, n], splits, choices) for n in range(problem.clusters)]


def _partitions_within(capacity, splits, choices) -> ClusterPartitions:
    choice, split = np.nonzero(np.all(splits[None] <= capacity[:, None], axis=2))
    if not choice.size:
        return ClusterPartitions(np.zeros_like(splits[:1]), choices[-1:])
    return ClusterPartitions(splits[split], choices[choice])
