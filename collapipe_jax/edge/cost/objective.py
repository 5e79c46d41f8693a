"""The objective of a round: drift of the virtual queues plus penalty."""

from typing import NamedTuple

import jax.numpy as jnp

from collapipe_jax.core.batch_axis import sum_nodes
from collapipe_jax.edge.cost.computing import product_or_zero
from collapipe_jax.edge.cost.decision import PerCluster, PerNode, PerRound
from collapipe_jax.edge.cost.problem import RoundProblem


class UnitCosts(NamedTuple):
    """What the objective charges."""

    latency_per_s: PerRound  # ``V / T_ref``, and idle power at the nodes' unit costs
    energy_per_j: PerNode  # ``q / E``
    divergence: PerRound  # per unit, ``z / Gamma``


def unit_costs(problem: RoundProblem) -> UnitCosts:
    """Unit costs from the queues and the budgets."""
    control = problem.control
    per_j = control.energy_queue / control.energy_budget_j
    idle_w = problem.compute.node_idle_power_w
    idle_per_s = jnp.sum(product_or_zero(idle_w, per_j), axis=(0, 1))
    return UnitCosts(
        latency_per_s=control.v / control.reference_latency_s + idle_per_s,
        energy_per_j=jnp.swapaxes(per_j, 0, 1),
        divergence=control.divergence_queue / control.divergence_target,
    )


def drift_plus_penalty(costs: UnitCosts, latency_s: PerRound, cluster_cost: PerCluster) -> PerRound:
    """Objective of a round. Source: docs/system-model.md (P2).

    The cost of a cluster is the drift of the queues, its energy and divergence at their unit
    costs, and the cost of switching. Idle energy is part of the cost of latency.
    """
    return costs.latency_per_s * latency_s + sum_nodes(cluster_cost)


def round_objective(costs: UnitCosts, latency_s: PerRound, cluster_cost: PerCluster) -> PerRound:
    """Objective of a decision that may be broken, infinite then."""
    objective = drift_plus_penalty(costs, latency_s, cluster_cost)
    # An empty queue times an infinite cost is not a number, yet the decision is useless.
    return jnp.where(jnp.isnan(objective), jnp.inf, objective)
