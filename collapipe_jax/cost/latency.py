"""Latency of a round: times of a micro-batch, flows, and the moves of parameters."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.cost.decision import Decision, Hops, active_nodes, is_present
from collapipe_jax.cost.links import Links, message_time_s
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.timeline import flow_time_s


class StageTimes(NamedTuple):
    """Time of one micro-batch on every resource, 0 where nothing is done.

    Attributes:
      embed_s: forward and backward on the control unit, ``[N]`` each.
      device_s: forward and backward on the devices, ``[N, K]`` each.
      hop_s: messages between nodes, ``[N, K + 1]`` each.
      uplink_s, decoder_s, downlink_s: ``[N]``.
    """

    embed_s: Hops
    device_s: Hops
    hop_s: Hops
    uplink_s: Array
    decoder_s: Array
    downlink_s: Array


class LatencyParts(NamedTuple):
    """Parts of a cluster's latency, ``[N]`` each; their sum is (14).

    Attributes:
      download_s, distribute_s: parameters from the base station, and to the devices.
      iterations_s: all local steps.
      collect_s, upload_s: parameters back from the devices, and to the base station.
    """

    download_s: Array
    distribute_s: Array
    iterations_s: Array
    collect_s: Array
    upload_s: Array


def forward_time_s(samples: Array, flops: Array, flops_per_s: Array, overhead_s: Array) -> Array:
    """Time of a micro-batch's forward pass. Source: docs/system-model.md (8). Shapes broadcast."""
    return samples * flops / flops_per_s + overhead_s


def stage_times(problem: RoundProblem, decision: Decision, links: Links) -> StageTimes:
    """Time of one micro-batch on every resource, docs/system-model.md (8)-(10)."""
    work, compute = problem.workload, problem.compute
    samples = work.batch / decision.micro_batches
    active = active_nodes(decision.segments)
    present = active[:, 0]
    flops_per_s, overhead_s = compute.flops_per_s, compute.block_overhead_s
    block_s = forward_time_s(samples[:, None], work.block_flops, flops_per_s[:, 1:], overhead_s)
    device_s = jnp.where(active[:, 1:], decision.segments * block_s, 0.0)
    embed_s = forward_time_s(samples, work.embed_flops, flops_per_s[:, 0], overhead_s)
    embed_s = jnp.where(present, embed_s, 0.0)
    activation_bits = samples * work.activation_bits

    def hop_s(rate_bps):
        message = message_time_s(activation_bits[:, None], rate_bps) + compute.link_overhead_s
        return jnp.where(active, message, 0.0)

    def d2e_s(bits, rate_bps):
        message = message_time_s(bits, rate_bps) + compute.link_overhead_s
        return jnp.where(present, message, 0.0)

    server_share = compute.es_flops_per_s / problem.clusters
    decoder_s = forward_time_s(samples, work.decoder_flops, server_share, overhead_s)
    return StageTimes(
        embed_s=Hops(embed_s, work.backward_ratio * embed_s),
        device_s=Hops(device_s, work.backward_ratio * device_s),
        hop_s=Hops(*(hop_s(rate) for rate in links.hop_rate_bps)),
        uplink_s=d2e_s(samples * (work.activation_bits + work.target_bits), links.uplink_rate_bps),
        decoder_s=jnp.where(present, decoder_s, 0.0),
        downlink_s=d2e_s(activation_bits, links.downlink_rate_bps),
    )


def forward_flow_s(stages: StageTimes) -> Array:
    """Stages of the forward flow in order, ``[N, 2 K + 4]``.

    Embedding, hop, device, hop, ..., device, hop, uplink, decoder; a device that is
    skipped and its hop count 0.
    """
    nodes = jnp.concatenate([stages.embed_s.forward[:, None], stages.device_s.forward], axis=1)
    chain = jnp.stack([nodes, stages.hop_s.forward], axis=2).reshape(nodes.shape[0], -1)
    return jnp.concatenate([chain, stages.uplink_s[:, None], stages.decoder_s[:, None]], axis=1)


def backward_flow_s(stages: StageTimes) -> Array:
    """Stages of the backward flow in order, ``[N, 2 K + 3]``.

    Downlink, hop, device, ..., hop, embedding: the forward chain turned round.
    """
    nodes = jnp.concatenate([stages.embed_s.backward[:, None], stages.device_s.backward], axis=1)
    chain = jnp.stack([nodes, stages.hop_s.backward], axis=2).reshape(nodes.shape[0], -1)
    return jnp.concatenate([stages.downlink_s[:, None], chain[:, ::-1]], axis=1)


def iteration_time_s(stages: StageTimes, micro_batches: Array) -> Array:
    """Time of one local step of every cluster, ``[N]``. Source: docs/system-model.md (12)."""
    forward = flow_time_s(forward_flow_s(stages), micro_batches)
    return forward + flow_time_s(backward_flow_s(stages), micro_batches)


def compute_latency_s(problem: RoundProblem, decision: Decision, stages: StageTimes) -> Array:
    """``T_comp`` of every cluster, ``[N]``: (12) over compute stages alone, ``H`` times."""
    forward = jnp.concatenate(
        [stages.embed_s.forward[:, None], stages.device_s.forward, stages.decoder_s[:, None]],
        axis=1,
    )
    backward = jnp.concatenate([stages.embed_s.backward[:, None], stages.device_s.backward], axis=1)
    step_s = flow_time_s(forward, decision.micro_batches)
    step_s = step_s + flow_time_s(backward, decision.micro_batches)
    return problem.workload.local_steps * step_s


def latency_parts(
    problem: RoundProblem, decision: Decision, links: Links, stages: StageTimes
) -> LatencyParts:
    """Latency of every cluster by part, docs/system-model.md (13)-(14)."""
    work = problem.workload
    present = is_present(decision.segments)
    block_bits = decision.segments * work.block_param_bits
    model_bits = work.blocks * work.block_param_bits + work.embedding_param_bits

    def devices_s(rate_bps):
        times = message_time_s(block_bits, rate_bps)
        return jnp.sum(jnp.where(decision.segments > 0, times, 0.0), axis=1)

    def model_s(rate_bps):
        return jnp.where(present, message_time_s(model_bits, rate_bps), 0.0)

    return LatencyParts(
        download_s=model_s(links.downlink_rate_bps),
        distribute_s=devices_s(links.distribute_rate_bps),
        iterations_s=work.local_steps * iteration_time_s(stages, decision.micro_batches),
        collect_s=devices_s(links.collect_rate_bps),
        upload_s=model_s(links.uplink_rate_bps),
    )
