"""What a comparison says: every policy's means, its violations, and what ``dssra`` saves.

Networks in which no cluster can ever hold the encoder are left out, and counted.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from experiments.compare_files import Comparison
from experiments.intervals import mean_interval

METRICS = ("latency_s", "compute_latency_s", "device_memory_bytes", "energy_j", "divergence")
"""Means over rounds, of :class:`experiments.compare.Realisation`."""
OURS = "dssra"
LIMIT = 1.01
"""A mean over its budget or target up to which a long-term constraint counts as kept."""

_VIOLATED = "violated."


def runnable(networks: Mapping[str, np.ndarray]) -> np.ndarray:
    """Networks in which some cluster can hold the encoder, booleans ``[R]``."""
    reference_s = networks["reference_latency_s"]
    return networks["can_run"].any(axis=1) & (reference_s > 0) & np.isfinite(reference_s)


def only_runnable(result: Comparison) -> Comparison:
    """The comparison without the networks in which no cluster can hold the encoder."""
    kept = runnable(result.networks)
    networks = {name: value[kept] for name, value in result.networks.items()}
    policies = {
        name: {field: value[kept] for field, value in values.items()}
        for name, values in result.policies.items()
    }
    return Comparison(result.settings, networks, policies)


def means(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Means over the rounds of every metric, ``[R]``; infinite ones stay."""
    return {name: values[name].astype(np.float64).mean(axis=1) for name in METRICS}


def summarise(result: Comparison) -> dict[str, Any]:
    """Everything that is said of a comparison, as plain values for a JSON file.

    A number that is infinite or unknown is null. ``reduction_percent`` is by how much
    ``dssra`` lies under another policy, in percent of that policy and in the same network;
    it is there where ``dssra`` is.
    """
    _, networks, policies = only_runnable(result)
    kept = runnable(result.networks)
    asked = result.settings["compare"]
    return {
        "rounds": asked["rounds"],
        "realisations": int(kept.sum()),
        "realisations_left_out": int((~kept).sum()),
        "policies": {name: _policy(values, networks) for name, values in policies.items()},
        "reduction_percent": _reductions(policies) if OURS in policies else {},
    }


def _policy(values: Mapping[str, np.ndarray], networks: Mapping[str, np.ndarray]) -> dict[str, Any]:
    averaged = means(values)
    told: dict[str, Any] = {name: _interval(value) for name, value in averaged.items()}
    told["active_devices"] = _interval(values["active_devices"].mean(axis=1))
    told["micro_batches"] = _interval(values["micro_batches"].mean(axis=1))
    told["loss_probability"] = _interval(values["loss_probability"].mean(axis=1))
    told["violations"] = _violations(values, averaged, networks)
    return told


def _interval(values: np.ndarray) -> dict[str, float | None]:
    """Mean, half width of its 95 % interval, and median, which heavy tails do not move."""
    median = np.median(values) if values.size else np.nan
    return mean_interval(values) | {"median": float(median) if np.isfinite(median) else None}


def _violations(
    values: Mapping[str, np.ndarray],
    averaged: Mapping[str, np.ndarray],
    networks: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    """How often limits are broken, and how badly.

    Of limits of a round the share of all rounds; of long-term ones the share of nodes, or of
    networks, whose mean over the rounds is above by more than 1 %, and the worst mean.
    """
    rounds = values["latency_s"].shape[1]
    energy = values["mean_energy_j"] / networks["energy_budget_j"]
    divergence = averaged["divergence"] / networks["divergence_target"]
    told = {
        name.removeprefix(_VIOLATED): _number(count.mean() / rounds)
        for name, count in values.items()
        if name.startswith(_VIOLATED)
    }
    return told | {
        "energy": _number((energy > LIMIT).mean()),
        "networks_over_energy": _number((energy > LIMIT).any(axis=(1, 2)).mean()),
        "worst_energy_over_budget": _number(energy.max(initial=0.0)),
        "divergence": _number((divergence > LIMIT).mean()),
        "worst_divergence_over_target": _number(divergence.max(initial=0.0)),
        "absent": _number(values["absent_rounds"].mean() / rounds),
    }


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _reductions(policies: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Any]:
    averaged = {name: means(values) for name, values in policies.items()}
    ours = averaged[OURS]
    return {
        metric: {
            name: _interval(reduction_percent(ours[metric], other[metric]))
            for name, other in averaged.items()
            if name != OURS
        }
        for metric in METRICS
    }


def reduction_percent(ours: np.ndarray, other: np.ndarray) -> np.ndarray:
    """By how much ours lies under the other, in percent of the other, ``[R]``.

    100 where the other alone is infinite; nan where ours is, or both are 0.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        reduction = 100.0 * (1.0 - ours / other)
    return np.where(np.isfinite(ours), reduction, np.nan)


def summary_table(summary: Mapping[str, Any]) -> Table:
    """One row for every policy."""
    left_out = summary["realisations_left_out"]
    table = Table(
        title=f"{summary['realisations']} networks, {summary['rounds']} rounds",
        caption="Means over rounds and networks, latency with its 95 % interval. Broken: share of "
        "rounds over a device's memory, of nodes over their mean energy, of networks over "
        f"their mean divergence. {left_out} networks that can run no round are left out.",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for name in (
        "policy",
        "latency\ns",
        "compute\ns",
        "memory\nMiB",
        "energy\nJ",
        "diverg.\nmedian",
    ):
        table.add_column(name, justify="left" if name == "policy" else "right")
    table.add_column("broken: memory,\nenergy, diverg.", justify="right")
    for name, told in summary["policies"].items():
        table.add_row(*_row(name, told))
    return table


def _row(name: str, told: Mapping[str, Any]) -> list[str]:
    memory = told["device_memory_bytes"]["mean"]
    broken = told["violations"]
    return [
        name,
        f"{_figure(told['latency_s']['mean'])} ± {_figure(told['latency_s']['ci95'])}",
        _figure(told["compute_latency_s"]["mean"]),
        _figure(None if memory is None else memory / 2**20),
        _figure(told["energy_j"]["mean"]),
        _figure(told["divergence"]["median"]),
        ", ".join(_percent(broken[key]) for key in ("memory", "energy", "divergence")),
    ]


def _figure(value: float | None) -> str:
    return "?" if value is None else f"{value:.3g}"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{100 * share:.0f} %"
