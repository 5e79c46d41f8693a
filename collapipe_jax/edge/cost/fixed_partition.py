"""First stage of a round's cost: all that shares and powers do not change.

Segments and micro-batches fix which links exist, what they carry and how long nodes
compute. :func:`fix_partition` works this out once; :func:`.round_terms.round_terms` then
takes any shares and powers.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from collapipe_jax.core.batch_axis import sum_nodes
from collapipe_jax.core.quantity import Struct, part
from collapipe_jax.edge.cost.chain import Messages, at_receivers, at_senders, gain_to_next
from collapipe_jax.edge.cost.computing import ComputeStages, compute_stages, node_computing_energy_j
from collapipe_jax.edge.cost.convergence import (
    ClusterDivergence,
    cluster_divergence,
    participating_weight,
)
from collapipe_jax.edge.cost.decision import (
    ActiveNodes,
    CrossGain,
    MicroBatches,
    PerCluster,
    PerDevice,
    PerHop,
    PerMove,
    PerNode,
    PerRound,
    Segments,
    active_nodes,
)
from collapipe_jax.edge.cost.moments import Moments, leaving_cost, moved_moments
from collapipe_jax.edge.cost.objective import UnitCosts, unit_costs
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.secure_exchange import exchange_s, mask_energy_j, secure_messages
from collapipe_jax.edge.network.channel import Radio, downlink_sinr, transport_block_hazard


class EnergyCaps(NamedTuple):
    """Caps on the energy of nodes in one round."""

    room_j: PerNode  # what a cap leaves for time on air, positive
    initial_multiplier: PerNode  # in units of the objective
    least_multiplier: PerRound  # from 0 none would come back


class Receiving(NamedTuple):
    """Power of nodes that receive."""

    power_w: PerRound
    cost_per_j: Messages  # unit cost of energy of a message's receiver, of the downlink last


class FixedPartition(Struct):
    """A round whose segments and micro-batches are fixed.

    Idle nodes hold harmless numbers: gain 1, no bits, no energy.
    """

    radio: Radio = part("bandwidths, noise, and the laws of rates and losses")
    active: ActiveNodes = part("nodes that compute")
    d2d_power_max_w: PerNode = part("limits of power on the D2D band")
    micro_batches: PerCluster = part("of a mini-batch")
    local_steps: PerRound = part("of a round")
    hop_gain: PerHop = part("of both messages of a hop")
    move_gain: PerMove = part("from a device and to it")
    uplink_gain: PerCluster = part("to the base station")
    downlink_sinr: PerCluster = part("from the base station")
    cross_gain: CrossGain = part("from sender to receiver, activity included; 0 inside a cluster")
    cross_gain_to: CrossGain = part("the same by receiver and sender")
    hop_bits: PerNode = part("of a micro-batch on a hop")
    uplink_bits: PerCluster = part("of a micro-batch")
    downlink_bits: PerCluster = part("of a micro-batch")
    move_bits: PerDevice | PerMove = part("parameters that a device returns and receives")
    upload_bits: PerCluster = part("encoder and embedding, masked if aggregation is secure")
    download_bits: PerCluster = part("encoder and embedding, and what secure aggregation needs")
    hop_overhead_s: PerNode = part("of a D2D message")
    d2e_overhead_s: PerCluster = part("of a D2E message")
    compute: ComputeStages = part("compute stages of a local step")
    computing_j: PerNode = part("energy of a round's computing, masks included")
    computing_cost: PerCluster = part("the same at the nodes' unit costs")
    sender_cost_per_j: Messages = part("unit cost of energy of a message's sender")
    hop_blocks: PerCluster = part("transport blocks of a micro-batch's D2D message")
    uplink_blocks: PerCluster = part("transport blocks of a micro-batch's uplink message")
    downlink_hazard: PerCluster = part("of a micro-batch")
    divergence: ClusterDivergence = part("of every cluster, by its losses")
    costs: UnitCosts = part("unit costs of the objective")
    leaving_cost: PerCluster = part("of leaving the partition of the round before")
    receiving: Receiving | None = part("power of nodes that receive, if they draw any")
    moments: Moments | None = part("optimiser state that changes its device, if it counts")
    secure_s: PerCluster | None = part("secure aggregation besides its bits, if it is on")
    caps: EnergyCaps | None = part("on the energy of its nodes, if there are any", default=None)

    @property
    def constant_j(self) -> PerNode:
        """Energy of nodes that shares and powers do not change."""
        return (
            self.computing_j if self.moments is None else self.computing_j + self.moments.return_j
        )


def fix_partition(
    problem: RoundProblem, segments: Segments, micro_batches: MicroBatches
) -> FixedPartition:
    """Coefficients of a round, with or without batch axes, whose partition is fixed."""
    work, radio, learning = problem.workload, problem.radio, problem.learning
    active = active_nodes(segments, axis=0)
    participates = active[0]
    samples = work.batch / micro_batches

    def per_cluster(value):
        return jnp.where(participates, value, 0.0)

    step_bits = per_cluster(samples * work.activation_bits)
    uplink_bits = per_cluster(samples * work.uplink_bits)
    d2d_gain = problem.by_node.d2d_gain
    hop_gain = [gain_to_next(d2d_gain, active), gain_to_next(jnp.swapaxes(d2d_gain, 0, 1), active)]
    down_sinr = downlink_sinr(radio, radio.d2e_gain[:, 0])
    down_hazard = per_cluster(transport_block_hazard(radio, down_sinr))
    cross_gain = interference_gain(radio)
    weight = participating_weight(learning.cluster_weight, participates)
    costs = unit_costs(problem)
    computing_j = node_computing_energy_j(problem, segments, participates)
    upload_bits = download_bits = per_cluster(work.model_bits)
    secure = _secure_part(problem, active)
    if secure is not None:
        upload_bits, download_bits = secure.upload_bits, download_bits + secure.received_bits
        computing_j = computing_j.at[0].add(secure.mask_j)
    d2e_overhead_s = per_cluster(problem.compute.link_overhead_s)
    move_bits, moments = segments * work.block_param_bits, moved_moments(problem, segments)
    if moments is not None:
        move_bits = jnp.stack([move_bits, move_bits + moments.taken_bits])
    return FixedPartition(
        radio=radio,
        active=active,
        d2d_power_max_w=problem.by_node.d2d_power_max_w,
        micro_batches=micro_batches.astype(samples.dtype),
        local_steps=work.local_steps,
        hop_gain=jnp.where(active, jnp.stack(hop_gain), 1.0),
        move_gain=jnp.where(active[1:], jnp.stack([d2d_gain[1:, 0], d2d_gain[0, 1:]]), 1.0),
        uplink_gain=jnp.where(participates, radio.d2e_gain[:, 0], 1.0),
        downlink_sinr=jnp.where(participates, down_sinr, 1.0),
        cross_gain=cross_gain,
        cross_gain_to=jnp.moveaxis(cross_gain, (0, 1), (2, 3)),
        hop_bits=jnp.where(active, step_bits, 0.0),
        uplink_bits=uplink_bits,
        downlink_bits=step_bits,
        move_bits=move_bits,
        upload_bits=upload_bits,
        download_bits=download_bits,
        hop_overhead_s=jnp.where(active, d2e_overhead_s, 0.0),
        d2e_overhead_s=d2e_overhead_s,
        compute=compute_stages(problem, micro_batches, segments, participates),
        computing_j=computing_j,
        computing_cost=sum_nodes(costs.energy_per_j * computing_j),
        sender_cost_per_j=at_senders(costs.energy_per_j, active),
        hop_blocks=step_bits / radio.transport_block_bits,
        uplink_blocks=uplink_bits / radio.transport_block_bits,
        downlink_hazard=step_bits / radio.transport_block_bits * down_hazard,
        divergence=cluster_divergence(learning, weight, work.batch, micro_batches),
        costs=costs,
        leaving_cost=leaving_cost(problem, segments, moments),
        receiving=_receiving(problem, costs, active),
        moments=moments,
        secure_s=None if secure is None else secure.time_s,
    )


class _SecurePart(NamedTuple):
    """What secure aggregation adds to a cluster's round."""

    upload_bits: PerCluster  # in the place of the parameters in the clear
    received_bits: PerCluster  # besides the parameters
    time_s: PerCluster  # besides its bits
    mask_j: PerCluster  # of the control unit


def _secure_part(problem: RoundProblem, active: ActiveNodes) -> _SecurePart | None:
    """Secure aggregation among the control units of the participants, if it is on."""
    if problem.secure_aggregation is None:
        return None
    work, compute, participates = problem.workload, problem.compute, active[0]
    parties = jnp.sum(participates, axis=0, dtype=problem.radio.d2e_gain.dtype)
    secure = secure_messages(problem.secure_aggregation, work.model_bits, parties)
    found = _SecurePart(
        upload_bits=secure.upload_bits,
        received_bits=secure.received_bits,
        time_s=exchange_s(secure, compute.link_overhead_s),
        mask_j=mask_energy_j(secure, compute.node_power_w[:, 0]),
    )
    return jax.tree.map(lambda value: jnp.where(participates, value, 0.0), found)


def _receiving(problem: RoundProblem, costs: UnitCosts, active: ActiveNodes) -> Receiving | None:
    """Power of nodes that receive, if they draw any."""
    if problem.compute.receive_power_w is None:
        return None
    return Receiving(problem.compute.receive_power_w, at_receivers(costs.energy_per_j, active))


def interference_gain(radio: Radio) -> CrossGain:
    """Gains between clusters from sender to receiver, times the activity."""
    gain = jnp.swapaxes(jnp.swapaxes(radio.cross_gain, 0, 1), 2, 3)
    clusters = gain.shape[1]
    other = ~jnp.eye(clusters, dtype=bool)
    other = other.reshape(1, clusters, 1, clusters, *[1] * (gain.ndim - 4))
    return jnp.where(other, radio.d2d_activity * gain, 0.0)
