"""The convergence bound against measured descents of ``experiments.studies.bound``.

- Above, the bound on the mean squared gradient against the measured one, a marker for every
  descent of the grid and of the extensions; below the dotted line the bound would be broken.
- In the middle, bound over measured against the mean loss of the clusters: median of all
  settings that share it, and whiskers from the least to the most.
- Below, descents that break what the bound assumes, measured over bound: filled as they are,
  hollow the same descent with losses as assumed. Right of the dotted line the bound fails.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collapipe_jax.runs.figures import style
from collapipe_jax.runs.results.experiment import Results, as_rows

_LOOKS = (
    style.line(style.BLUE, "-", "o"),
    style.line(style.VERMILLION, (0, (4, 1.5)), "s"),
    style.line(style.GREEN, (0, (1, 1)), "^"),
)
_EXTENSION_LOOKS = {
    "momentum": style.line(style.PURPLE, "none", "D"),
    "absence": style.line(style.ORANGE, "none", "v"),
}
_STAGGER = 0.007  # of whiskers at one loss, in losses
_MARGIN = 1.5  # of logarithmic axes, as a factor
_LONG_STEP = 0.5  # of eta L_s, from which on a label has it

Report = dict[str, list[dict[str, Any]]]


def load(workdir: str) -> Report:
    """The tables ``settings``, ``extensions`` and ``ablations``.

    Raises:
      InputError: if there are none.
    """
    results = Results.open(workdir, "bound")
    return {name: as_rows(results.read(name)) for name in ("settings", "extensions", "ablations")}


@style.styled
def draw(report: Report) -> Figure:
    """Draw the three panels."""
    figure = style.new_figure(style.COLUMN_WIDTH_IN, 6.9)
    parts = figure.subfigures(3, height_ratios=[2.7, 1.8, 2.4])  # each with a margin of its own
    above, middle, below = (part.subplots() for part in parts)
    local_steps = sorted({row["local_steps"] for row in report["settings"]})
    looks = dict(zip(local_steps, _LOOKS, strict=False))
    _draw_bounds(above, report, looks)
    _draw_factors(middle, report["settings"], looks)
    _draw_ablations(below, report["ablations"])
    return figure


def _draw_bounds(axes: Axes, report: Report, looks: dict[int, style.Look]) -> None:
    """Bound against measured, with the line where they are equal."""
    groups = [
        (f"H = {steps}", [row for row in report["settings"] if row["local_steps"] == steps], look)
        for steps, look in looks.items()
    ] + [
        (kind, [row for row in report["extensions"] if row["kind"] == kind], look)
        for kind, look in _EXTENSION_LOOKS.items()
    ]
    every = []
    for label, rows, look in groups:
        measured, bounds = ([row[key] for row in rows] for key in ("measured", "bound"))
        every += measured + bounds
        axes.plot(measured, bounds, label=label, fillstyle="none", **style.markers_only(look))
    ends = min(every) / _MARGIN, max(every) * _MARGIN
    axes.plot(ends, ends, **style.RULE)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set_xlabel("Mean squared gradient, measured [–]")
    axes.set_ylabel("Bound [–]")
    axes.set_aspect("equal")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_factors(axes: Axes, rows: Sequence[dict], looks: dict[int, style.Look]) -> None:
    """Median and range of the factor at every loss."""
    for place, (steps, look) in enumerate(looks.items()):
        some = [row for row in rows if row["local_steps"] == steps]
        losses = np.array(sorted({row["loss"] for row in some}))
        factors = [[row["factor"] for row in some if row["loss"] == loss] for loss in losses]
        middle = np.array([np.median(each) for each in factors])
        ends = np.array([[min(each), max(each)] for each in factors]).T
        where, error = losses + (place - 1) * _STAGGER, np.abs(ends - middle)
        axes.errorbar(where, middle, error, label=f"H = {steps}", elinewidth=0.6, **look)
    axes.axhline(1.0, **style.RULE)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("Mean loss probability of a micro-batch [–]")
    axes.set_ylabel("Bound / measured [–]")
    style.legend_above(axes)


def _draw_ablations(axes: Axes, rows: Sequence[dict]) -> None:
    """Measured over bound, one line a descent from top to bottom."""
    places = np.arange(len(rows))
    for key, filled, label in (
        ("measured", "full", "as it is"),
        ("measured_as_assumed", "none", "losses as assumed"),
    ):
        ratios = [row[key] / row["bound"] for row in rows]
        look = style.line(style.BLACK, "none", "o")
        axes.plot(ratios, places, fillstyle=filled, label=label, **look)
    axes.axvline(1.0, **style.RULE)
    axes.set_xscale("log")
    axes.set_yticks(places, [_ablation_label(row) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("Measured / bound [–]")
    style.legend_above(axes)


def _ablation_label(row: dict) -> str:
    """Kind of an ablation, and the sizes in which it differs from others of its kind."""
    step = f"$\\eta L_s$ = {row['step_smoothness']:g}"
    if row["kind"] == "pooled":
        return f"pooled, {step}"
    if row["step_smoothness"] > _LONG_STEP:
        return f"{row['kind']}, {step}"
    return f"{row['kind']}, M = {row['micro_batches']}, H = {row['local_steps']}"
