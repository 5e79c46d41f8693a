"""Cost of a round in which devices are clients, docs/system-model.md, section 6.

Entries of a device that is left out are 0.
"""

import functools
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.computing import (
    block_bytes,
    product_or_zero,
    server_memory_bytes,
    server_work,
)
from collapipe_jax.edge.cost.convergence import (
    ClusterDivergence,
    cluster_divergence,
    participating_weight,
)
from collapipe_jax.edge.cost.decision import Broadcast, ClientDecision
from collapipe_jax.edge.cost.fixed_partition import interference_gain
from collapipe_jax.edge.cost.latency import LatencyParts
from collapipe_jax.edge.cost.link_quality import d2e_hazard, interference_w
from collapipe_jax.edge.cost.objective import round_objective, unit_costs
from collapipe_jax.edge.cost.problem import ModelEnds, RoundProblem, Workload
from collapipe_jax.edge.cost.round_cost import ClientTimes, RoundCost
from collapipe_jax.edge.cost.terms import (
    SenderAddition,
    Senders,
    d2d_signals,
    reading,
    sender_additions,
    with_request,
)
from collapipe_jax.edge.network.channel import (
    bit_time_s,
    broadcast_bit_s,
    d2d_sinr,
    downlink_sinr,
    loss_probability,
    narrowed_bit_time_s,
    uplink_sinr,
)

# Links of data-parallel clients: D2E links of senders, D2D links of replicas in a cluster.
#
# Equations are those of docs/system-model.md, section 6.

_PerSender = Float[Array, "N S"]


class ClientLinks(NamedTuple):
    """SINRs and times of a bit between senders and the base station."""

    uplink_sinr: _PerSender
    uplink_bit_s: _PerSender
    downlink_sinr: _PerSender
    downlink_bit_s: _PerSender
    parameter_bit_s: _PerSender  # of parameters on the downlink


class ReplicaLinks(NamedTuple):
    """SINRs and times of a bit between a control unit and its devices, on the whole D2D band."""

    down_sinr: Float[Array, "N K"]
    down_bit_s: Float[Array, "N K"]
    up_sinr: Float[Array, "N K"]
    up_bit_s: Float[Array, "N K"]


def _by_client(per_node: Float[Array, "N J"], decision: ClientDecision) -> Float[Array, "N C"]:
    """Entries of the nodes that train."""
    return per_node[:, :1] if decision.tier == "control_units" else per_node[:, 1:]


def by_sender(per_node: Float[Array, "N J"], decision: ClientDecision) -> _PerSender:
    """Entries of the nodes that talk to the base station."""
    return per_node[:, 1:] if decision.tier == "devices" else per_node[:, :1]


def sends(decision: ClientDecision) -> Bool[Array, "N S"]:
    """Senders that take part in the round."""
    trains = decision.samples > 0
    return jnp.any(trains, axis=1, keepdims=True) if decision.tier == "hierarchical" else trains


def client_links(problem: RoundProblem, decision: ClientDecision) -> ClientLinks:
    """D2E links of every sender with its own gain and share.

    One that is left out has the whole band, so that its unused entries stay finite.
    """
    radio, used = problem.radio, sends(decision)
    gain = by_sender(radio.d2e_gain, decision)
    share = jnp.where(used, decision.d2e_share, 1.0)
    band_hz = share * radio.d2e_bandwidth_hz
    up, down = uplink_sinr(radio, decision.d2e_power_w, gain, share), downlink_sinr(radio, gain)
    down_bit_s = bit_time_s(radio, band_hz, down)
    parameter_bit_s = down_bit_s
    if decision.broadcast:
        parameter_bit_s = jnp.full_like(down_bit_s, broadcast_bit_s(radio, down, used))
    return ClientLinks(up, bit_time_s(radio, band_hz, up), down, down_bit_s, parameter_bit_s)


def replica_links(problem: RoundProblem, decision: ClientDecision) -> ReplicaLinks:
    """D2D links of a hierarchical round: nodes that take part send at full power."""
    radio, trains = problem.radio, decision.samples > 0
    active = jnp.concatenate([sends(decision), trains], axis=1)
    power_w = jnp.where(active, radio.d2d_power_max_w, 0.0)
    received_w = interference_w(interference_gain(radio), power_w.T).T
    down = d2d_sinr(radio, power_w[:, :1], radio.d2d_gain[:, 0, 1:], 1.0, received_w[:, 1:])
    up = d2d_sinr(radio, power_w[:, 1:], radio.d2d_gain[:, 1:, 0], 1.0, received_w[:, :1])
    band_hz = radio.d2d_bandwidth_hz
    down_bit_s = narrowed_bit_time_s(radio, band_hz, down)
    return ReplicaLinks(down, down_bit_s, up, narrowed_bit_time_s(radio, band_hz, up))


_PerClient = Float[Array, "N C"]


class _Exchange(NamedTuple):
    """Replicas between a control unit and its devices."""

    distribute_s: Float[Array, " N"]
    collect_s: Float[Array, " N"]
    sending_j: Float[Array, "N J"]
    received_s: Float[Array, "N J"]  # time that a node receives


def evaluate_clients(problem: RoundProblem, decision: ClientDecision) -> RoundCost:
    """Cost of a data-parallel decision, feasible or not.

    A client that cannot send makes latency and energies of its cluster, and latency,
    divergence and objective of the round, infinite. A cluster without a client costs
    nothing. Parts of a cluster's latency are those of its slowest client.

    Raises:
      InputError: if the workload lacks the sizes of embedding and decoder.
    """
    # Time of every client, and who never ends.
    links = client_links(problem, decision)
    exchange = _exchange(problem, decision)
    d2e_times = _d2e_times(problem, decision, links)
    times = _with_exchange(d2e_times, decision, exchange)
    latency_s = total_s(times)
    broken = jnp.any(~jnp.isfinite(latency_s), axis=1)
    cluster_latency_s = jnp.where(broken, jnp.inf, jnp.max(latency_s, axis=1))
    # What is lost on the way, and what that costs in convergence.
    hazard = _client_hazard(problem, decision, links)
    bounds = client_divergence(problem, decision)
    divergence = jnp.where(broken, jnp.inf, bounds.at(hazard).sum(axis=1))
    # Energy of all nodes.
    energy_j = _node_energy_j(problem, decision, links) + exchange.sending_j
    received_s = _received_s(problem, decision, links) + exchange.received_s
    energy_j = energy_j + product_or_zero(problem.compute.receive_power_w, received_s)
    energy_j = jnp.where(broken[:, None], jnp.inf, energy_j)
    # The objective (P2) of the whole round.
    round_s = jnp.max(cluster_latency_s)
    costs = unit_costs(problem)
    drift = jnp.sum(costs.energy_per_j * energy_j.T, axis=0) + costs.divergence * divergence
    memory_bytes, own_bytes = client_memory_bytes(problem.workload, decision), None
    if decision.tier == "control_units":
        memory_bytes, own_bytes = jnp.zeros(energy_j[:, 1:].shape), memory_bytes[:, 0]
    return RoundCost(
        latency_s=round_s,
        cluster_latency_s=cluster_latency_s,
        compute_latency_s=jnp.max(times.computing_s),
        parts=_slowest_parts(d2e_times, latency_s, exchange),
        flows=None,
        energy_j=energy_j,
        memory_bytes=memory_bytes,
        control_unit_memory_bytes=own_bytes,
        server_memory_bytes=clients_at_server_bytes(problem.workload, decision),
        loss_probability=loss_probability(hazard),
        divergence=jnp.sum(divergence),
        objective=round_objective(costs, round_s, drift),
        absent=~jnp.any(decision.samples > 0, axis=1),
        clients=times,
    )


def client_times(problem: RoundProblem, decision: ClientDecision) -> ClientTimes:
    """Times of every client, 0 of one that is left out."""
    times = _d2e_times(problem, decision, client_links(problem, decision))
    return _with_exchange(times, decision, _exchange(problem, decision))


def total_s(times: ClientTimes) -> _PerClient:
    """Latency of every client, from its times."""
    return functools.reduce(operator.add, times)


def client_latency_s(problem: RoundProblem, decision: ClientDecision) -> _PerClient:
    """Latency of every client, 0 of one that is left out."""
    return total_s(client_times(problem, decision))


def _exchange(problem: RoundProblem, decision: ClientDecision) -> _Exchange:
    """Replicas of a hierarchical round over D2D, 0 in another.

    Source: docs/system-model.md (22).
    """
    trains, power_w = decision.samples > 0, problem.radio.d2d_power_max_w
    if decision.tier != "hierarchical":
        none = jnp.zeros(len(trains))
        return _Exchange(none, none, jnp.zeros_like(power_w), jnp.zeros_like(power_w))
    samples, links = decision.samples, replica_links(problem, decision)
    down_bit_s = jnp.where(trains, links.down_bit_s, 0.0)
    up_bit_s = jnp.where(trains, links.up_bit_s, 0.0)
    # Replicas are the same for all devices; signals are each one's.
    signals = d2d_signals(problem, decision.samples.T).move_bits
    reports, grants = jnp.swapaxes(jnp.broadcast_to(signals, (2, *trains.T.shape)), 1, 2)
    granted_s = product_or_zero(grants, down_bit_s)
    # In one transmission a device hears the rows of all.
    heard = reading(problem, _samples_spoken_for(decision) if decision.broadcast else samples)
    heard_s = client_model_bits(heard, decision) * down_bit_s
    distribute_s = jnp.sum(heard_s, axis=1)
    if decision.broadcast:
        distribute_s = jnp.max(heard_s, axis=1)
        heard_s = jnp.where(trains, distribute_s[:, None], 0.0)
    distribute_s = distribute_s + jnp.sum(granted_s, axis=1)
    up_bits = _client_update_bits(reading(problem, samples), decision) + reports
    up_s = with_request(problem, samples, up_bits) * up_bit_s
    air_s = jnp.concatenate([distribute_s[:, None], up_s], axis=1)
    drawn_w = power_w / problem.radio.amplifier_efficiency
    collect_s = jnp.sum(up_s, axis=1)
    received_s = jnp.concatenate([collect_s[:, None], heard_s + granted_s], axis=1)
    return _Exchange(distribute_s, collect_s, drawn_w * air_s, received_s)


def _with_exchange(
    times: ClientTimes, decision: ClientDecision, exchange: _Exchange
) -> ClientTimes:
    """Times of every client; their sum is ``T_k`` of docs/system-model.md, section 6."""
    trains = decision.samples > 0
    return times._replace(
        download_s=jnp.where(trains, times.download_s + exchange.distribute_s[:, None], 0.0),
        upload_s=jnp.where(trains, times.upload_s + exchange.collect_s[:, None], 0.0),
    )


def _d2e_times(problem: RoundProblem, decision: ClientDecision, links: ClientLinks) -> ClientTimes:
    """Times of every client without the hop over a control unit."""
    work, samples = _sender_workload(problem, decision), decision.samples
    step = _step_times(problem, decision, links)
    added = _additions(problem, decision)
    up_bits = _client_update_bits(work, decision) + added.upload_bits
    upload_s = up_bits * links.uplink_bit_s + added.upload_s
    times = ClientTimes(
        download_s=_download_s(problem, decision, links),
        computing_s=work.local_steps * step.computing_s,
        messages_s=work.local_steps * step.messages_s,
        upload_s=upload_s,
    )
    return jax.tree.map(lambda time_s: jnp.where(samples > 0, time_s, 0.0), times)


class _StepTimes(NamedTuple):
    """Times of a local step."""

    computing_s: _PerClient  # without messages
    messages_s: _PerClient  # what they add


class _StepStages(NamedTuple):
    """Stages of a local step of a split model, each for all micro-batches of a client."""

    device_s: _PerClient  # both passes
    uplink_s: Broadcast
    server_s: _PerClient  # both passes
    downlink_s: Broadcast


def _step_times(problem: RoundProblem, decision: ClientDecision, links: ClientLinks) -> _StepTimes:
    """A local step on the client, on its links and on the edge server for it."""
    work, compute, samples = problem.workload, problem.compute, decision.samples
    passes = (decision.client_blocks + 1) * (1.0 + work.backward_ratio) + decision.whole_model
    count = client_micro_batches(decision)
    pieces = jnp.minimum(decision.accumulation, samples) if decision.whole_model else count
    device_s = samples * _client_flops(work, decision) / _by_client(compute.flops_per_s, decision)
    device_s = device_s + pieces * passes * compute.block_overhead_s
    if decision.whole_model:
        return _StepTimes(device_s, jnp.zeros(samples.shape))
    behind, clients = work.blocks - decision.client_blocks, jnp.sum(samples > 0)
    server = server_work(work, behind)
    server_s = clients * samples * server.flops / compute.es_flops_per_s
    launches_s = count * server.passes * compute.block_overhead_s
    up_s = samples * work.uplink_bits * links.uplink_bit_s
    down_s = samples * work.activation_bits * links.downlink_bit_s
    sent_s = count * compute.link_overhead_s
    stages = _StepStages(device_s, up_s + sent_s, server_s + launches_s, down_s + sent_s)
    alone = stages._replace(uplink_s=0.0, downlink_s=0.0)
    both_saved_s, alone_saved_s = (
        _overlap_s(each, work.backward_ratio, count) for each in (stages, alone)
    )
    return _StepTimes(
        computing_s=device_s + server_s + launches_s - alone_saved_s,
        messages_s=up_s + down_s + 2 * sent_s - (both_saved_s - alone_saved_s),
    )


def _overlap_s(
    stages: _StepStages, backward_ratio: Array, micro_batches: Int[Array, "N K"]
) -> _PerClient:
    """Time that micro-batches save since they pass through the stages at once.

    Nothing is saved over a dead link. Source: docs/system-model.md (52).
    """
    total_s = functools.reduce(operator.add, stages)
    behind_s = total_s - stages.device_s
    forward_s = stages.device_s / (1.0 + backward_ratio)
    passes_s = forward_s, backward_ratio * forward_s, *stages[1:]
    longest_s = functools.reduce(jnp.maximum, passes_s)
    saved_s = jnp.minimum(behind_s, (1.0 - 1.0 / micro_batches) * (total_s - longest_s))
    return jnp.where(jnp.isfinite(total_s), saved_s, 0.0)


def client_micro_batches(decision: ClientDecision) -> Int[Array, "N C"]:
    """Micro-batches of every client's part: of a sample or more, and one of whole models."""
    most = 1 if decision.whole_model else decision.micro_batches
    return jnp.clip(decision.samples, 1, most)


def _client_flops(work: Workload, decision: ClientDecision) -> Float[Array, ""]:
    """FLOPs of a client on one sample, forward and backward."""
    forward = work.embed_flops + decision.client_blocks * work.block_flops
    both = forward * (1.0 + work.backward_ratio)
    return both + work.decoder_flops if decision.whole_model else both


def _additions(problem: RoundProblem, decision: ClientDecision) -> SenderAddition:
    """What terms add to every sender of a round."""
    nodes = 1.0
    if decision.tier == "hierarchical":
        nodes = 1.0 + jnp.sum(decision.samples > 0, axis=1, keepdims=True)
    work = _sender_workload(problem, decision)
    senders = Senders(
        takes_part=sends(decision),
        model_bits=client_model_bits(work, decision),
        update_bits=_client_update_bits(work, decision),
        nodes=nodes,
        power_w=by_sender(problem.compute.node_power_w, decision),
        samples=_samples_spoken_for(decision),
    )
    return sender_additions(problem, senders)


def _download_s(
    problem: RoundProblem, decision: ClientDecision, links: ClientLinks
) -> Float[Array, "N S"]:
    """Time in which a sender gets the parameters, and what terms add.

    What is the same for all comes as parameters do.
    """
    added, work = _additions(problem, decision), _sender_workload(problem, decision)
    if decision.broadcast:
        work = reading(problem, jnp.sum(decision.samples))
    shared_bits = client_model_bits(work, decision) + added.shared_bits
    own_s = product_or_zero(jnp.asarray(added.own_bits), links.downlink_bit_s)
    return shared_bits * links.parameter_bit_s + own_s


def _samples_spoken_for(decision: ClientDecision) -> Int[Array, "N S"]:
    """Samples of a local step, of all clients that a sender speaks for."""
    if decision.tier == "hierarchical":
        return jnp.sum(decision.samples, axis=1, keepdims=True)
    return decision.samples


def _sender_workload(problem: RoundProblem, decision: ClientDecision) -> Workload:
    """The workload of senders, whose embedding on a link has the rows of their samples."""
    return reading(problem, _samples_spoken_for(decision))


def client_model_bits(work: Workload, decision: ClientDecision) -> Float[Array, "..."]:
    """``D`` of docs/system-model.md, section 6: parameters of a client on a link."""
    bits = decision.client_blocks * work.block_param_bits + work.embedding_param_bits
    return bits + model_ends(work).decoder_param_bits if decision.whole_model else bits


def _client_update_bits(work: Workload, decision: ClientDecision) -> Float[Array, "..."]:
    """Bits of a client's parameters on their way up, docs/system-model.md, section 17."""
    return work.update_ratio * client_model_bits(work, decision)


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


def _node_energy_j(
    problem: RoundProblem, decision: ClientDecision, links: ClientLinks
) -> Float[Array, "N J"]:
    """``E_k`` of docs/system-model.md, section 6: computing and D2E messages."""
    work, compute = _sender_workload(problem, decision), problem.compute
    samples = work.local_steps * decision.samples
    joules_per_flop = _by_client(compute.joules_per_flop, decision)
    computing_j = samples * _client_flops(work, decision) * joules_per_flop
    added = _additions(problem, decision)
    up_bits = _client_update_bits(work, decision) + added.upload_bits
    if not decision.whole_model:
        up_bits = up_bits + samples * work.uplink_bits
    sending_j = jnp.where(sends(decision), up_bits * links.uplink_bit_s, 0.0)
    sending_j = decision.d2e_power_w / problem.radio.amplifier_efficiency * sending_j
    sending_j = sending_j + added.node_j
    idle_j = jnp.zeros_like(compute.joules_per_flop)
    if decision.tier == "hierarchical":
        return jnp.concatenate([sending_j, computing_j], axis=1)
    at = slice(1) if decision.tier == "control_units" else slice(1, None)
    return idle_j.at[:, at].set(computing_j + sending_j)


def _received_s(
    problem: RoundProblem, decision: ClientDecision, links: ClientLinks
) -> Float[Array, "N J"]:
    """Time that every node receives from the base station: parameters, and gradients of a cut."""
    work, nodes_s = problem.workload, jnp.zeros_like(problem.compute.joules_per_flop)
    down_s = _download_s(problem, decision, links)
    if not decision.whole_model:
        bits = work.local_steps * decision.samples * work.activation_bits
        down_s = down_s + bits * links.downlink_bit_s
    at = slice(1, None) if decision.tier == "devices" else slice(1)
    return nodes_s.at[:, at].set(jnp.where(sends(decision), down_s, 0.0))


def client_memory_bytes(work: Workload, decision: ClientDecision) -> _PerClient:
    """Memory of every client, which keeps the activations of one piece of its part.

    Of a split model it keeps those of all micro-batches, and works on one at a time.
    """
    ends, blocks = model_ends(work), decision.client_blocks
    piece = -(-decision.samples // decision.accumulation)
    at_once = -(-piece // client_micro_batches(decision))
    memory = blocks * block_bytes(work, piece)
    memory = memory + jnp.where(blocks > 0, at_once * work.block_working_bytes, 0.0)
    memory = memory + ends.embedding_static_bytes
    if decision.whole_model:
        memory = memory + ends.decoder_static_bytes
    return jnp.where(decision.samples > 0, memory, 0.0)


def clients_at_server_bytes(work: Workload, decision: ClientDecision) -> Float[Array, ""]:
    """Memory of the edge server, which trains a copy of its part for every client.

    It keeps a micro-batch of each. With whole models it trains nothing.
    """
    if decision.whole_model:
        return jnp.zeros(())
    at_once = -(-decision.samples // client_micro_batches(decision))
    behind, copies = work.blocks - decision.client_blocks, jnp.sum(decision.samples > 0)
    return server_memory_bytes(work, behind, copies, jnp.sum(at_once))


def _client_hazard(
    problem: RoundProblem, decision: ClientDecision, links: ClientLinks
) -> _PerClient:
    """Hazard ``Lambda_k`` of a client's micro-batch: its uplink and its downlink."""
    if decision.whole_model:
        return jnp.zeros(decision.samples.shape)
    samples = decision.samples / client_micro_batches(decision)
    hazard = d2e_hazard(problem, samples, links.uplink_sinr, links.downlink_sinr)
    return jnp.where(decision.samples > 0, hazard, 0.0)


def client_divergence(problem: RoundProblem, decision: ClientDecision) -> ClusterDivergence:
    """Divergence of every client by its losses, of weight ``w_n B_k / B``."""
    participates = jnp.any(decision.samples > 0, axis=1)
    weight = participating_weight(problem.learning.cluster_weight, participates)
    weight = weight[:, None] * decision.samples / problem.workload.batch
    batch = jnp.maximum(decision.samples, 1)
    return cluster_divergence(problem.learning, weight, batch, client_micro_batches(decision))


def _slowest_parts(times: ClientTimes, latency_s: _PerClient, exchange: _Exchange) -> LatencyParts:
    """Parts of the latency of every cluster's slowest client."""
    slowest = jnp.argmax(latency_s, axis=1)[:, None]
    picked = ClientTimes(*(jnp.take_along_axis(part, slowest, axis=1)[:, 0] for part in times))
    return LatencyParts(
        download_s=picked.download_s,
        distribute_s=exchange.distribute_s,
        iterations_s=picked.computing_s + picked.messages_s,
        collect_s=exchange.collect_s,
        upload_s=picked.upload_s,
    )
