"""Computing of a round: times of the forward and backward passes, and their energy."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

from collapipe_jax.core.batch_axis import max_nodes, sum_nodes
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.shapes import Broadcast, MicroBatches, PerCluster, PerDevice, PerNode
from collapipe_jax.edge.cost.workload import Workload


class PassTimes(NamedTuple):
    """Passes of a micro-batch."""

    embed_s: PerCluster  # forward, on the control unit
    block_s: PerDevice  # forward, of one block
    decoder_s: PerCluster  # forward and backward, on the edge server


class ComputeStages(NamedTuple):
    """Compute stages of both flows of a local step, 0 where idle."""

    forward_s: PerNode
    decoder_s: PerCluster  # the last stage of the forward flow
    sum_s: PerCluster  # of all stages of both flows
    longest_s: Float[Array, "2 N *batch"]  # the longest stage of either flow


def forward_time_s(
    samples: Broadcast, flops: Broadcast, flops_per_s: Broadcast, overhead_s: Broadcast
) -> Broadcast:
    """Time of a micro-batch's forward pass. Source: docs/system-model.md (8). Shapes broadcast."""
    return samples * flops / flops_per_s + overhead_s


def pass_times(problem: RoundProblem, micro_batches: Num[Array, "..."]) -> PassTimes:
    """Passes of a micro-batch on every node. Source: docs/system-model.md (10).

    Micro-batches are ``[N, ...]``, or ``[...]`` if all clusters have as many.
    """
    work, compute = problem.workload, problem.compute
    samples = work.batch / micro_batches
    speed, overhead_s = jnp.moveaxis(compute.flops_per_s, 1, 0), compute.block_overhead_s
    server_share = jnp.broadcast_to(compute.es_flops_per_s / speed.shape[1], speed.shape[1:])
    return PassTimes(
        embed_s=forward_time_s(samples, work.embed_flops, speed[0], overhead_s),
        block_s=forward_time_s(samples, work.block_flops, speed[1:], overhead_s),
        decoder_s=forward_time_s(samples, work.decoder_flops, server_share, overhead_s),
    )


def compute_stages(
    problem: RoundProblem,
    micro_batches: MicroBatches,
    segments: Num[Array, "K N *batch"],
    participates: Bool[Array, " N *batch"],
) -> ComputeStages:
    """Compute stages of a partition."""
    passes, ratio = pass_times(problem, micro_batches), problem.workload.backward_ratio
    embed_s = jnp.where(participates, passes.embed_s, 0.0)
    decoder_s = jnp.where(participates, passes.decoder_s, 0.0)
    forward_s = jnp.concatenate([embed_s[None], segments * passes.block_s])
    sum_s, longest_s = sum_nodes(forward_s), max_nodes(forward_s)
    return ComputeStages(
        forward_s=forward_s,
        decoder_s=decoder_s,
        sum_s=(1.0 + ratio) * sum_s + decoder_s,
        longest_s=jnp.stack([jnp.maximum(longest_s, decoder_s), ratio * longest_s]),
    )


def computing_energy_j(work: Workload, flops: Broadcast, joules_per_flop: Broadcast) -> Broadcast:
    """Energy to compute a sample's forward FLOPs, forward and backward, for all of a round.

    Shapes broadcast.
    """
    samples = work.local_steps * work.batch
    return samples * (1.0 + work.backward_ratio) * flops * joules_per_flop


def node_computing_energy_j(
    problem: RoundProblem,
    segments: Num[Array, "K N *batch"],
    participates: Bool[Array, " N *batch"],
) -> PerNode:
    """Energy that every node spends computing in a round."""
    work = problem.workload
    embed = jnp.where(participates, work.embed_flops, 0.0)[None]
    flops = jnp.concatenate([embed, segments * work.block_flops])
    return computing_energy_j(work, flops, jnp.moveaxis(problem.compute.joules_per_flop, 1, 0))
