"""Second stage of a round's cost: what shares and powers make of a fixed partition."""

from typing import NamedTuple

import jax.numpy as jnp

from collapipe_jax.core.batch_axis import fusion_barrier, sum_nodes
from collapipe_jax.edge.cost.chain import Messages, at_senders, sum_by_receiver, sum_by_sender
from collapipe_jax.edge.cost.computing import drawn_j
from collapipe_jax.edge.cost.decision import Allocation, PerCluster, PerNode
from collapipe_jax.edge.cost.fixed_partition import FixedPartition
from collapipe_jax.edge.cost.latency import (
    AirTimes,
    FlowTimes,
    LatencyParts,
    air_times,
    cluster_latency_s,
    flow_times,
    latency_parts,
)
from collapipe_jax.edge.cost.link_quality import BitTimes, Links, link_bit_times, round_links
from collapipe_jax.edge.cost.maximum import MaximumRule, hard_max


class RoundTerms(NamedTuple):
    """Terms of a round's cost."""

    links: Links
    bit_time: BitTimes
    air: AirTimes
    flows: FlowTimes
    parts: LatencyParts
    cluster_latency_s: PerCluster
    message_j: Messages  # energy on air
    received_j: Messages | None  # of who receives, the downlink last; none without power for it
    divergence: PerCluster
    cluster_cost: PerCluster  # drift of the queues and cost of leaving a partition


def round_terms(
    fixed: FixedPartition,
    allocation: Allocation,
    maximum: MaximumRule = hard_max,
    links: Links | None = None,
) -> RoundTerms:
    """Terms of a round at given shares and powers in watts; what is idle counts for nothing.

    The quality of the links may be given where it is known already.
    """
    # Links first, then time on air, then the flow of micro-batches over it.
    links = round_links(fixed, allocation) if links is None else links
    bit_time = link_bit_times(fixed, allocation, links, maximum)
    air = air_times(fixed, bit_time)
    flows = flow_times(fixed, air, maximum)
    parts = latency_parts(fixed, air, flows)
    # Energy and losses of the same messages, at their unit costs.
    message_j = message_energy_j(fixed, allocation, air)
    received_j = _received_energy_j(fixed, air)
    divergence = fixed.divergence.at(links.hazard)
    drift = energy_cost(fixed, message_j) + fixed.costs.divergence * divergence
    if fixed.receiving is not None and received_j is not None:
        drift = drift + _sum_messages(fixed.receiving.cost_per_j, received_j)
    latency_s, cluster_cost = fusion_barrier((cluster_latency_s(parts), drift + fixed.leaving_cost))
    return RoundTerms(
        links=links,
        bit_time=bit_time,
        air=air,
        flows=flows,
        parts=parts,
        cluster_latency_s=latency_s,
        message_j=message_j,
        received_j=received_j,
        divergence=divergence,
        cluster_cost=cluster_cost,
    )


def message_energy_j(fixed: FixedPartition, allocation: Allocation, air: AirTimes) -> Messages:
    """Energy that amplifiers draw for a round's messages."""
    efficiency = fixed.radio.amplifier_efficiency
    power_w = at_senders(allocation.d2d_power / efficiency, fixed.active)
    steps = fixed.local_steps * fixed.micro_batches
    return Messages(
        hop=power_w.hop * (steps * air.hop_s),
        move=power_w.move * air.move_s,
        uplink=allocation.d2e_power / efficiency * (steps * air.uplink_s + air.model_uplink_s),
    )


def energy_cost(fixed: FixedPartition, message_j: Messages) -> PerCluster:
    """Energy of every cluster at the nodes' unit costs.

    Summed by message, which spares the sums by node.
    """
    return _sum_messages(fixed.sender_cost_per_j, message_j) + fixed.computing_cost


def _sum_messages(cost: Messages, message_j: Messages) -> PerCluster:
    """Energies of a cluster's messages at unit costs."""
    hops = sum_nodes(sum_nodes(cost.hop * message_j.hop))
    moves = sum_nodes(sum_nodes(cost.move * message_j.move))
    return hops + moves + cost.uplink * message_j.uplink


def _received_energy_j(fixed: FixedPartition, air: AirTimes) -> Messages | None:
    """Energy of the receivers of a round's messages, of the downlink in the place of the uplink.

    Source: docs/system-model.md (35).
    """
    if fixed.receiving is None:
        return None
    power_w, steps = fixed.receiving.power_w, fixed.local_steps * fixed.micro_batches
    return Messages(
        hop=drawn_j(power_w, steps * air.hop_s),
        move=drawn_j(power_w, air.move_s),
        uplink=drawn_j(power_w, steps * air.downlink_s + air.model_downlink_s),
    )


def air_energy_j(fixed: FixedPartition, message_j: Messages) -> PerNode:
    """Energy on air of every node, 0 where idle."""
    by_node = sum_by_sender(message_j.hop, message_j.move, fixed.active)
    return jnp.where(fixed.active, by_node.at[0].add(message_j.uplink), 0.0)


def node_energy_j(
    fixed: FixedPartition, message_j: Messages, received_j: Messages | None = None
) -> PerNode:
    """Energy of every node in the round. Source: docs/system-model.md (16)."""
    energy_j = fixed.constant_j + air_energy_j(fixed, message_j)
    if received_j is None:
        return energy_j
    by_node = sum_by_receiver(received_j.hop, received_j.move, fixed.active)
    return energy_j + jnp.where(fixed.active, by_node.at[0].add(received_j.uplink), 0.0)
