"""Long-term constraints of closed loops: whether they can be kept, and whether they are.

Budgets under a floor of :mod:`collapipe_jax.edge.control.budget_floors` can be kept by no pipeline,
nor can those that a fade late in the horizon overdraws; such networks are a group apart.
Arrays are those of :func:`collapipe_jax.runs.studies.reducers.time_means`.
"""

from collections.abc import Mapping

import numpy as np

from collapipe_jax.runs.results.realisations import Realisations

ENERGY_LIMIT = DIVERGENCE_LIMIT = 1.01
"""A mean over budget or target up to which a long-term constraint counts as met."""
QUEUE_LIMIT = 0.01
"""A final energy queue over the rounds up to which it counts as stable."""


def runnable(networks: Mapping[str, np.ndarray]) -> np.ndarray:
    """Networks in which some cluster can hold the encoder, booleans ``[R]``."""
    reference_s = networks["reference_latency_s"]
    return networks["can_run"].any(axis=1) & (reference_s > 0) & np.isfinite(reference_s)


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
