"""Cost of a decision: latency, energy, memory, losses and divergence of a round.

A partition is fixed first (``fixed_partition.py``); :func:`round_terms` says what shares and powers
make of it, and :func:`evaluate` has the whole cost.
"""

import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from collapipe_jax.core.batch_axis import fusion_barrier, sum_nodes
from collapipe_jax.edge.cost.chain import (
    Messages,
    add_at_gateway,
    at_senders,
    sum_by_receiver,
    sum_by_sender,
)
from collapipe_jax.edge.cost.client_round import evaluate_clients
from collapipe_jax.edge.cost.computing import (
    clusters_at_server_bytes,
    device_memory_bytes,
    idle_energy_j,
    product_or_zero,
)
from collapipe_jax.edge.cost.decision import (
    Allocation,
    ClientDecision,
    Decision,
    PerCluster,
    PerNode,
    decision_allocation,
    fill_idle,
)
from collapipe_jax.edge.cost.fixed_partition import FixedPartition, fix_decision
from collapipe_jax.edge.cost.latency import (
    AirTimes,
    FlowTimes,
    LatencyParts,
    air_times,
    cluster_latency_s,
    compute_latency_s,
    flow_times,
    latency_parts,
    message_time_s,
)
from collapipe_jax.edge.cost.link_quality import BitTimes, Links, link_bit_times, round_links
from collapipe_jax.edge.cost.maximum import MaximumRule, hard_max
from collapipe_jax.edge.cost.objective import round_objective
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.round_cost import Flows, RoundCost
from collapipe_jax.edge.network.channel import loss_probability


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


def evaluate(problem: RoundProblem, decision: Decision | ClientDecision) -> RoundCost:
    """Cost of a decision of a pipeline or of a data-parallel policy, feasible or not.

    A message without share, power or gain breaks its cluster: latency and energies of the
    cluster, and latency, divergence and objective of the round, are infinite. A cluster
    that sits out costs nothing but idle power.

    Args:
      problem: of ``N`` clusters with ``K`` devices.
      decision: for these clusters and devices.

    Returns:
      The cost: latencies in s, energies ``[N, K + 1]`` in J, memory ``[N, K]`` in bytes, and more.

    Example:
      >>> import jax
      >>> import collapipe_jax as cp
      >>> problem = cp.read_network("docs/examples/edge.network.json")
      >>> decision = cp.read_decision("docs/examples/edge.decision.json", problem)
      >>> print(f"{jax.jit(cp.evaluate)(problem, decision).latency_s:.2f} s")
      9.57 s

    Source: docs/system-model.md, sections 3 to 5.
    """
    if isinstance(decision, ClientDecision):
        cost = evaluate_clients(problem, decision)
    else:
        # Arrays inside have nodes first, and numbers of a cluster meet those of its nodes.
        with jax.numpy_rank_promotion("allow"):
            cost = _evaluate_pipeline(problem, decision)
    return cost.replace(energy_j=cost.energy_j + idle_energy_j(problem.compute, cost.latency_s))


def _evaluate_pipeline(problem: RoundProblem, decision: Decision) -> RoundCost:
    fixed = fix_decision(problem, decision)
    # At 1 where idle, entries without use stay finite.
    allocation = fill_idle(decision_allocation(decision), fixed.chain.used, 1.0)
    terms = round_terms(fixed, allocation)
    lacks_band = jnp.any(allocation.d2d_share <= 0, axis=0) | (allocation.d2e_share <= 0)
    sinr, chain = terms.links.sinr, fixed.chain
    lacks_power = jnp.any(chain.hops & jnp.any(sinr.hop <= 0, axis=0), axis=0)
    lacks_power |= chain.members[0] & ((sinr.uplink <= 0) | (fixed.downlink_sinr <= 0))
    # Nothing arrives then, even where no threshold asks for an SINR.
    hazard = jnp.where(lacks_band | lacks_power, jnp.inf, terms.links.hazard)
    broken = ~jnp.isfinite(terms.cluster_latency_s)
    any_broken = jnp.any(broken)
    cluster_latency_s = jnp.where(broken, jnp.inf, terms.cluster_latency_s)
    energy_j = jnp.where(broken, jnp.inf, node_energy_j(fixed, terms))
    latency_s = jnp.max(cluster_latency_s)
    return RoundCost(
        latency_s=latency_s,
        cluster_latency_s=cluster_latency_s,
        compute_latency_s=jnp.max(compute_latency_s(fixed)),
        parts=terms.parts,
        flows=_flows(fixed, terms.air, problem.workload.backward_ratio),
        energy_j=jnp.swapaxes(energy_j, 0, 1),
        memory_bytes=device_memory_bytes(
            problem.workload, decision.segments, decision.micro_batches
        ),
        server_memory_bytes=clusters_at_server_bytes(
            problem.workload, decision.segments, decision.micro_batches
        ),
        loss_probability=loss_probability(hazard),
        divergence=jnp.where(any_broken, jnp.inf, jnp.sum(terms.divergence)),
        objective=round_objective(fixed.costs, latency_s, terms.cluster_cost),
        absent=~chain.members[0],
    )


def _flows(fixed: FixedPartition, air: AirTimes, backward_ratio: Float[Array, ""]) -> Flows:
    compute, overhead_s = fixed.compute, fixed.d2e_overhead_s
    hop_s = message_time_s(air.hop_s, fixed.hop_overhead_s)
    backward_s = backward_ratio * compute.forward_s

    def chain(node_s, hop_s):
        return jnp.stack([node_s, hop_s], axis=1).reshape(-1, node_s.shape[1])

    uplink_s = message_time_s(air.uplink_s, overhead_s)
    downlink_s = message_time_s(air.downlink_s, overhead_s)
    forward_s = [chain(compute.forward_s, hop_s[0]), uplink_s[None], compute.decoder_s[None]]
    backward_s = [downlink_s[None], chain(backward_s, hop_s[1])[::-1]]
    return Flows(jnp.concatenate(forward_s).T, jnp.concatenate(backward_s).T)
