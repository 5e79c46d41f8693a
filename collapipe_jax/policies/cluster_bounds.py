"""Lower bounds of joint partitions as sums over clusters, each cluster by itself.

Three terms couple the clusters (docs/system-model.md, section 5), and each is relaxed: the
maximum of latencies to a mean with weights of sum 1, interference to none, and the limit of
the D2E band to a Lagrangian term. The bound of a joint partition is then the best, over some
weights, of a sum with one term for each cluster's partition.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.allocation.allocate import descend_clusters
from collapipe_jax.allocation.certificate import certify
from collapipe_jax.allocation.evaluation import Coupling
from collapipe_jax.allocation.smooth_maximum import Weights
from collapipe_jax.batching import batch_last
from collapipe_jax.cost.decision import Allocation
from collapipe_jax.cost.fixed_partition import FixedPartition, fix_partition
from collapipe_jax.cost.problem import RoundProblem


class ClusterBounds(NamedTuple):
    """Bounds of the clusters' own costs, and the points where they were found.

    Attributes:
      lower_bound: of weighted latency, energy, divergence and D2E band at their unit
        costs, ``[N]``.
      logs: logarithms of shares and powers, nodes first.
      weights: of the maxima.
    """

    lower_bound: Array
    logs: Allocation
    weights: Weights


def bound_clusters(
    problem: RoundProblem,
    segments: Array,
    micro_batches: Array,
    weight: Array,
    bandwidth_cost: Array,
    steps: int,
) -> ClusterBounds:
    """Bound the cost of every cluster by itself. Meant for ``jax.vmap``.

    Args:
      problem: one round of one network.
      segments: ``[N, K]``; a partition of each cluster by itself.
      micro_batches: ``[N]``.
      weight: of each cluster's latency in the mean, scalar, positive.
      bandwidth_cost: of the whole D2E band, scalar.
      steps: gradient steps (fixes the length of the loop).
    """

    def solve(problem, segments, micro_batches, weight, bandwidth_cost):
        fixed = fix_partition(problem, segments, micro_batches)
        costs = fixed.costs._replace(latency_per_s=weight * fixed.costs.latency_per_s)
        fixed = fixed.replace(costs=costs)
        start, coupling = _equal_shares(fixed), _no_coupling(fixed, bandwidth_cost)
        found = descend_clusters(problem, fixed, start, coupling, steps, with_evaluation=True)
        bound = certify(found.evaluation, found.logs, fixed.active, joint=False).lower_bound
        return ClusterBounds(bound, found.logs, found.weights)

    return batch_last(solve)(problem, segments, micro_batches, weight, bandwidth_cost)


def _no_coupling(fixed: FixedPartition, bandwidth_cost: Array) -> Coupling:
    """No interference either way; a cluster bears the weighted cost of its latency."""
    none = jnp.zeros_like(fixed.hop_bits)
    return Coupling(
        interference_w=none,
        interference_cost_per_w=none,
        latency_cost_per_s=none[0] + fixed.costs.latency_per_s,
        round_s=jnp.zeros_like(fixed.costs.latency_per_s),
        bandwidth_cost=bandwidth_cost,
    )


def _equal_shares(fixed: FixedPartition) -> Allocation:
    """Full power; D2D shares of 1, which the descent projects to its limits."""
    node = jnp.zeros_like(fixed.hop_bits)
    return Allocation(node, node, node[0] - jnp.log(1.0 * node.shape[1]), node[0])
