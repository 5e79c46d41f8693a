"""Warnings of long-term limits that a run ended over."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from collapipe_jax.core.errors import InputWarning
from collapipe_jax.runs.studies.constraints import DIVERGENCE_LIMIT, ENERGY_LIMIT

ABSURD = 10.0
"""A mean over its limit that no comparison of policies is meant to have."""


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
