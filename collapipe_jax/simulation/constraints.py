"""Long-term constraints of closed loops: whether they can be kept, and whether they are.

Budgets under a floor of :mod:`collapipe_jax.control.budget_floors` can be kept by no pipeline,
nor can those that a fade late in the horizon overdraws; such networks are a group apart.
Arrays are those of :func:`collapipe_jax.simulation.reducers.time_means`.
"""

from collections.abc import Mapping

import numpy as np

from collapipe_jax.files.realisations import Realisations, runnable

ENERGY_LIMIT = DIVERGENCE_LIMIT = 1.01
"""A mean over budget or target up to which a long-term constraint counts as met."""
QUEUE_LIMIT = 0.01
"""A final energy queue over the rounds up to which it counts as stable."""


def network_groups(result: Realisations) -> dict[str, np.ndarray]:
    """Networks by group, booleans ``[R]``: within floors, below floors, or no cluster can run.

    Floors at mean gains are conditions only where every device is always there: rounds that
    a cluster sits out cost nothing. The least final queue has met those rounds.
    """
    networks, runs = result.networks, runnable(result.networks)
    floor = np.maximum(networks["control_unit_floor"], networks["device_floor"]).max(axis=1)
    overdrawn = networks["least_final_queue"].max(axis=1) > QUEUE_LIMIT * result.rounds
    below = (floor >= 1.0) & floors_bind(result) | overdrawn
    return {"within_floors": runs & ~below, "below_floors": runs & below, "cannot_run": ~runs}


def floors_bind(result: Realisations) -> bool:
    """Whether the floors are necessary conditions."""
    return result.settings["config"]["dynamics"]["availability"] == 1.0


def constraints_met(values: Mapping[str, np.ndarray], rounds: int) -> dict[str, np.ndarray]:
    """Realisations that meet each constraint at every node, booleans ``[R]``."""

    def worst(name: str) -> np.ndarray:
        return values[name].reshape(len(values[name]), -1).max(axis=1)

    met = {
        "energy": worst("energy_over_budget") <= ENERGY_LIMIT,
        "energy_queue": worst("final_energy_queue") <= QUEUE_LIMIT * rounds,
        "divergence": worst("divergence_over_target") <= DIVERGENCE_LIMIT,
    }
    return met | {"all": np.logical_and.reduce(list(met.values()))}


def mean_backlog(values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Sum of all queues, mean over the rounds, ``[R]``."""
    return values["mean_energy_queue"].sum(axis=(1, 2)) + values["mean_divergence_queue"]


def drift_constant(values: Mapping[str, np.ndarray]) -> np.ndarray:
    """``B`` of the drift bound: mean of half the squared steps of all queues, ``[R]``."""
    return values["energy_drift"] + values["divergence_drift"]


def sample_path_excess(values: Mapping[str, np.ndarray], rounds: int) -> dict[str, float]:
    """Largest violation of ``mean(E) / budget - 1 <= q(R) / R``, and of the same for ``z``.

    It follows from (20) on every path and node, whatever the policy, so what is left is
    rounding; relative to the mean where that is above 1.
    """

    def largest(mean: np.ndarray, queue: np.ndarray) -> float:
        finite = np.isfinite(mean) & np.isfinite(queue)
        mean, queue = mean[finite].astype(np.float64), queue[finite].astype(np.float64)
        excess = (mean - 1.0 - queue / rounds) / np.maximum(mean, 1.0)
        return float(max(excess.max(initial=0.0), 0.0))

    return {
        "energy": largest(values["energy_over_budget"], values["final_energy_queue"]),
        "divergence": largest(values["divergence_over_target"], values["final_divergence_queue"]),
    }
