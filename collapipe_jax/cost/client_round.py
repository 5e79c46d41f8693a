"""Cost of a round in which devices are clients, docs/system-model.md, section 6.

Entries of a device that is left out are 0.
"""

import functools
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from collapipe_jax.cost.decision import ClientDecision
from collapipe_jax.cost.divergence import cluster_divergence, participating_weight
from collapipe_jax.cost.latency import LatencyParts
from collapipe_jax.cost.link_quality import d2e_hazard
from collapipe_jax.cost.memory import block_bytes
from collapipe_jax.cost.objective import round_objective, unit_costs
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round_cost import ClientTimes, RoundCost
from collapipe_jax.cost.workload import ModelEnds, Workload
from collapipe_jax.errors import InputError
from collapipe_jax.network.channel import bit_time_s, downlink_sinr, loss_probability, uplink_sinr

_PerClient = Float[Array, "N K"]


class _Links(NamedTuple):
    """SINRs and times of a bit between clients and the base station."""

    uplink_sinr: _PerClient
    uplink_bit_s: _PerClient
    downlink_sinr: _PerClient
    downlink_bit_s: _PerClient


def evaluate_clients(problem: RoundProblem, decision: ClientDecision) -> RoundCost:
    """Cost of a data-parallel decision, feasible or not.

    A client that cannot send makes latency and energies of its cluster, and latency,
    divergence and objective of the round, infinite. A cluster without a client costs
    nothing. Parts of a cluster's latency are those of its slowest client, and control units
    spend no energy.

    Raises:
      InputError: if the workload lacks the sizes of embedding and decoder.
    """
    links = _client_links(problem, decision)
    times = _client_times(problem, decision, links)
    latency_s = functools.reduce(operator.add, times)
    broken = jnp.any(~jnp.isfinite(latency_s), axis=1)
    cluster_latency_s = jnp.where(broken, jnp.inf, jnp.max(latency_s, axis=1))
    hazard = _client_hazard(problem, decision, links)
    divergence = jnp.where(broken, jnp.inf, _client_divergence(problem, decision, hazard))
    energy_j = _client_energy_j(problem, decision, links)
    energy_j = jnp.concatenate([jnp.zeros_like(energy_j[:, :1]), energy_j], axis=1)
    energy_j = jnp.where(broken[:, None], jnp.inf, energy_j)
    round_s = jnp.max(cluster_latency_s)
    costs = unit_costs(problem)
    drift = jnp.sum(costs.energy_per_j * energy_j.T, axis=0) + costs.divergence * divergence
    return RoundCost(
        latency_s=round_s,
        cluster_latency_s=cluster_latency_s,
        compute_latency_s=jnp.max(times.computing_s),
        parts=_slowest_parts(times, latency_s),
        flows=None,
        energy_j=energy_j,
        memory_bytes=client_memory_bytes(problem.workload, decision),
        loss_probability=loss_probability(hazard),
        divergence=jnp.sum(divergence),
        objective=round_objective(costs, round_s, drift),
        absent=~jnp.any(decision.samples > 0, axis=1),
        clients=times,
    )


def _client_links(problem: RoundProblem, decision: ClientDecision) -> _Links:
    """Links of every client with its own gain and share.

    A device that is left out has the whole band, so that its unused entries stay finite.
    """
    radio, gain = problem.radio, problem.radio.d2e_gain[:, 1:]
    share = jnp.where(decision.samples > 0, decision.d2e_share, 1.0)
    up = uplink_sinr(radio, decision.d2e_power_w, gain, share)
    down = downlink_sinr(radio, gain)
    band_hz = share * radio.d2e_bandwidth_hz
    return _Links(up, bit_time_s(radio, band_hz, up), down, bit_time_s(radio, band_hz, down))


def _client_times(problem: RoundProblem, decision: ClientDecision, links: _Links) -> ClientTimes:
    """Times of every client; their sum is ``T_k`` of docs/system-model.md, section 6."""
    work, compute = problem.workload, problem.compute
    samples, clients = decision.samples, jnp.sum(decision.samples > 0)
    model_bits = _client_model_bits(work, decision)
    passes = (decision.client_blocks + 1) * (1.0 + work.backward_ratio) + decision.whole_model
    step_s = samples * _client_flops(work, decision) / compute.flops_per_s[:, 1:]
    step_s = step_s + passes * compute.block_overhead_s
    messages_s = jnp.zeros_like(step_s)
    if not decision.whole_model:
        behind = work.blocks - decision.client_blocks
        flops = behind * work.block_flops * (1.0 + work.backward_ratio) + work.decoder_flops
        step_s = step_s + clients * samples * flops / compute.es_flops_per_s
        step_s = step_s + (behind * (1.0 + work.backward_ratio) + 1) * compute.block_overhead_s
        up_bits = samples * work.uplink_bits
        down_bits = samples * work.activation_bits
        messages_s = up_bits * links.uplink_bit_s + down_bits * links.downlink_bit_s
        messages_s = messages_s + 2 * compute.link_overhead_s
    times = ClientTimes(
        download_s=model_bits * links.downlink_bit_s,
        computing_s=work.local_steps * step_s,
        messages_s=work.local_steps * messages_s,
        upload_s=model_bits * links.uplink_bit_s,
    )
    return jax.tree.map(lambda time_s: jnp.where(samples > 0, time_s, 0.0), times)


def _client_flops(work: Workload, decision: ClientDecision) -> Float[Array, ""]:
    """FLOPs of a client on one sample, forward and backward."""
    forward = work.embed_flops + decision.client_blocks * work.block_flops
    both = forward * (1.0 + work.backward_ratio)
    return both + work.decoder_flops if decision.whole_model else both


def _client_model_bits(work: Workload, decision: ClientDecision) -> Float[Array, ""]:
    """``D`` of docs/system-model.md, section 6: parameters of a client on a link."""
    bits = decision.client_blocks * work.block_param_bits + work.embedding_param_bits
    return bits + model_ends(work).decoder_param_bits if decision.whole_model else bits


def model_ends(work: Workload) -> ModelEnds:
    """Sizes of embedding and decoder.

    Raises:
      InputError: if the workload lacks them.
    """
    if work.ends is None:
        raise InputError(
            "workload.ends",
            None,
            "a data-parallel policy needs the sizes of embedding and decoder, which a network "
            "on file does not hold",
            "Build the network from a configuration, or choose a pipeline policy",
        )
    return work.ends


def _client_energy_j(problem: RoundProblem, decision: ClientDecision, links: _Links) -> _PerClient:
    """``E_k`` of docs/system-model.md, section 6."""
    work, compute = problem.workload, problem.compute
    samples = work.local_steps * decision.samples
    computing_j = samples * _client_flops(work, decision) * compute.joules_per_flop[:, 1:]
    up_bits = _client_model_bits(work, decision)
    if not decision.whole_model:
        up_bits = up_bits + samples * work.uplink_bits
    power_w = decision.d2e_power_w / problem.radio.amplifier_efficiency
    sending_j = power_w * up_bits * links.uplink_bit_s
    return jnp.where(decision.samples > 0, computing_j + sending_j, 0.0)


def client_memory_bytes(work: Workload, decision: ClientDecision) -> _PerClient:
    """Memory of every client, for its cluster's largest part of a mini-batch."""
    ends, blocks = model_ends(work), decision.client_blocks
    largest = jnp.max(decision.samples, axis=1, keepdims=True)
    memory = blocks * block_bytes(work, largest)
    memory = memory + jnp.where(blocks > 0, largest * work.block_working_bytes, 0.0)
    memory = memory + ends.embedding_static_bytes
    if decision.whole_model:
        memory = memory + ends.decoder_static_bytes
    return jnp.where(decision.samples > 0, memory, 0.0)


def _client_hazard(problem: RoundProblem, decision: ClientDecision, links: _Links) -> _PerClient:
    """Hazard ``Lambda_k`` of a client's one micro-batch: its uplink and its downlink."""
    if decision.whole_model:
        return jnp.zeros(decision.samples.shape)
    hazard = d2e_hazard(problem, decision.samples, links.uplink_sinr, links.downlink_sinr)
    return jnp.where(decision.samples > 0, hazard, 0.0)


def _client_divergence(
    problem: RoundProblem, decision: ClientDecision, hazard: _PerClient
) -> Float[Array, " N"]:
    """Divergence of every cluster's clients, of weight ``w_n B_k / B`` and ``M = 1``."""
    participates = jnp.any(decision.samples > 0, axis=1)
    weight = participating_weight(problem.learning.cluster_weight, participates)
    weight = weight[:, None] * decision.samples / problem.workload.batch
    batch = jnp.maximum(decision.samples, 1)
    return jnp.sum(cluster_divergence(problem.learning, weight, batch, 1).at(hazard), axis=1)


def _slowest_parts(times: ClientTimes, latency_s: _PerClient) -> LatencyParts:
    """Parts of the latency of every cluster's slowest client."""
    slowest = jnp.argmax(latency_s, axis=1)[:, None]
    picked = ClientTimes(*(jnp.take_along_axis(part, slowest, axis=1)[:, 0] for part in times))
    nothing = jnp.zeros_like(picked.download_s)
    return LatencyParts(
        download_s=picked.download_s,
        distribute_s=nothing,
        iterations_s=picked.computing_s + picked.messages_s,
        collect_s=nothing,
        upload_s=picked.upload_s,
    )
