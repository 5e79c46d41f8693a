"""A lower bound of (P2) over all partitions, which certifies a decision as a whole.

Small networks are searched exhaustively. Others have too many joint partitions: 1e16 for 4
clusters of 5 devices with 12 blocks. There the terms that couple clusters are relaxed. Their
sum is bounded by the best partition of every cluster by itself (docs/dssra.md), for any
weights of latencies and any cost of the D2E band. Multipliers of the decision are the first;
then the dual is ascended.
"""

import math
from typing import NamedTuple

import numpy as np

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.decision import Decision
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.solver.exhaustive import (
    MOST_PARTITIONS,
    ROUNDING,
    Partitions,
    bound_clusters,
    enumerate_partitions,
    exhaustive,
)
from collapipe_jax.edge.solver.limit_multipliers import LimitMultipliers

MOST_OF_A_CLUSTER = 200_000
"""Partitions of one cluster that are bounded in reasonable time."""

_CHUNK = 4096
_ITERATIONS = 3
_LEAST_WEIGHT = 0.01
"""Of a latency, over the mean weight; with 0 its cost would have no curvature."""


class PartitionBound(NamedTuple):
    """A lower bound of the objective over all decisions of a round."""

    lower_bound: float  # less rounding
    partitions: int  # joint partitions that it covers
    exhaustive: bool  # whether all that could be better were solved


def bound_partitions(
    problem: RoundProblem, decision: Decision, multipliers: LimitMultipliers
) -> PartitionBound:
    """Bound the objective over all partitions, shares and powers. A host loop.

    Args:
      problem: one round of one network.
      decision: a good one, feasible; of small networks only better ones are searched.
      multipliers: at this decision.

    Raises:
      InputError: if a cluster has more than :data:`MOST_OF_A_CLUSTER` partitions.
    """
    per_cluster = count_partitions(problem)
    if per_cluster > MOST_OF_A_CLUSTER:
        remedy = "Bound networks with fewer devices, blocks or numbers of micro-batches"
        wrong = f"more than {MOST_OF_A_CLUSTER}"
        raise InputError("partitions of a cluster", per_cluster, wrong, remedy)
    own = enumerate_partitions(problem)
    partitions = math.prod(own.allowed.sum(axis=0).tolist())
    if partitions <= MOST_PARTITIONS:
        found = exhaustive(problem, decision)
        return PartitionBound(found.lower_bound, partitions, exhaustive=True)
    return PartitionBound(_relaxed_bound(problem, own, multipliers), partitions, exhaustive=False)


def count_partitions(problem: RoundProblem) -> int:
    """Partitions of a cluster, whether its memory allows them or not."""
    blocks, devices = problem.workload.blocks, problem.devices
    choices = len(set(np.asarray(problem.workload.micro_batch_choices).tolist()))
    return math.comb(blocks + devices - 1, devices - 1) * choices


def _relaxed_bound(problem: RoundProblem, own: Partitions, multipliers: LimitMultipliers) -> float:
    """The best bound over some weights of latencies and costs of the D2E band.

    The dual is concave. Its slope by a weight is the latency of that cluster's best partition,
    and by the cost of the band the sum of shares less 1. Both multipliers follow in proportion.
    """
    used = np.any(own.allowed, axis=1)
    own = Partitions(*(array[used] for array in own))
    weights = _normalised(np.asarray(multipliers.cluster_latency, np.float64))
    bandwidth_cost, best = float(multipliers.d2e_band), -np.inf
    for _ in range(_ITERATIONS):
        bound, latency_s, d2e_share = _best_of_clusters(problem, own, weights, bandwidth_cost)
        best = max(best, bound)
        weights = _normalised(weights * latency_s)
        bandwidth_cost *= float(d2e_share.sum())
    return best - ROUNDING[problem.radio.d2d_gain.dtype.name] * abs(best)


def _normalised(weights: np.ndarray) -> np.ndarray:
    """Positive weights ``[N]`` of sum 1."""
    weights = weights + max(weights.mean(), np.finfo(float).tiny) * _LEAST_WEIGHT
    return weights / weights.sum()


def _best_of_clusters(
    problem: RoundProblem, own: Partitions, weights: np.ndarray, bandwidth_cost: float
) -> tuple[float, np.ndarray, np.ndarray]:
    """Sum of the clusters' least bounds; latency and D2E share ``[N]`` where they are."""
    count, kind = len(own.segments), problem.radio.d2d_gain.dtype
    size, found = min(_CHUNK, count), []
    for first in range(0, count, size):
        rows = np.minimum(np.arange(first, first + size), count - 1)  # of one shape all
        chunk = bound_clusters(
            problem,
            own.segments[rows],
            own.micro_batches[rows],
            weights[None].astype(kind),
            kind.type(bandwidth_cost),
        )
        numbers = chunk.bound[0], chunk.latency_s[0], np.exp(chunk.point.logs.d2e_share[0])
        allowed = own.allowed[rows]
        bound = np.nan_to_num(np.asarray(numbers[0], np.float64), nan=-np.inf)
        found.append((np.where(allowed, bound, np.inf), *map(np.asarray, numbers[1:])))
    bound, latency_s, d2e_share = (np.concatenate(part) for part in zip(*found, strict=True))
    least = np.argmin(bound, axis=0), np.arange(problem.clusters)
    return float(bound[least].sum()) - bandwidth_cost, latency_s[least], d2e_share[least]
