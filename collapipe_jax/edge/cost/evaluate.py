"""Cost of a decision: latency, energy, memory, losses and divergence of a round."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from collapipe_jax.edge.cost.client_round import evaluate_clients
from collapipe_jax.edge.cost.computing import (
    clusters_at_server_bytes,
    device_memory_bytes,
    idle_energy_j,
)
from collapipe_jax.edge.cost.decision import (
    ClientDecision,
    Decision,
    decision_allocation,
    fill_idle,
)
from collapipe_jax.edge.cost.fixed_partition import FixedPartition, fix_decision
from collapipe_jax.edge.cost.latency import AirTimes, compute_latency_s, message_time_s
from collapipe_jax.edge.cost.objective import round_objective
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.round_cost import Flows, RoundCost
from collapipe_jax.edge.cost.round_terms import node_energy_j, round_terms
from collapipe_jax.edge.network.channel import loss_probability


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
