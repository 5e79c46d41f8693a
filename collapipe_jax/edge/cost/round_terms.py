"""Second stage of a round's cost: what shares and powers make of a fixed partition."""

import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp

from collapipe_jax.core.batch_axis import fusion_barrier, sum_nodes
from collapipe_jax.edge.cost.chain import (
    Messages,
    add_at_gateway,
    at_senders,
    sum_by_receiver,
    sum_by_sender,
)
from collapipe_jax.edge.cost.computing import product_or_zero
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
    received_s: Messages  # time that receivers spend, with the downlink in the uplink's place
    divergence: PerCluster
    cluster_cost: PerCluster  # drift of the queues, and what terms add


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
    receiving_s = received_s(fixed, air)
    divergence = fixed.divergence.at(links.hazard)
    cost = energy_cost(fixed, message_j, receiving_s) + fixed.costs.divergence * divergence
    latency_s, cluster_cost = fusion_barrier((cluster_latency_s(parts), cost))
    return RoundTerms(
        links=links,
        bit_time=bit_time,
        air=air,
        flows=flows,
        parts=parts,
        cluster_latency_s=latency_s,
        message_j=message_j,
        received_s=receiving_s,
        divergence=divergence,
        cluster_cost=cluster_cost,
    )


def message_energy_j(fixed: FixedPartition, allocation: Allocation, air: AirTimes) -> Messages:
    """Energy that amplifiers draw for a round's messages."""
    efficiency = fixed.radio.amplifier_efficiency
    power_w = at_senders(allocation.d2d_power / efficiency, fixed.chain)
    steps = fixed.local_steps * fixed.micro_batches
    return Messages(
        hop=power_w.hop * (steps * air.hop_s),
        move=power_w.move * air.move_s,
        uplink=allocation.d2e_power / efficiency * (steps * air.uplink_s + air.model_uplink_s),
    )


def received_s(fixed: FixedPartition, air: AirTimes) -> Messages:
    """Time that the receivers of a round's messages spend, with the downlink last.

    Source: docs/system-model.md (35).
    """
    steps = fixed.local_steps * fixed.micro_batches
    return Messages(
        hop=steps * air.hop_s,
        move=air.move_s,
        uplink=steps * air.downlink_s + air.model_downlink_s,
    )


def energy_cost(fixed: FixedPartition, message_j: Messages, receiving_s: Messages) -> PerCluster:
    """Energy of every cluster at the nodes' unit costs, and constant costs.

    Summed by message, which spares the sums by node.
    """
    sent = jax.tree.map(operator.mul, fixed.sender_cost_per_j, message_j)
    received = receiving_cost(fixed, receiving_s)
    total = jax.tree.map(operator.add, sent, received)
    hops, moves = sum_nodes(sum_nodes(total.hop)), sum_nodes(sum_nodes(total.move))
    cost = hops + moves + total.uplink + fixed.constant_cost
    # A dead link at no unit cost is not a number, yet it breaks the cluster.
    return jnp.where(jnp.isnan(cost), jnp.inf, cost)


def receiving_cost(fixed: FixedPartition, receiving_s: Messages) -> Messages:
    """Energy of every message's receiver at its unit cost."""
    return jax.tree.map(operator.mul, fixed.receiver_cost_per_s, receiving_s)


def air_energy_j(fixed: FixedPartition, message_j: Messages) -> PerNode:
    """Energy on air of every node, 0 where idle."""
    chain = fixed.chain
    by_node = sum_by_sender(message_j.hop, message_j.move, chain)
    by_node = add_at_gateway(by_node, message_j.uplink, chain.gateway)
    return jnp.where(chain.active, by_node, 0.0)


def node_energy_j(fixed: FixedPartition, terms: RoundTerms) -> PerNode:
    """Energy of every node in the round. Source: docs/system-model.md (16)."""
    hop_j, move_j, downlink_j = jax.tree.map(
        lambda time_s: product_or_zero(fixed.receive_power_w, time_s), terms.received_s
    )
    received_j = sum_by_receiver(hop_j, move_j, fixed.chain)
    received_j = add_at_gateway(received_j, downlink_j, fixed.chain.gateway)
    received_j = jnp.where(fixed.active, received_j, 0.0)
    return fixed.constant_j + air_energy_j(fixed, terms.message_j) + received_j
