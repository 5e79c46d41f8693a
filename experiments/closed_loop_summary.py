"""What a closed-loop run says: constraints kept or not, latency, and the books of the queues.

Budgets under a floor of :mod:`collapipe_jax.control.budget_floors` can be kept by no pipeline, nor
those that a fade late in the horizon overdraws; such networks are summarised apart, and counted.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from experiments.closed_loop_files import Case, ClosedLoop
from experiments.intervals import mean_interval

ENERGY_LIMIT = DIVERGENCE_LIMIT = 1.01
"""A mean over budget or target up to which the constraint counts as met."""
QUEUE_LIMIT = 0.01
"""A final energy queue over the rounds up to which it counts as stable."""
GROUPS = ("within_floors", "below_floors")

_QUANTILES = (0.5, 0.9, 0.99)


def network_groups(result: ClosedLoop) -> dict[str, np.ndarray]:
    """Which networks belong to which group, booleans ``[R]``, with ``cannot_run``.

    Floors at mean gains are conditions only where every device is always there: rounds that
    a cluster sits out cost nothing. The least final queue has met those rounds.
    """
    networks = result.networks
    reference_s = networks["reference_latency_s"]
    runs = networks["can_run"].any(axis=1) & (reference_s > 0) & np.isfinite(reference_s)
    floor = np.maximum(networks["control_unit_floor"], networks["device_floor"]).max(axis=1)
    overdrawn = networks["least_final_queue"].max(axis=1) > QUEUE_LIMIT * result.rounds
    below = (floor >= 1.0) & floors_bind(result) | overdrawn
    return {"within_floors": runs & ~below, "below_floors": runs & below, "cannot_run": ~runs}


def floors_bind(result: ClosedLoop) -> bool:
    """Whether the floors are necessary conditions in this run."""
    return result.settings["config"]["dynamics"]["availability"] == 1.0


def constraints_met(values: Mapping[str, np.ndarray], rounds: int) -> dict[str, np.ndarray]:
    """Which realisations meet each constraint at every node, booleans ``[R]``."""

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
    """Largest break of ``mean(E) / budget - 1 <= q(R) / R``, and of the same for ``z``.

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


def summarise(result: ClosedLoop) -> dict[str, Any]:
    """Everything that is said of a run, as plain values for a JSON file.

    A number that is infinite or unknown is null.
    """
    groups = network_groups(result)
    asked = result.settings["closed_loop"]
    return {
        "rounds": result.rounds,
        "realisations": asked["realisations"],
        "limits": {
            "energy_over_budget": ENERGY_LIMIT,
            "final_energy_queue_over_rounds": QUEUE_LIMIT,
            "divergence_over_target": DIVERGENCE_LIMIT,
        },
        "networks": {name: int(members.sum()) for name, members in groups.items()}
        | {"floors_checked": floors_bind(result)},
        "cases": [_case(case, groups, result.rounds) for case in result.cases],
    }


def _case(case: Case, groups: Mapping[str, np.ndarray], rounds: int) -> dict[str, Any]:
    excess = sample_path_excess(case.values, rounds)
    rounding = rounds * float(np.finfo(np.float32).eps)  # of so many additions
    return {
        "policy": case.policy,
        "v": case.v,
        "sample_path_excess": excess,
        "sample_path_holds": max(excess.values()) <= rounding,
    } | {name: _group(case.values, groups[name], rounds) for name in GROUPS}


def _group(
    values: Mapping[str, np.ndarray], members: np.ndarray, rounds: int
) -> dict[str, Any] | None:
    """Numbers of the realisations of one group; None if there are none."""
    if not members.any():
        return None
    values = {name: value[members] for name, value in values.items()}
    met = constraints_met(values, rounds)
    return {
        "realisations": int(members.sum()),
        "mean_latency_s": mean_interval(values["mean_latency_s"]),
        "latency_over_reference": mean_interval(values["latency_over_reference"]),
        "energy_over_budget": _spread(values["energy_over_budget"]),
        "final_energy_queue_over_rounds": _spread(values["final_energy_queue"] / rounds),
        "divergence_over_target": _spread(values["divergence_over_target"]),
        "final_divergence_queue_over_rounds": _spread(values["final_divergence_queue"] / rounds),
        "share_met": {name: float(kept.mean()) for name, kept in met.items()},
        "constraints_met": bool(met["all"].all()),
        "mean_backlog": mean_interval(mean_backlog(values)),
        "drift_constant": mean_interval(drift_constant(values)),
        "absent_share": float(values["absent_rounds"].mean() / rounds),
    }


def _spread(values: np.ndarray) -> dict[str, float | None]:
    """Worst and quantiles over everything."""
    spread = {"worst": values.max()} | {
        f"q{100 * q:g}": np.quantile(values, q, method="higher") for q in _QUANTILES
    }
    return {name: float(v) if np.isfinite(v) else None for name, v in spread.items()}


_WORST = {
    "energy\n/budget": "energy_over_budget",
    "queue\n/rounds": "final_energy_queue_over_rounds",
    "diverg.\n/target": "divergence_over_target",
}


def summary_table(summary: Mapping[str, Any]) -> Table:
    """One row for every policy, V and group of networks."""
    networks = summary["networks"]
    table = Table(
        title=f"{summary['realisations']} networks, {summary['rounds']} rounds",
        caption="Latency: mean and 95 % interval; then the worst node and network; met: share of "
        f"networks that meet all. {_about(networks)}",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for name in ("policy", "V", "nets", "latency\n/reference", *_WORST, "met"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for case in _without_repeats(summary["cases"]):
        for group in GROUPS:
            if case[group] is not None:
                table.add_row(*_row(case, group))
    return table


def _without_repeats(cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Cases, but only one, of V "any", for a policy that does the same whatever V is."""
    told = []
    for policy in dict.fromkeys(case["policy"] for case in cases):
        own = [{**case, "v": f"{case['v']:g}"} for case in cases if case["policy"] == policy]
        alike = all({**case, "v": own[0]["v"]} == own[0] for case in own)
        told += [{**own[0], "v": "any"}] if alike and len(own) > 1 else own
    return told


def _about(networks: Mapping[str, Any]) -> str:
    """What to know of networks that no policy can help."""
    below = f"*: {networks['below_floors']} networks with a budget that no pipeline can keep"
    if not networks["floors_checked"]:
        below += " (floors at mean gains do not bind where devices come and go)"
    return f"{below}. In {networks['cannot_run']} networks no round can run."


def _row(case: Mapping[str, Any], group: str) -> list[str]:
    values = case[group]
    latency = values["latency_over_reference"]
    return [
        case["policy"],
        case["v"],
        f"{values['realisations']}{'*' if group == 'below_floors' else ''}",
        f"{_number(latency['mean'])} ± {_number(latency['ci95'])}",
        *(_number(values[key]["worst"]) for key in _WORST.values()),
        f"{100 * values['share_met']['all']:.0f} %",
    ]


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.3g}"
