"""Allocations, weights of maxima and couplings of fixed partitions, drawn at random."""

import jax
import numpy as np

from collapipe_jax.edge.cost.decision import Allocation
from collapipe_jax.edge.solver.smooth_objective import Coupling


def random_logs(rng, clusters, devices, *batch, spread=4.0):
    """Logarithms of shares, and of powers over their maxima; sums of shares apart."""
    nodes = (devices + 1, clusters, *batch)
    return Allocation(
        d2d_share=rng.uniform(-spread, 0, nodes),
        d2d_power=rng.uniform(-1.25 * spread, 0, nodes),
        d2e_share=rng.uniform(-spread, 0, nodes[1:]),
        d2e_power=rng.uniform(-1.25 * spread, 0, nodes[1:]),
    )


def sum_to_one(rng, shape):
    """Random numbers of sum 1 over the first axis."""
    some = rng.exponential(size=shape)
    return some / some.sum(axis=0)


def random_weights(rng, initial, cluster_shape=None):
    """Weights of any kind: of sum 1 over the first axis, or of the first of two entries.

    Args:
      rng: random numbers.
      initial: weights of the same shapes; multipliers of caps are scaled.
      cluster_shape: of the cluster weights, ``[2, N, ...]`` with a coupling.
    """
    return initial._replace(
        forward=sum_to_one(rng, initial.forward.shape),
        backward=sum_to_one(rng, initial.backward.shape),
        cluster=sum_to_one(rng, cluster_shape or initial.cluster.shape),
        hop=rng.uniform(size=initial.hop.shape),
        move=rng.uniform(size=initial.move.shape),
        uplink=rng.uniform(size=initial.uplink.shape),
        caps=None
        if initial.caps is None
        else initial.caps * rng.uniform(0.3, 3, np.shape(initial.caps)),
    )


def with_first_cluster_moved(logs):
    """The same but for a power and a share of the first cluster."""
    d2d_power, d2e_share = np.array(logs.d2d_power), np.array(logs.d2e_share)
    d2d_power[:, 0] -= 1.0
    d2e_share[0] -= 1.0
    return logs._replace(d2d_power=d2d_power, d2e_share=d2e_share)


def central_differences(function, logs, step):
    """Slope of ``function(logs)`` by every variable in turn, the whole batch at once.

    Yields the name of the variable's field, its index there, and the slope.
    """
    for field, leaf in logs._asdict().items():
        for index in np.ndindex(leaf.shape[:-1]):
            ends = []
            for sign in (1, -1):
                moved = np.array(leaf)
                moved[index] += sign * step
                ends.append(jax.device_get(function(logs._replace(**{field: moved}))))
            yield field, index, jax.tree.map(lambda up, down: (up - down) / (2 * step), *ends)


def random_coupling(rng, round_s, clusters, devices, *batch):
    """Interference received and its cost, and costs of latency and of the D2E band."""
    nodes = (devices + 1, clusters, *batch)
    return Coupling(
        interference_w=10.0 ** rng.uniform(-15, -12, nodes),
        interference_cost_per_w=rng.uniform(0, 3, nodes),
        latency_cost_per_s=0.1 * rng.uniform(size=nodes[1:]),
        round_s=np.asarray(round_s),
        bandwidth_cost=rng.uniform(0, 2, batch),
    )
