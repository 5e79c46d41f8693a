"""Price of a decision: latency, energy, memory, loss and divergence of a round."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.cost.decision import Decision, is_present
from collapipe_jax.cost.divergence import cluster_divergence, round_divergence
from collapipe_jax.cost.energy import node_energy_j
from collapipe_jax.cost.latency import (
    LatencyParts,
    StageTimes,
    compute_latency_s,
    latency_parts,
    stage_times,
)
from collapipe_jax.cost.links import message_links, micro_batch_hazard
from collapipe_jax.cost.memory import device_memory_bytes
from collapipe_jax.cost.moves import price_of_moves
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.network.channel import loss_probability


class RoundCost(NamedTuple):
    """Cost of one round. A broken cluster (see :func:`price`) has infinite entries.

    Attributes:
      latency_s: of the round, docs/system-model.md (14).
      cluster_latency_s: ``[N]``.
      compute_latency_s: of the round, compute stages alone.
      parts: latency by part.
      stages: times of a micro-batch, for a timeline.
      energy_j: ``[N, K + 1]``, (16).
      memory_bytes: ``[N, K]``, (15).
      loss_probability: of a micro-batch, ``[N]``, (7).
      divergence: (19).
      objective: (P2), and the price of moving blocks where there is one.
      absent: clusters that sit out, ``[N]``.
    """

    latency_s: Array
    cluster_latency_s: Array
    compute_latency_s: Array
    parts: LatencyParts
    stages: StageTimes
    energy_j: Array
    memory_bytes: Array
    loss_probability: Array
    divergence: Array
    objective: Array
    absent: Array


def price(problem: RoundProblem, decision: Decision) -> RoundCost:
    """Price a decision, feasible or not.

    A message without share, power or gain breaks its cluster: latency and energies of the
    cluster, and latency, divergence and objective of the round, are infinite. A cluster
    that sits out costs nothing.

    Args:
      problem: one round of one network.
      decision: what to do in it.
    """
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
        + jnp.sum(price_of_moves(problem.moves, decision.segments.T, problem.workload.blocks)),
        absent=~present,
    )


def drift_plus_penalty(
    problem: RoundProblem, latency_s: Array, energy_j: Array, divergence: Array
) -> Array:
    """Objective of a round, docs/system-model.md (P2); infinite where an argument is.

    Args:
      problem: its control section is used.
      latency_s: scalar.
      energy_j: ``[N, K + 1]``.
      divergence: scalar.
    """
    control = problem.control
    penalty = control.v * latency_s / control.reference_latency_s
    energy_drift = jnp.sum(control.energy_queue * energy_j / control.energy_budget_j)
    divergence_drift = control.divergence_queue * divergence / control.divergence_target
    total = penalty + energy_drift + divergence_drift
    # An empty queue times an infinite cost is not a number, yet the decision is useless.
    return jnp.where(jnp.isnan(total), jnp.inf, total)
