"""Price of a decision: latency, energy, memory, loss and divergence of a round."""

import jax.numpy as jnp

from collapipe_jax.cost.client_decision import ClientDecision
from collapipe_jax.cost.client_round import price_clients
from collapipe_jax.cost.decision import Decision, is_present
from collapipe_jax.cost.divergence import cluster_divergence, round_divergence
from collapipe_jax.cost.energy import node_energy_j
from collapipe_jax.cost.latency import compute_latency_s, latency_parts, stage_times
from collapipe_jax.cost.links import message_links, micro_batch_hazard
from collapipe_jax.cost.memory import device_memory_bytes
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round_cost import RoundCost, drift_plus_penalty
from collapipe_jax.cost.switching import price_of_moves
from collapipe_jax.network.channel import loss_probability


def price(problem: RoundProblem, decision: Decision | ClientDecision) -> RoundCost:
    """Price a decision, feasible or not.

    A message without share, power or gain breaks its cluster: latency and energies of the
    cluster, and latency, divergence and objective of the round, are infinite. A cluster
    that sits out costs nothing.

    Args:
      problem: one round of one network.
      decision: what to do in it; of a data-parallel policy, see :func:`price_clients`.
    """
    if isinstance(decision, ClientDecision):
        return price_clients(problem, decision)
    present = is_present(decision.segments)
    links = message_links(problem, decision)
    stages = stage_times(problem, decision, links)
    parts = latency_parts(problem, decision, links, stages)
    broken = present & ~jnp.isfinite(sum(parts))
    cluster_latency_s = jnp.where(broken, jnp.inf, sum(parts))
    energy_j = jnp.where(broken[:, None], jnp.inf, node_energy_j(problem, decision, links, parts))
    hazard = micro_batch_hazard(problem, decision, links)
    cluster = cluster_divergence(
        hazard, decision.micro_batches, problem.workload.batch, problem.learning
    )
    divergence = round_divergence(cluster, present, problem.learning)
    divergence = jnp.where(jnp.any(broken), jnp.inf, divergence)
    latency_s = jnp.max(cluster_latency_s)
    return RoundCost(
        latency_s=latency_s,
        cluster_latency_s=cluster_latency_s,
        compute_latency_s=jnp.max(compute_latency_s(problem, decision, stages)),
        parts=parts,
        stages=stages,
        energy_j=energy_j,
        memory_bytes=device_memory_bytes(
            problem.workload, decision.segments, decision.micro_batches
        ),
        loss_probability=jnp.where(present, loss_probability(hazard), 0.0),
        divergence=divergence,
        objective=drift_plus_penalty(problem, latency_s, energy_j, divergence)
        + jnp.sum(price_of_moves(problem.switching, decision.segments.T, problem.workload.blocks)),
        absent=~present,
    )
