"""Latency of a round: messages, flows of micro-batches, and moves of parameters."""

import functools
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from collapipe_jax.core.batch_axis import sum_nodes
from collapipe_jax.core.one_f_one_b import tick_of, ticks
from collapipe_jax.edge.cost.chain import from_previous
from collapipe_jax.edge.cost.decision import Broadcast, PerCluster, PerHop, PerMove, PerNode
from collapipe_jax.edge.cost.fixed_partition import FixedPartition
from collapipe_jax.edge.cost.link_quality import BitTimes
from collapipe_jax.edge.cost.maximum import Maximum, MaximumRule


class AirTimes(NamedTuple):
    """Time on air of every message, without overheads; 0 where idle."""

    hop_s: PerHop  # of a micro-batch
    move_s: PerMove
    uplink_s: PerCluster  # of a micro-batch
    downlink_s: PerCluster  # of a micro-batch
    model_uplink_s: PerCluster  # of all parameters, and of what terms add
    model_downlink_s: PerCluster  # likewise


class FlowTimes(NamedTuple):
    """The forward and the backward flow of a local step.

    Entries of a maximum are the D2D stages by node, the D2E link and the longest compute stage.
    """

    sum_s: PerCluster  # of all stages of both, for one micro-batch
    forward: Maximum  # the longest stage
    backward: Maximum


class LatencyParts(NamedTuple):
    """Parts of a cluster's latency."""

    download_s: PerCluster  # parameters from the base station
    distribute_s: PerCluster  # and to the devices
    iterations_s: PerCluster  # all local steps
    collect_s: PerCluster  # parameters back from the devices
    upload_s: PerCluster  # and to the base station


def air_times(fixed: FixedPartition, bit_time: BitTimes) -> AirTimes:
    """Time on air of every message."""
    uplink_s = bit_time.uplink.value
    return AirTimes(
        hop_s=bit_time.hop.value * fixed.hop_bits,
        move_s=bit_time.move.value * fixed.move_bits,
        uplink_s=uplink_s * fixed.uplink_bits,
        downlink_s=bit_time.downlink_s * fixed.downlink_bits,
        model_uplink_s=uplink_s * fixed.upload_bits,
        model_downlink_s=bit_time.downlink_s * fixed.download_bits,
    )


def message_time_s(air_s: Broadcast, overhead_s: Broadcast) -> Broadcast:
    """Time of a message, also of (10). Source: docs/system-model.md (9). Shapes broadcast.

    The time on air is its bits (``fix_partition``) times the time of a bit (``link_bit_times``).
    """
    return air_s + overhead_s


def d2d_stage_s(fixed: FixedPartition, hop_s: PerNode) -> PerNode:
    """D2D stages of a flow by node: its hop, with half duplex the hops that end at it too.

    Source: docs/system-model.md (30).
    """
    if fixed.radio.duplex == "full":
        return hop_s
    return hop_s + from_previous(hop_s, fixed.chain)


def flow_times(fixed: FixedPartition, air: AirTimes, maximum: MaximumRule) -> FlowTimes:
    """Stages of both flows: D2D band, D2E link and computing overlap."""
    hop_s = message_time_s(air.hop_s, fixed.hop_overhead_s)
    uplink_s = message_time_s(air.uplink_s, fixed.d2e_overhead_s)
    downlink_s = message_time_s(air.downlink_s, fixed.d2e_overhead_s)

    def longest(name, hop_s, link_s, compute_s):
        stages_s = [d2d_stage_s(fixed, hop_s), link_s[None], compute_s[None]]
        return maximum.over(name, jnp.concatenate(stages_s))

    compute = fixed.compute
    return FlowTimes(
        sum_s=sum_nodes(hop_s[0] + hop_s[1]) + uplink_s + downlink_s + compute.sum_s,
        forward=longest("forward", hop_s[0], uplink_s, compute.longest_s[0]),
        backward=longest("backward", hop_s[1], downlink_s, compute.longest_s[1]),
    )


def _iteration_time_s(flows: FlowTimes, micro_batches: PerCluster) -> PerCluster:
    """Time of one local step of every cluster. Source: docs/system-model.md (12)."""
    longest_s = flows.forward.value + flows.backward.value
    return flow_time_s(flows.sum_s, longest_s, micro_batches)


def latency_parts(fixed: FixedPartition, air: AirTimes, flows: FlowTimes) -> LatencyParts:
    """Latency of every cluster by part. Source: docs/system-model.md (13)."""
    return LatencyParts(
        download_s=air.model_downlink_s + fixed.broadcast_s,
        distribute_s=fixed.prepare_s + sum_nodes(air.move_s[1]),
        iterations_s=fixed.local_steps * _iteration_time_s(flows, fixed.micro_batches),
        collect_s=sum_nodes(air.move_s[0]),
        upload_s=air.model_uplink_s + fixed.upload_s,
    )


def cluster_latency_s(parts: LatencyParts) -> PerCluster:
    """Latency of every cluster. Source: docs/system-model.md (14)."""
    return functools.reduce(operator.add, parts)


def compute_latency_s(fixed: FixedPartition) -> PerCluster:
    """Latency of every cluster's compute stages alone."""
    compute = fixed.compute
    longest_s = compute.longest_s[0] + compute.longest_s[1]
    return fixed.local_steps * flow_time_s(compute.sum_s, longest_s, fixed.micro_batches)


_Broadcast = Num[Array, "..."]


def flow_time_s(sum_s: _Broadcast, longest_s: _Broadcast, micro_batches: _Broadcast) -> _Broadcast:
    """Time for micro-batches to flow through stages that hold one at a time.

    ``sum_s`` is the time of all stages together, ``longest_s`` that of the longest. Exact for
    a permutation flow shop. Source: docs/system-model.md (11). Shapes broadcast.
    """
    return sum_s + (micro_batches - 1) * longest_s


class Events(NamedTuple):
    """When each micro-batch enters and leaves each stage."""

    start_s: Float[Array, "M P"]
    finish_s: Float[Array, "M P"]


def flow_events(
    stage_s: Float[Array, " P"], micro_batches: int, start_s: Array | float = 0.0
) -> Events:
    """Events of micro-batches that flow through stages in order, all ready at ``start_s``.

    A stage serves one at a time and passes it on when done, so ``finish[m, p] =
    max(finish[m, p - 1], finish[m - 1, p]) + stage[p]``; unrolled over the stages this
    is a running maximum, and one scan over the micro-batches remains.
    """
    through = jnp.cumsum(stage_s)
    before = through - stage_s

    def next_job(free, _):
        finish = through + jax.lax.cummax(free - before)
        return finish, Events(finish - stage_s, finish)

    ready = jnp.full_like(stage_s, start_s)
    _, events = jax.lax.scan(next_job, ready, length=micro_batches)
    return events


def alternating_events(
    forward_s: Float[Array, " P"], backward_s: Float[Array, " P"], micro_batches: int
) -> tuple[Events, Events]:
    """Events of 1F1B: forward and backward passes of stages that serve both, one at a time.

    The last stage turns a micro-batch around. Both times are in the order of the forward flow.

    Returns:
      Forward and backward passes.

    Source: docs/system-model.md (27).
    """
    stages = len(forward_s)
    stage = jnp.arange(stages)

    def tick(free_s, time):
        does = jax.vmap(lambda k: tick_of(time, k, stages, micro_batches))(stage)
        # A pass waits for its stage, and for the neighbour that sends to it.
        before_s = jnp.where(does.forward, jnp.roll(free_s, 1), jnp.roll(free_s, -1))
        is_first = does.forward & (stage == 0) | does.backward & (stage == stages - 1)
        start_s = jnp.maximum(free_s, jnp.where(is_first, 0.0, before_s))
        pass_s = jnp.where(does.forward, forward_s, backward_s)
        runs = does.forward | does.backward
        start_s = jnp.where(runs, start_s, free_s)
        finish_s = jnp.where(runs, start_s + pass_s, free_s)
        return finish_s, Events(start_s, finish_s)

    times = jnp.arange(ticks(stages, micro_batches))
    _, events = jax.lax.scan(tick, jnp.zeros_like(forward_s), times)
    # Of all ticks those in which pass m of stage k runs; see `core/one_f_one_b.py`.
    number = jnp.arange(micro_batches)[:, None]
    at = stage[None] + 2 * number, 2 * stages - 1 - stage[None] + 2 * number

    def pick(time):
        return jax.tree.map(lambda leaf: jnp.take_along_axis(leaf, time, axis=0), events)

    return pick(at[0]), pick(at[1])
