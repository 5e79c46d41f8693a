"""How far ``dssra`` is from the best decision: distribution of the gap over networks.

From ``gap.jsonl`` of ``experiments.benchmarks.solver.gap``. A curve is the share of the networks
whose gap is at most so much, in percent of the better objective:

- the gap of ``dssra`` to exhaustive search;
- what of it is of the partition, and better shares and powers do not close;
- the gap to the lower bound that the search ends with, above which the best cannot lie;
- the first again, for networks in which even the best decision loses more than 0.9.

A curve begins at the share of the networks whose gap is at the left end or under it, where
single precision ends.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.figures import style

FLOOR_PERCENT = 1e-5
"""Left end of the axis."""

_HEAVY_LOSS = 0.9  # above which experiments.benchmarks.solver.gap reports networks apart
_LOOKS = {
    "gap": style.line(style.BLUE, "-", None),
    "of the partition": style.line(style.VERMILLION, (0, (4, 1.5)), None),
    "to the lower bound": style.line(style.GREEN, (0, (1, 1)), None),
    "gap, heavy losses": style.line(style.GREY, (0, (4, 1, 1, 1)), None),
}


FILE = "gap.jsonl"
"""File in a workdir, with a line for every network."""


def load(workdir: str | os.PathLike) -> list[dict]:
    """Networks on file; a line that a kill cut off is left out.

    Raises:
      InputError: if there are none.
    """
    path, rows = Path(workdir) / FILE, []
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    if not rows:
        remedy = "Name the workdir of experiments.benchmarks.solver.gap"
        raise InputError("workdir", str(workdir), "holds no gaps", remedy)
    return rows


def gaps_percent(rows: Sequence[dict]) -> dict[str, np.ndarray]:
    """Gaps by curve, in percent of the better objective."""

    def over(worse: str, better: str, heavy: bool = False) -> np.ndarray:
        used = (row for row in rows if (row["loss"] > _HEAVY_LOSS) == heavy)
        # No gap where no cluster can run and everything is 0.
        pairs = ((row[worse], row[better]) for row in used)
        return np.array([100.0 * (a / b - 1.0) if a != b else 0.0 for a, b in pairs])

    return {
        "gap": over("dssra", "exhaustive"),
        "of the partition": over("dssra_tuned", "exhaustive"),
        "to the lower bound": over("dssra", "lower_bound"),
        "gap, heavy losses": over("dssra", "exhaustive", heavy=True),
    }


@style.styled
def draw(rows: Sequence[dict]) -> Figure:
    """Draw the curves of all gaps; one without networks is left out."""
    figure = style.new_figure(style.COLUMN_WIDTH_IN, 2.7)
    axes = figure.subplots()
    curves = {name: gaps for name, gaps in gaps_percent(rows).items() if gaps.size}
    every = np.concatenate(list(curves.values()))
    top = style.decades(np.maximum(every[np.isfinite(every)], 10 * FLOOR_PERCENT))[1]
    axes.set_xscale("log")
    axes.set_xlim(FLOOR_PERCENT, top)
    axes.set_ylim(0.0, 102.0)
    for name, gaps in curves.items():
        _distribution(axes, gaps, top, name)
    axes.set_xlabel("Gap [%]")
    axes.set_ylabel("Networks with at most this gap [%]")
    figure.legend(loc="outside upper center", ncols=2, columnspacing=1.0, handlelength=2.0)
    return figure


def _distribution(axes: Axes, gaps: np.ndarray, top: float, name: str) -> None:
    """Stairs of the empirical distribution, from one end of the axis to the other."""
    ordered = np.sort(np.clip(gaps, FLOOR_PERCENT, np.inf))
    shares = 100.0 * np.arange(1, ordered.size + 1) / ordered.size
    start = shares[ordered <= FLOOR_PERCENT].max(initial=0.0)
    above = ordered > FLOOR_PERCENT
    finite = np.isfinite(ordered) & above
    x = np.concatenate([[FLOOR_PERCENT], ordered[finite], [top]])
    y = np.concatenate([[start], shares[finite]])
    label = f"{name} (n = {gaps.size})"
    axes.plot(x, [*y, y[-1]], drawstyle="steps-post", label=label, **_LOOKS[name])
