"""The table of a race: policies side by side, means over seeds with their intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from collapipe_jax.units import bytes_to_mib
from experiments.intervals import mean_interval
from experiments.race_files import Run

ROWS = {
    "simulated time, s": ("simulated_time_s", "{:.0f}"),
    "mean latency of a round, s": ("mean_latency_s", "{:.2f}"),
    "  of it compute alone, s": ("mean_compute_latency_s", "{:.2f}"),
    "mean energy of a round, all nodes, J": ("mean_energy_j", "{:.2f}"),
    "mean energy over budget, worst node": ("worst_energy_over_budget", "{:.2f}"),
    "mean divergence over target": ("mean_divergence_over_target", "{:.3g}"),
    "peak memory of a device, MiB": ("peak_device_memory_bytes", "{:.1f}"),  # in bytes on file
}
TARGET = 0.9
"""Share of a seed's best final validation score, to which the time of every policy is told."""


def race_table(runs: Sequence[Run], told_rates: bool = False) -> Table:
    """Policies side by side: test scores first, as the objective names them.

    Args:
      runs: of every policy as many as there are seeds.
      told_rates: whether the rates that each policy learnt with have a row.
    """
    teams: dict[str, list[Run]] = {}
    for run in runs:
        teams.setdefault(run.policy, []).append(run)
    seeds = len({run.seed for run in runs})
    alike = "Same network, same data, same seed"
    table = Table(title=alike if seeds == 1 else f"{alike} for all; mean of {seeds} seeds, 95 %")
    table.add_column("")
    for name in teams:
        table.add_column(name, justify="right")
    for label, row in _rows(teams, told_rates).items():
        table.add_row(label, *row)
    return table


def _rows(teams: Mapping[str, Sequence[Run]], told_rates: bool) -> dict[str, list[str]]:
    """Cells by label, a policy each."""
    first = next(iter(teams.values()))
    rows = {}
    for key, value in first[0].summary.items():
        if key.startswith("test_") and _is_number(value):
            values = [[run.summary[key] for run in team] for team in teams.values()]
            rows[key.replace("_", " ")] = [_cell(row, "{:.1f}") for row in values]
            if key == first[0].headline and len(first) > 1:
                rows[f"  under {first[0].policy}"] = [
                    _cell(np.subtract(values[0], row), "{:.1f}") for row in values
                ]
    rows |= _time_to_score(teams)
    if told_rates:
        rows["learning rates, of those configured"] = [
            f"{team[0].rate:g}" for team in teams.values()
        ]
    rows["rounds"] = [
        _cell([len(run.record.history["round"]) for run in team], "{:.0f}")
        for team in teams.values()
    ]
    for label, (key, form) in ROWS.items():
        unit = bytes_to_mib if key.endswith("_bytes") else float
        rows[label] = [
            _cell([unit(run.summary[key]) for run in team], form) for team in teams.values()
        ]
    return rows


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(values: Sequence[float], form: str) -> str:
    """One value, or the mean of several with its interval."""
    interval = mean_interval(np.asarray(values))
    if interval["mean"] is None:
        return "not finite"
    mean = form.format(interval["mean"])
    return mean if interval["ci95"] is None else f"{mean} ± {form.format(interval['ci95'])}"


def _time_to_score(teams: Mapping[str, Sequence[Run]]) -> dict[str, list[str]]:
    """When each run's validation score was first seen at a share of the seed's best final one."""
    goals, cells = [], []
    for runs in zip(*teams.values(), strict=True):
        goals.append(TARGET * max(run.last_score for run in runs))
        cells.append([_first_seen(run, goals[-1]) for run in runs])
    goal = ", ".join(f"{goal:.1f}" if np.isfinite(goal) else "not finite" for goal in goals)
    label = f"evaluated at {goal} or above first after, s"
    return {label: [", ".join(team) for team in zip(*cells, strict=True)]}


def _first_seen(run: Run, goal: float) -> str:
    reached = np.flatnonzero(run.record.history["score"] >= goal)
    time_s = run.record.history["simulated_time_s"]
    return f"{time_s[reached[0]]:.0f}" if reached.size and np.isfinite(goal) else "never"
