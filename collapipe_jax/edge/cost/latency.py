"""Latency of a round: messages, flows of micro-batches, and moves of parameters."""

import functools
import operator
from typing import NamedTuple

import jax.numpy as jnp

from collapipe_jax.core.batch_axis import sum_nodes
from collapipe_jax.edge.cost.chain import from_previous_active
from collapipe_jax.edge.cost.fixed_partition import FixedPartition
from collapipe_jax.edge.cost.link_quality import BitTimes
from collapipe_jax.edge.cost.maximum import Maximum, MaximumRule
from collapipe_jax.edge.cost.shapes import Broadcast, PerCluster, PerHop, PerMove, PerNode
from collapipe_jax.edge.cost.timeline import flow_time_s


class AirTimes(NamedTuple):
    """Time on air of every message, without overheads; 0 where idle."""

    hop_s: PerHop  # of a micro-batch
    move_s: PerMove
    uplink_s: PerCluster  # of a micro-batch
    downlink_s: PerCluster  # of a micro-batch
    model_uplink_s: PerCluster  # of all parameters, and of secure aggregation
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
    upload_s: PerCluster  # and to the base station, with all of secure aggregation


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
    """D2D stages of a flow by node: its hop, with half duplex the hop that ends at it too.

    Source: docs/system-model.md (30).
    """
    if fixed.radio.duplex == "full":
        return hop_s
    return hop_s + from_previous_active(hop_s, fixed.active)


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


def iteration_time_s(flows: FlowTimes, micro_batches: PerCluster) -> PerCluster:
    """Time of one local step of every cluster. Source: docs/system-model.md (12)."""
    longest_s = flows.forward.value + flows.backward.value
    return flow_time_s(flows.sum_s, longest_s, micro_batches)


def latency_parts(fixed: FixedPartition, air: AirTimes, flows: FlowTimes) -> LatencyParts:
    """Latency of every cluster by part, moments and secure aggregation included.

    Source: docs/system-model.md (13).
    """
    distribute_s, upload_s = sum_nodes(air.move_s[1]), air.model_uplink_s
    if fixed.moments is not None:
        distribute_s = distribute_s + fixed.moments.return_s
    if fixed.secure_s is not None:
        upload_s = upload_s + fixed.secure_s
    return LatencyParts(
        download_s=air.model_downlink_s,
        distribute_s=distribute_s,
        iterations_s=fixed.local_steps * iteration_time_s(flows, fixed.micro_batches),
        collect_s=sum_nodes(air.move_s[0]),
        upload_s=upload_s,
    )


def cluster_latency_s(parts: LatencyParts) -> PerCluster:
    """Latency of every cluster. Source: docs/system-model.md (14)."""
    return functools.reduce(operator.add, parts)


def compute_latency_s(fixed: FixedPartition) -> PerCluster:
    """Latency of every cluster's compute stages alone."""
    compute = fixed.compute
    longest_s = compute.longest_s[0] + compute.longest_s[1]
    return fixed.local_steps * flow_time_s(compute.sum_s, longest_s, fixed.micro_batches)
