"""First stage of a round's cost: all that shares and powers do not change.

Segments and micro-batches fix which links exist, what they carry and how long nodes
compute. :func:`fix_partition` works this out once; :func:`.evaluate.round_terms` then
takes any shares and powers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from collapipe_jax.core.batch_axis import sum_nodes
from collapipe_jax.core.quantity import Struct, part
from collapipe_jax.edge.cost.chain import (
    Chain,
    Messages,
    add_at_gateway,
    at_gateway,
    at_others,
    at_receivers,
    at_senders,
    chain_of,
    gain_to_next,
    gateway_gains,
)
from collapipe_jax.edge.cost.computing import (
    ComputeStages,
    compute_stages,
    node_computing_energy_j,
    product_or_zero,
)
from collapipe_jax.edge.cost.convergence import (
    ClusterDivergence,
    cluster_divergence,
    participating_weight,
)
from collapipe_jax.edge.cost.decision import (
    ActiveNodes,
    Broadcast,
    CrossGain,
    Decision,
    MicroBatches,
    PerCluster,
    PerHop,
    PerMove,
    PerNode,
    PerRound,
    Routes,
    Segments,
    decision_partition,
)
from collapipe_jax.edge.cost.objective import UnitCosts, unit_costs
from collapipe_jax.edge.cost.problem import RoundProblem, Workload
from collapipe_jax.edge.cost.terms import (
    PARTITION_TERMS,
    PartitionTerm,
    Senders,
    broadcast_bits,
    partition_additions,
    reading,
    sender_additions,
    with_request,
)
from collapipe_jax.edge.network.channel import (
    Radio,
    broadcast_bit_s,
    downlink_sinr,
    transport_block_hazard,
)


class EnergyCaps(NamedTuple):
    """Caps on the energy of nodes in one round."""

    room_j: PerNode  # what a cap leaves for time on air, positive
    initial_multiplier: PerNode  # in units of the objective
    least_multiplier: PerRound  # from 0 none would come back


class FixedPartition(Struct):
    """A round whose segments and micro-batches are fixed.

    Idle nodes hold harmless numbers: gain 1, no bits, no energy.
    """

    radio: Radio = part("bandwidths, noise, and the laws of rates and losses")
    chain: Chain = part("nodes that compute, and the gateway")
    routes: Routes | None = part("gateways and broadcast, if the round has any", default=None)
    d2d_power_max_w: PerNode = part("limits of power on the D2D band")
    micro_batches: PerCluster = part("of a mini-batch")
    local_steps: PerRound = part("of a round")
    hop_gain: PerHop = part("of both messages of a hop")
    move_gain: PerMove = part("from a node to its gateway and back")
    uplink_gain: PerCluster = part("of the gateway to the base station")
    downlink_sinr: PerCluster = part("of the gateway from the base station")
    cross_gain: CrossGain = part("from sender to receiver, activity included; 0 inside a cluster")
    cross_gain_to: CrossGain = part("the same by receiver and sender")
    hop_bits: PerNode = part("of a micro-batch on a hop")
    uplink_bits: PerCluster = part("of a micro-batch")
    downlink_bits: PerCluster = part("of a micro-batch")
    move_bits: PerMove = part("that a node returns and receives, parameters first of all")
    upload_bits: PerCluster = part("encoder, embedding, and what terms add")
    download_bits: PerCluster = part("likewise, but for what comes by broadcast")
    broadcast_s: PerCluster = part("in which parameters come down by broadcast")
    upload_s: PerCluster = part("time that terms add to the upload besides bits")
    prepare_s: PerCluster = part("time that terms add before blocks are distributed")
    hop_overhead_s: PerNode = part("of a D2D message")
    d2e_overhead_s: PerCluster = part("of a D2E message")
    compute: ComputeStages = part("compute stages of a local step")
    constant_j: PerNode = part("energy that shares and powers do not change")
    constant_cost: PerCluster = part("the same at the nodes' unit costs, and what terms add")
    sender_cost_per_j: Messages = part("unit cost of energy of a message's sender")
    receive_power_w: PerRound = part("that a node draws while it receives")
    receiver_cost_per_s: Messages = part("the same at unit costs, with the downlink last")
    hop_blocks: PerCluster = part("transport blocks of a micro-batch's D2D message")
    uplink_blocks: PerCluster = part("transport blocks of a micro-batch's uplink message")
    downlink_hazard: PerCluster = part("of a micro-batch")
    divergence: ClusterDivergence = part("of every cluster, by its losses")
    costs: UnitCosts = part("unit costs of the objective")
    caps: EnergyCaps | None = part("on the energy of its nodes, if there are any", default=None)

    @property
    def active(self) -> ActiveNodes:
        """Nodes of the round."""
        return self.chain.active


def fix_partition(
    problem: RoundProblem,
    segments: Segments,
    micro_batches: MicroBatches,
    terms: Sequence[PartitionTerm] = PARTITION_TERMS,
) -> FixedPartition:
    """Coefficients of a round, with or without batch axes, whose partition is fixed.

    ``terms`` are what its partition adds, by default all.
    """
    radio, learning = problem.radio, problem.learning
    work = reading(problem, problem.workload.batch)
    chain = chain_of(problem, segments)
    active, hops, gateway = chain.active, chain.hops, chain.gateway
    participates = chain.members[0]
    samples = work.batch / micro_batches

    def per_cluster(value):
        return jnp.where(participates, value, 0.0)

    step_bits = per_cluster(samples * work.activation_bits)
    uplink_bits = per_cluster(samples * work.uplink_bits)
    d2d_gain = problem.by_node.d2d_gain
    hop_gain = [gain_to_next(d2d_gain, chain), gain_to_next(jnp.swapaxes(d2d_gain, 0, 1), chain)]
    move_gain = [at_others(gain, gateway) for gain in gateway_gains(d2d_gain, gateway)]
    d2e_gain = at_gateway(problem.by_node.d2e_gain, gateway)
    down_sinr = downlink_sinr(radio, d2e_gain)
    down_hazard = per_cluster(transport_block_hazard(radio, down_sinr))
    cross_gain = interference_gain(radio)
    weight = participating_weight(learning.cluster_weight, participates)
    costs = unit_costs(problem)
    d2e_overhead_s = per_cluster(problem.compute.link_overhead_s)
    # What terms add outside of a cluster, where its gateway speaks for all, and inside.
    added = sender_additions(
        problem,
        Senders(
            takes_part=participates,
            model_bits=work.model_bits,
            update_bits=work.update_bits,
            nodes=sum_nodes(active.astype(samples.dtype)),
            power_w=at_gateway(jnp.swapaxes(problem.compute.node_power_w, 0, 1), gateway),
            samples=work.batch,
        ),
    )
    inside = partition_additions(problem, segments, terms)
    moved_bits = _parameter_bits(work, segments, chain)
    target_bits = work.local_steps * work.batch * work.target_bits
    own_bits = with_request(problem, work.batch, target_bits)
    returned_bits = work.update_ratio * moved_bits + _of_control_unit(own_bits, segments, chain)
    move_bits = jnp.stack([returned_bits, moved_bits]) + inside.move_bits
    # What all gateways receive may come by broadcast.
    model_bits = per_cluster(work.model_bits)
    shared_bits, broadcast_s = model_bits + added.shared_bits, jnp.zeros_like(model_bits)
    if problem.routes is not None:
        by_broadcast = problem.routes.broadcast > 0
        all_bits = broadcast_bits(problem, participates, shared_bits)
        all_s = _broadcast_time_s(radio, all_bits, down_sinr, participates)
        broadcast_s = jnp.where(by_broadcast, all_s, 0.0)
        shared_bits = jnp.where(by_broadcast, 0.0, shared_bits)
    receive_power_w = problem.compute.receive_power_w
    computing_j = node_computing_energy_j(problem, segments, participates)
    gateway_j = added.node_j + product_or_zero(receive_power_w, broadcast_s)
    constant_j = add_at_gateway(computing_j, gateway_j, gateway) + inside.node_j
    constant_cost = sum_nodes(costs.energy_per_j * constant_j) + inside.cost
    return FixedPartition(
        radio=radio,
        chain=chain,
        routes=problem.routes,
        d2d_power_max_w=problem.by_node.d2d_power_max_w,
        micro_batches=micro_batches.astype(samples.dtype),
        local_steps=work.local_steps,
        hop_gain=jnp.where(hops, jnp.stack(hop_gain), 1.0),
        move_gain=jnp.where(move_bits > 0, jnp.stack(move_gain), 1.0),
        uplink_gain=jnp.where(participates, d2e_gain, 1.0),
        downlink_sinr=jnp.where(participates, down_sinr, 1.0),
        cross_gain=cross_gain,
        cross_gain_to=jnp.moveaxis(cross_gain, (0, 1), (2, 3)),
        hop_bits=jnp.where(hops, step_bits, 0.0),
        uplink_bits=uplink_bits,
        downlink_bits=step_bits,
        move_bits=move_bits,
        upload_bits=work.update_ratio * model_bits + added.upload_bits,
        download_bits=shared_bits + added.own_bits,
        broadcast_s=broadcast_s,
        upload_s=per_cluster(added.upload_s),
        prepare_s=per_cluster(inside.prepare_s),
        hop_overhead_s=jnp.where(hops, d2e_overhead_s, 0.0),
        d2e_overhead_s=d2e_overhead_s,
        compute=compute_stages(problem, micro_batches, segments, participates),
        constant_j=constant_j,
        constant_cost=constant_cost,
        sender_cost_per_j=at_senders(costs.energy_per_j, chain),
        receive_power_w=receive_power_w,
        receiver_cost_per_s=at_receivers(receive_power_w * costs.energy_per_j, chain),
        hop_blocks=step_bits / radio.transport_block_bits,
        uplink_blocks=uplink_bits / radio.transport_block_bits,
        downlink_hazard=step_bits / radio.transport_block_bits * down_hazard,
        divergence=cluster_divergence(learning, weight, work.batch, micro_batches),
        costs=costs,
    )


def _parameter_bits(work: Workload, segments: Segments, chain: Chain) -> Float[Array, "K N *batch"]:
    """Bits of parameters that the gateway and every other node exchange, each way.

    A device gets its blocks, and the control unit the embedding. Source: docs/system-model.md (50).
    """
    of_devices = segments * work.block_param_bits
    of_devices = jnp.concatenate([jnp.zeros_like(of_devices[:1]), of_devices])
    embedding_bits = _of_control_unit(work.embedding_param_bits, segments, chain)
    return at_others(of_devices, chain.gateway) + embedding_bits


def _of_control_unit(
    number: Broadcast, segments: Segments, chain: Chain
) -> Float[Array, "K N *batch"]:
    """A number of the control unit in the gateway's place, where it takes part; else 0."""
    of_node = jnp.where(chain.members[:1], number, 0.0)
    by_node = jnp.concatenate([of_node, jnp.zeros(segments.shape, of_node.dtype)])
    return at_others(by_node, chain.gateway)


def _broadcast_time_s(
    radio: Radio, bits: PerCluster, sinr: Broadcast, participates: Bool[Array, " N *batch"]
) -> PerCluster:
    """Time of a broadcast to the gateways of all clusters that take part, and 0 of the others.

    Bits and SINRs are of every cluster. Source: docs/system-model.md (51).
    """
    bit_s = broadcast_bit_s(radio, sinr, participates, axis=0)
    return jnp.where(participates, bit_s * bits, 0.0)


def fix_decision(problem: RoundProblem, decision: Decision) -> FixedPartition:
    """Coefficients of a round whose partition and routes are the decision's."""
    problem = problem.with_routes_of(decision)
    return fix_partition(problem, *decision_partition(decision))


def interference_gain(radio: Radio) -> CrossGain:
    """Gains between clusters from sender to receiver, times the activity."""
    gain = jnp.swapaxes(jnp.swapaxes(radio.cross_gain, 0, 1), 2, 3)
    clusters = gain.shape[1]
    other = ~jnp.eye(clusters, dtype=bool)
    other = other.reshape(1, clusters, 1, clusters, *[1] * (gain.ndim - 4))
    return jnp.where(other, radio.d2d_activity * gain, 0.0)
