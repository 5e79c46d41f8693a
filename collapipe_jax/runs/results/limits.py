"""Long-term limits of runs and closed loops: whether they can be kept, and whether they are.

Budgets under a floor of :mod:`collapipe_jax.edge.control.budget_floors` can be kept by no pipeline,
nor can those that a fade late in the horizon overdraws; such networks are a group apart.
Arrays are those of :func:`collapipe_jax.runs.studies.points.time_means`.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from collapipe_jax.core.errors import InputWarning
from collapipe_jax.runs.results.realisations import Realisations

ENERGY_LIMIT = DIVERGENCE_LIMIT = 1.01
"""A mean over budget or target up to which a long-term constraint counts as met."""
QUEUE_LIMIT = 0.01
"""A final energy queue over the rounds up to which it counts as stable."""
ABSURD = 10.0
"""A mean over its limit that no comparison of policies is meant to have."""


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


def warn_of_run(history: Mapping[str, np.ndarray], budget_j: np.ndarray, target: float) -> None:
    """Warn once of each limit that the means of a run, by round, are over."""
    energy_j, divergence = history["energy_j"].mean(axis=0), float(history["divergence"].mean())
    over = energy_j / budget_j
    n, i = np.unravel_index(np.argmax(over), over.shape)
    if over[n, i] > ENERGY_LIMIT:
        key = "control.device_budget_j" if i else "control.control_unit_budget_j"
        node = f"mean energy of cluster {n}, node {i}"
        _warn(
            node,
            f"{energy_j[n, i]:.3g} J",
            f"the budget of {budget_j[n, i]:.3g} J",
            over[n, i],
            key,
        )
    if divergence > DIVERGENCE_LIMIT * target:
        limit, key = f"the target of {target:.3g}", "control.divergence_ratio"
        _warn("mean divergence", f"{divergence:.3g}", limit, divergence / target, key)


def warn_of_comparison(summary: Mapping[str, Any]) -> None:
    """Warn of each policy that is far over a limit on some network."""
    limits = {"energy_over_budget": "control.device_budget_j and control.control_unit_budget_j"}
    limits |= {"divergence_over_target": "control.divergence_ratio"}
    for name, key in limits.items():
        ratios = {
            policy: found["violations"][f"worst_{name}"]
            for policy, found in summary["policies"].items()
        }
        if far := {policy: ratio for policy, ratio in ratios.items() if ratio > ABSURD}:
            worst = ", ".join(f"{policy} {ratio:.3g}" for policy, ratio in far.items())
            words = f"mean {name.replace('_', ' ')}, on the worst network: {worst}; limit 1."
            text = f"{words} Raise {key}, or take another policy."
            warnings.warn(text, InputWarning, stacklevel=2)


def _warn(what: str, measured: str, limit: str, ratio: float, key: str) -> None:
    remedy = f"Raise {key}, lower control.v, or take a policy that minds it."
    text = f"{what} ended at {measured}, {ratio:.3g} times {limit}. {remedy}"
    warnings.warn(text, InputWarning, stacklevel=3)
