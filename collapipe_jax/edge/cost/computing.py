"""Nodes of a round: times and energy of the passes, idle energy, and memory."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Num

from collapipe_jax.core.batch_axis import max_nodes, sum_nodes
from collapipe_jax.edge.cost.decision import (
    Broadcast,
    MicroBatches,
    PerCluster,
    PerDevice,
    PerNode,
    participates,
)
from collapipe_jax.edge.cost.problem import RoundProblem, Workload
from collapipe_jax.edge.network.devices import Compute


class PassTimes(NamedTuple):
    """Passes of a micro-batch."""

    embed_s: PerCluster  # forward, on the control unit
    block_s: PerDevice  # forward, of one block
    decoder_s: PerCluster  # of the edge server's part, forward and backward


class ServerWork(NamedTuple):
    """Both passes of the edge server's part. Shapes are those of its number of blocks."""

    flops: Broadcast  # of a sample
    passes: Broadcast  # each with an overhead; the decoder's count as one


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
    speed, overhead_s = problem.by_node.flops_per_s, compute.block_overhead_s
    server_share = jnp.broadcast_to(compute.es_flops_per_s / speed.shape[1], speed.shape[1:])
    server = server_work(work, work.server_blocks)
    return PassTimes(
        embed_s=forward_time_s(samples, work.embed_flops, speed[0], overhead_s),
        block_s=forward_time_s(samples, work.block_flops, speed[1:], overhead_s),
        decoder_s=forward_time_s(samples, server.flops, server_share, server.passes * overhead_s),
    )


def server_work(work: Workload, blocks: Num[Array, "..."] | int) -> ServerWork:
    """Work of an edge server that holds the last ``blocks`` beside the decoder.

    Source: docs/system-model.md (45).
    """
    both = 1.0 + work.backward_ratio
    return ServerWork(
        flops=blocks * work.block_flops * both + work.decoder_flops, passes=blocks * both + 1
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
    return computing_energy_j(work, flops, problem.by_node.joules_per_flop)


def product_or_zero(amount: Broadcast, each: Broadcast) -> Broadcast:
    """An amount times what each of it takes; 0 of nothing, even over a dead link."""
    return jnp.where(amount > 0, amount * each, 0.0)


def idle_energy_j(compute: Compute, latency_s: Float[Array, ""]) -> Float[Array, "N J"]:
    """Idle energy of every node in a round, 0 of devices that are unavailable.

    A node draws it whether it works or waits. It grows with the latency of the round, so
    :func:`.objective.unit_costs` charges it by the second.
    Source: docs/system-model.md (28).
    """
    return product_or_zero(compute.node_idle_power_w, latency_s)


# Memory of devices, control units and the edge server, docs/system-model.md (15).


def block_bytes(workload: Workload, samples: Num[ArrayLike, "..."]) -> Float[ArrayLike, "..."]:
    """Memory of a block that keeps a number of samples for its backward pass."""
    return workload.block_static_bytes + samples * workload.block_kept_bytes


def _devices_left(active: Bool[Array, "..."], axis: int) -> Int[Array, "..."]:
    """Active devices from every device on, itself included, along the axis of devices."""
    return jax.lax.cumsum(active.astype(jnp.int32), axis, reverse=True)


def kept_samples(
    workload: Workload, micro_batches: Num[ArrayLike, "..."], left: Num[ArrayLike, "..."]
) -> Num[ArrayLike, "..."]:
    """Most samples whose activations an active device keeps at once.

    There are ``left`` active devices from it on, itself included. Shapes broadcast.
    Source: docs/system-model.md (26).
    """
    if workload.schedule == "gpipe":
        return workload.batch
    in_flight = jnp.minimum(micro_batches, 2 * left + 2)
    return in_flight * (workload.batch / micro_batches)


def device_memory_bytes(
    workload: Workload, segments: Num[Array, "N K"], micro_batches: Num[Array, " N"]
) -> Float[Array, "N K"]:
    """Memory of every device, 0 where idle. Source: docs/system-model.md (15)."""
    active, count = segments > 0, micro_batches[:, None]
    kept = kept_samples(workload, count, _devices_left(active, axis=1))
    memory = segments * block_bytes(workload, kept)
    memory = memory + workload.batch / count * workload.block_working_bytes
    return jnp.where(active, memory, 0.0)


def embedding_memory_bytes(workload: Workload, segments: Num[Array, "N K"]) -> Float[Array, " N"]:
    """Memory that a pipeline's control units need for the embedding that they train.

    It is 0 where a cluster sits out, or where the workload names no sizes.
    """
    trains, ends = participates(segments, blocks=workload.cluster_blocks), workload.ends
    return jnp.where(trains, 0.0 if ends is None else ends.embedding_static_bytes, 0.0)


def server_memory_bytes(
    workload: Workload, blocks: Num[Array, ""] | int, copies: Num[Array, ""], samples: Array
) -> Float[Array, ""]:
    """Memory of an edge server that trains the last blocks and the decoder.

    Args:
      workload: whose decoder takes no room if it names no sizes.
      blocks: at the server.
      copies: of blocks and decoder.
      samples: whose activations it keeps at once.

    Source: docs/system-model.md (53).
    """
    ends = workload.ends
    decoder_bytes = 0.0 if ends is None else ends.decoder_static_bytes
    static_bytes = blocks * workload.block_static_bytes + decoder_bytes
    working_bytes = jnp.where(jnp.asarray(blocks) > 0, workload.block_working_bytes, 0.0)
    return copies * static_bytes + samples * (blocks * workload.block_kept_bytes + working_bytes)


def clusters_at_server_bytes(
    workload: Workload, segments: Num[Array, "N K"], micro_batches: Num[Array, " N"]
) -> Float[Array, ""]:
    """Memory of the edge server of pipelines: one copy, and a micro-batch of every cluster."""
    takes_part = participates(segments, blocks=workload.cluster_blocks)
    samples = jnp.sum(jnp.where(takes_part, workload.batch / micro_batches, 0.0))
    return server_memory_bytes(workload, workload.server_blocks, jnp.ones(()), samples)


def block_capacity(
    workload: Workload,
    memory_bytes: Broadcast,
    micro_batches: Num[ArrayLike, "..."],
    left: Num[ArrayLike, "..."],
) -> Int[Array, "..."]:
    """Most blocks that fit each device, docs/system-model.md (15) solved for delta.

    Numbers of memory, of micro-batches and of active devices ``left`` from a device on
    broadcast. The result lies between 0 and the blocks of a cluster, or the workload's capacity
    where it has one; the tolerance by which a decision may exceed its memory is not used up here.
    """
    per_block = block_bytes(workload, kept_samples(workload, micro_batches, left))
    working = workload.batch / micro_batches * workload.block_working_bytes
    # A hair of slack keeps a device that fits exactly from losing a block to rounding.
    fits = jnp.floor((memory_bytes - working) / per_block * (1 + 1e-6))
    most = workload.cluster_blocks
    if workload.capacity is not None:
        most = jnp.minimum(workload.capacity, most)
    return jnp.clip(fits, 0, most).astype(jnp.int32)


def set_capacity(
    workload: Workload,
    memory_bytes: Broadcast,
    micro_batches: Num[ArrayLike, "..."],
    active: Bool[Array, "..."],
    axis: int,
) -> Int[Array, "..."]:
    """:func:`block_capacity` of the devices of active sets, along the axis of devices."""
    return block_capacity(workload, memory_bytes, micro_batches, _devices_left(active, axis))
