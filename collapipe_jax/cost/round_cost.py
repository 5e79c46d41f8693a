"""What a round costs, and the objective made of it."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.cost.latency import LatencyParts, StageTimes
from collapipe_jax.cost.problem import RoundProblem


class ClientTimes(NamedTuple):
    """Times of a client in a round, ``[N, K]`` each.

    Attributes:
      download_s, upload_s: of its part of the model.
      computing_s: of all local steps, on the client and on the edge server for it.
      messages_s: activations and gradients of all local steps.
    """

    download_s: Array
    computing_s: Array
    messages_s: Array
    upload_s: Array


class RoundCost(NamedTuple):
    """Cost of one round. What cannot be sent makes entries infinite; see ``price``.

    Attributes:
      latency_s: of the round, docs/system-model.md (14).
      cluster_latency_s: ``[N]``.
      compute_latency_s: of the round, compute stages alone.
      parts: latency by part.
      stages: times of a micro-batch, for a timeline; None where there is no pipeline.
      energy_j: ``[N, K + 1]``, (16).
      memory_bytes: ``[N, K]``, (15).
      loss_probability: of a micro-batch, ``[N]``, (7); of clients, ``[N, K]``.
      divergence: (19).
      objective: (P2), and the price of moving blocks where there is one.
      absent: clusters that sit out, ``[N]``.
      clients: times of every client; None where there is a pipeline.
    """

    latency_s: Array
    cluster_latency_s: Array
    compute_latency_s: Array
    parts: LatencyParts
    stages: StageTimes | None
    energy_j: Array
    memory_bytes: Array
    loss_probability: Array
    divergence: Array
    objective: Array
    absent: Array
    clients: ClientTimes | None = None


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
