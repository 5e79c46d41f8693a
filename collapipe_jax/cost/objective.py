"""The objective of a round: drift of the virtual queues plus penalty."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.batching import sum_nodes
from collapipe_jax.cost.problem import Control


class UnitCosts(NamedTuple):
    """What the objective charges.

    Attributes:
      latency_per_s: of the round, ``V / T_ref``, ``[...]``.
      energy_per_j: of a node, ``q / E``, nodes first, ``[P, N, ...]``.
      divergence: per unit, ``z / Gamma``, ``[...]``.
    """

    latency_per_s: Array
    energy_per_j: Array
    divergence: Array


def unit_costs(control: Control) -> UnitCosts:
    """Unit costs from the queues and the budgets."""
    return UnitCosts(
        latency_per_s=control.v / control.reference_latency_s,
        energy_per_j=jnp.swapaxes(control.energy_queue / control.energy_budget_j, 0, 1),
        divergence=control.divergence_queue / control.divergence_target,
    )


def drift_plus_penalty(costs: UnitCosts, latency_s: Array, cluster_cost: Array) -> Array:
    """Objective of a round. Source: docs/system-model.md (P2).

    Args:
      costs: unit costs.
      latency_s: of the round, ``[...]``.
      cluster_cost: drift of the queues by cluster: energy and divergence at their unit
        costs; and the cost of switching, ``[N, ...]``.
    """
    return costs.latency_per_s * latency_s + sum_nodes(cluster_cost)
