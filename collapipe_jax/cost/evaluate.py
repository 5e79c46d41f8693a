"""Cost of a decision: latency, energy, memory, losses and divergence of a round."""

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.cost.client_decision import ClientDecision
from collapipe_jax.cost.client_round import evaluate_clients
from collapipe_jax.cost.decision import Allocation, Decision, decision_allocation
from collapipe_jax.cost.energy import node_energy_j
from collapipe_jax.cost.fixed_partition import FixedPartition, fix_partition
from collapipe_jax.cost.latency import compute_latency_s, message_time_s
from collapipe_jax.cost.memory import device_memory_bytes
from collapipe_jax.cost.objective import drift_plus_penalty
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round_cost import Flows, RoundCost
from collapipe_jax.cost.round_terms import RoundTerms, round_terms
from collapipe_jax.network.channel import loss_probability


def evaluate(problem: RoundProblem, decision: Decision | ClientDecision) -> RoundCost:
    """Cost of a decision, feasible or not.

    A message without share, power or gain breaks its cluster: latency and energies of the
    cluster, and latency, divergence and objective of the round, are infinite. A cluster
    that sits out costs nothing.

    Args:
      problem: one round of one network.
      decision: of a pipeline, or of a data-parallel policy.
    """
    if isinstance(decision, ClientDecision):
        return evaluate_clients(problem, decision)
    # Arrays inside have nodes first, and numbers of a cluster meet those of its nodes.
    with jax.numpy_rank_promotion("allow"):
        fixed = fix_partition(problem, decision.segments, decision.micro_batches)
        allocation = _used_allocation(fixed, decision)
        terms = round_terms(fixed, allocation)
        hazard = jnp.where(_lacks_band(allocation), jnp.inf, terms.links.hazard)
        return _round_cost(problem, decision, fixed, terms, hazard)


def _used_allocation(fixed: FixedPartition, decision: Decision) -> Allocation:
    """Shares and powers of a decision; 1 where idle, so that unused entries stay finite."""
    allocation = decision_allocation(decision)
    active, participates = fixed.active, fixed.active[0]
    return Allocation(
        d2d_share=jnp.where(active, allocation.d2d_share, 1.0),
        d2d_power=jnp.where(active, allocation.d2d_power, 1.0),
        d2e_share=jnp.where(participates, allocation.d2e_share, 1.0),
        d2e_power=jnp.where(participates, allocation.d2e_power, 1.0),
    )


def _lacks_band(allocation: Allocation) -> Array:
    """Clusters with a message that has no share of its band, ``[N]``."""
    return jnp.any(allocation.d2d_share <= 0, axis=0) | (allocation.d2e_share <= 0)


def _round_cost(
    problem: RoundProblem,
    decision: Decision,
    fixed: FixedPartition,
    terms: RoundTerms,
    hazard: Array,
) -> RoundCost:
    participates = fixed.active[0]
    broken = ~jnp.isfinite(terms.cluster_latency_s)
    any_broken = jnp.any(broken)
    cluster_latency_s = jnp.where(broken, jnp.inf, terms.cluster_latency_s)
    energy_j = jnp.where(broken, jnp.inf, node_energy_j(fixed, terms.message_j))
    latency_s = jnp.max(cluster_latency_s)
    objective = drift_plus_penalty(fixed.costs, latency_s, terms.cluster_cost)
    # An empty queue times an infinite cost is not a number, yet the decision is useless.
    useless = any_broken | jnp.isnan(objective)
    return RoundCost(
        latency_s=latency_s,
        cluster_latency_s=cluster_latency_s,
        compute_latency_s=jnp.max(compute_latency_s(fixed)),
        parts=terms.parts,
        flows=_flows(problem, fixed, terms),
        energy_j=jnp.swapaxes(energy_j, 0, 1),
        memory_bytes=device_memory_bytes(
            problem.workload, decision.segments, decision.micro_batches
        ),
        loss_probability=loss_probability(hazard),
        divergence=jnp.where(any_broken, jnp.inf, jnp.sum(terms.divergence)),
        objective=jnp.where(useless, jnp.inf, objective),
        absent=~participates,
    )


def _flows(problem: RoundProblem, fixed: FixedPartition, terms: RoundTerms) -> Flows:
    compute, air, overhead_s = fixed.compute, terms.air, fixed.d2e_overhead_s
    hop_s = message_time_s(air.hop_s, fixed.hop_overhead_s)
    backward_s = problem.workload.backward_ratio * compute.forward_s

    def chain(node_s: Array, hop_s: Array) -> Array:
        return jnp.stack([node_s, hop_s], axis=1).reshape(-1, node_s.shape[1])

    uplink_s = message_time_s(air.uplink_s, overhead_s)
    downlink_s = message_time_s(air.downlink_s, overhead_s)
    forward_s = [chain(compute.forward_s, hop_s[0]), uplink_s[None], compute.decoder_s[None]]
    backward_s = [downlink_s[None], chain(backward_s, hop_s[1])[::-1]]
    return Flows(jnp.concatenate(forward_s).T, jnp.concatenate(backward_s).T)
