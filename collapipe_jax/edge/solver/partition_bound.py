"""A lower bound of (P2) over all partitions, which certifies a decision as a whole.

Small networks are searched exhaustively. Others have too many joint partitions: 1e16 for 4
clusters of 5 devices with 12 blocks. There the terms that couple clusters are relaxed. Their
sum is bounded by the best partition of every cluster by itself (docs/dssra.md), for any
weights of latencies and any cost of the D2E band. Multipliers of the decision are the first;
then the dual is ascended.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.core.batch_axis import batch_last
from collapipe_jax.core.compilation import compile_for_now
from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.computing import device_memory_bytes
from collapipe_jax.edge.cost.decision import Decision
from collapipe_jax.edge.cost.fixed_partition import fix_decision
from collapipe_jax.edge.cost.problem import RoundProblem, Workload
from collapipe_jax.edge.cost.static_pipeline import with_equal_allocation
from collapipe_jax.edge.solver.allocate import Solution, descend_jointly
from collapipe_jax.edge.solver.exhaustive import (
    MOST_PARTITIONS,
    ROUNDING,
    Partitions,
    bound_clusters,
    enumerate_partitions,
    exhaustive,
)
from collapipe_jax.edge.solver.limits import to_logs
from collapipe_jax.edge.solver.smooth_maximum import initial_weights
from collapipe_jax.edge.solver.smooth_objective import (
    certify,
    evaluate_allocation,
    full_band_multiplier,
)

# Multipliers of the limits of a round: the fall of (P2) where one is relaxed a little.
#
# At the optimum of a partition every binding limit has a multiplier. Those of bands and powers
# are slopes of (P2) by logarithms; memory has no slope, so the round is decided anew with
# memory for one block more.

_STEPS = 400
_AT_LIMIT = 1e-3
_FITS, _ROOM = 1 + 1e-6, 1 + 1e-5
"""Tolerances of rounding: memory that just fits, and memory granted for one block more."""


class LimitMultipliers(NamedTuple):
    """Multipliers of the limits on shares and powers, in units of (P2).

    Attributes:
      latency: of a second of the round's latency, ``V / T_ref`` and idle power.
      cluster_latency: of a second of a cluster's latency, ``[N]``; sum ``latency``.
      d2d_band: of the sum of a cluster's shares, ``[N]``; 0 where it is below 1.
      d2e_band: likewise of the clusters' D2E shares.
      d2d_power: of the logarithm of a node's largest power, ``[N, K + 1]``; 0 below it.
      d2e_power: likewise, ``[N]``.
      residual: of the KKT conditions, relative to the objective: the accuracy of all these.
    """

    latency: Array
    cluster_latency: Array
    d2d_band: Array
    d2e_band: Array
    d2d_power: Array
    d2e_power: Array
    residual: Array


def limit_multipliers(problem: RoundProblem, decision: Decision) -> LimitMultipliers:
    """Multipliers at a decision whose shares and powers are nearly optimal.

    At the decision itself several clusters and stages are equally slow; weights of the
    maxima from a descent tell their multipliers apart. It starts at equal shares, so that
    its first point, with arbitrary weights, is not the best.
    """
    start = with_equal_allocation(problem, decision.segments, decision.micro_batches)
    return batch_last(_multipliers)(problem, decision, start)


def _multipliers(problem, decision, start) -> LimitMultipliers:
    fixed = fix_decision(problem, decision)
    used, first = fixed.chain.used, to_logs(fixed, start)
    weights = descend_jointly(fixed, first, initial_weights(fixed), _STEPS).weights
    logs = to_logs(fixed, decision)
    evaluation = evaluate_allocation(fixed, logs, weights)
    slope, per_s = evaluation.slope, fixed.costs.latency_per_s

    def of_power(slope, log, used):
        return jnp.where(used & (log > -_AT_LIMIT), jnp.maximum(-slope, 0.0), 0.0)

    return LimitMultipliers(
        latency=per_s,
        cluster_latency=per_s * evaluation.weights.cluster,
        d2d_band=full_band_multiplier(slope.d2d_share, logs.d2d_share, used.d2d_share, _AT_LIMIT),
        d2e_band=full_band_multiplier(slope.d2e_share, logs.d2e_share, used.d2e_share, _AT_LIMIT),
        d2d_power=jnp.swapaxes(of_power(slope.d2d_power, logs.d2d_power, used.d2d_power), 0, 1),
        d2e_power=of_power(slope.d2e_power, logs.d2e_power, used.d2e_power),
        residual=certify(evaluation, logs, used).residual,
    )


def _bytes_of_one_more(work: Workload, segments: Array, micro_batches: Array) -> Array:
    """Memory ``[N, K]`` of every device if it alone had one block more."""
    more = jnp.eye(segments.shape[1], dtype=segments.dtype)[:, None] + segments[None]
    needs = jax.vmap(lambda each: device_memory_bytes(work, each, micro_batches))(more)
    return jnp.diagonal(needs, axis1=0, axis2=2)


class FullDevice(NamedTuple):
    """A device without memory for another block."""

    cluster: int  # index
    device: int  # counted from 1
    blocks: int  # on the device
    saved: float  # fall of (P2) with memory for one block more


def full_devices(
    problem: RoundProblem, solution: Solution, decide: Callable[[RoundProblem], Solution]
) -> list[FullDevice]:
    """Full devices, and the fall of (P2) with memory for one block more on each.

    Returns:
      Largest fall first; 0 where the other solution does not use the memory.
    """
    segments, counts = solution.decision.segments, solution.decision.micro_batches
    memory_bytes = problem.compute.memory_bytes
    arguments = problem.workload, segments, counts
    needs = compile_for_now(device_memory_bytes, *arguments)
    one_more_bytes = np.asarray(compile_for_now(_bytes_of_one_more, *arguments)(*arguments))
    full = (memory_bytes > 0) & (one_more_bytes > memory_bytes * _FITS)
    participates = segments.sum(axis=1, keepdims=True) > 0
    found = []
    for n, k in np.argwhere(full & participates & (segments < problem.workload.cluster_blocks)):
        wider_bytes = memory_bytes.copy()
        wider_bytes[n, k] = one_more_bytes[n, k] * _ROOM
        other = decide(problem.replace(compute=problem.compute.replace(memory_bytes=wider_bytes)))
        partition = other.decision.segments, other.decision.micro_batches
        uses = needs(problem.workload, *partition)[n, k] > memory_bytes[n, k] * _FITS
        saved = max(float(solution.objective) - float(other.objective), 0.0) if uses else 0.0
        found.append(FullDevice(int(n), int(k) + 1, int(segments[n, k]), saved))
    return sorted(found, key=lambda device: -device.saved)


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
    blocks, devices = int(problem.workload.cluster_blocks), problem.devices
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
