"""Long-term limits of closed loops: what is kept of every run, and which networks can keep them.

Budgets under a floor of :mod:`collapipe_jax.edge.queues` can be kept by no pipeline, nor can those
that a fade late in the horizon overdraws; such networks are a group apart.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.edge.environment import SystemRound
from collapipe_jax.edge.queues import queues_before
from collapipe_jax.edge.system import EdgeSystem
from collapipe_jax.runs.results.experiment import Variable
from collapipe_jax.runs.results.realisations import Realisations, runnable

QUEUE_LIMIT = 0.01
"""A final energy queue over the rounds up to which it counts as stable."""


def time_means(system: EdgeSystem, history: SystemRound) -> dict[str, Variable]:
    """Time averages of latency and constraints, and final queues."""
    cost, queues = history.cost, history.queues
    energy, divergence = _use(system, history)
    latency_s = jnp.mean(cost.latency_s)
    # Cost that effective queues above the queues add to (P2).
    lifted = jax.tree.map(jnp.subtract, history.effective_queues, queues_before(queues))
    lifted_cost = jnp.sum(lifted.energy * energy, axis=(1, 2)) + lifted.divergence * divergence
    return {
        "mean_latency_s": Variable("", latency_s),
        "latency_over_reference": Variable(
            "", latency_s / system.mean_problem.control.reference_latency_s
        ),
        "energy_over_budget": Variable("cluster node", jnp.mean(energy, axis=0)),
        "divergence_over_target": Variable("", jnp.mean(divergence)),
        "final_energy_queue": Variable("cluster node", queues.energy[-1]),
        "final_divergence_queue": Variable("", queues.divergence[-1]),
        "mean_energy_queue": Variable("cluster node", jnp.mean(queues.energy, axis=0)),
        "mean_divergence_queue": Variable("", jnp.mean(queues.divergence)),
        # Half the squared steps of the queues, summed over nodes.
        "energy_drift": Variable("", jnp.mean(jnp.sum((energy - 1.0) ** 2, axis=(1, 2))) / 2.0),
        "divergence_drift": Variable("", jnp.mean((divergence - 1.0) ** 2) / 2.0),
        "lifted_cost": Variable("", jnp.mean(lifted_cost)),
        "absent_rounds": Variable("cluster", jnp.sum(cost.absent, axis=0)),
    }


def limit_use(system: EdgeSystem, history: SystemRound) -> dict[str, Variable]:
    """Latency over reference, and use and queue of every limit: the budgets, then the target."""

    def limits(energy: Array, divergence: Array) -> Array:
        return jnp.concatenate([energy.reshape(len(energy), -1), divergence[:, None]], axis=1)

    latency_s = history.cost.latency_s
    return {
        "latency": Variable("round", latency_s / system.mean_problem.control.reference_latency_s),
        "use": Variable("round limit", limits(*_use(system, history))),
        "queue": Variable("round limit", limits(*queues_before(history.queues))),
        "effective_queue": Variable("round limit", limits(*history.effective_queues)),
        "last_queue": Variable("limit", limits(*history.queues)[-1]),
    }


def _use(system: EdgeSystem, history: SystemRound) -> tuple[Array, Array]:
    """Energy over budget ``[T, N, K + 1]`` and divergence over target ``[T]``."""
    control = system.mean_problem.control
    energy = history.cost.energy_j / control.energy_budget_j[None]
    return energy, history.cost.divergence / control.divergence_target


def network_groups(result: Realisations) -> dict[str, np.ndarray]:
    """Networks by group, booleans ``[R]``: within floors, below floors, or no cluster can run.

    Floors at mean gains are conditions only where every device is always there and stands
    still: rounds that a cluster sits out cost nothing. The least final queue has met those.
    """
    networks, runs = result.networks, runnable(result.networks)
    floor = np.maximum(networks["control_unit_floor"], networks["device_floor"]).max(axis=1)
    overdrawn = networks["least_final_queue"].max(axis=1) > QUEUE_LIMIT * result.rounds
    below = (floor >= 1.0) & floors_bind(result) | overdrawn
    return {"within_floors": runs & ~below, "below_floors": runs & below, "cannot_run": ~runs}


def floors_bind(result: Realisations) -> bool:
    """Whether the floors are necessary conditions."""
    dynamics = result.settings["config"]["dynamics"]
    return dynamics["availability"] == 1.0 and dynamics["speed_m_per_s"] == 0.0


def mean_backlog(values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Sum of all queues, mean over the rounds, ``[R]``."""
    return values["mean_energy_queue"].sum(axis=(1, 2)) + values["mean_divergence_queue"]


def drift_constant(values: Mapping[str, np.ndarray]) -> np.ndarray:
    """``B`` of the drift bound: mean of half the squared steps of all queues, ``[R]``."""
    return values["energy_drift"] + values["divergence_drift"]
