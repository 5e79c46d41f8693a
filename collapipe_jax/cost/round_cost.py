"""What a round costs, and the objective made of it."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.cost.latency import LatencyParts, StageTimes
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.quantity import Struct, part, quantity


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


class RoundCost(Struct):
    """Cost of one round; infinite where a message cannot be sent, see ``price``."""

    latency_s: Array = quantity("latency of the round (14)", "T")
    cluster_latency_s: Array = quantity("latency of a cluster (14)", "T_n", "N")
    compute_latency_s: Array = quantity("latency of the compute stages alone (12)")
    parts: LatencyParts = part("latency by part")
    stages: StageTimes | None = part("times of a micro-batch, if there is a pipeline")
    energy_j: Array = quantity("energy of a node in the round (16)", "E", "NJ")
    memory_bytes: Array = quantity("memory that a device needs (15)", "mem", "NK")
    loss_probability: Array = quantity(
        "probability that a micro-batch is lost (7); of client policies for every client, [N, K]",
        "P_n",
        "N",
    )
    divergence: Array = quantity("divergence of the round (19)", r"\Gamma", unit="squared gradient")
    objective: Array = quantity("objective (P2), and the switching cost where there is one")
    absent: Array = part("clusters that do not participate, ``[N]``")
    clients: ClientTimes | None = part(
        "times of every client, if there is no pipeline", default=None
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
