"""Latency and backlog of closed loops under the bounds of drift plus penalty.

Means over networks with 95 % intervals against V, and the bounds (T20) and (T22) of
docs/theory.md, whose constants are computed and not fitted.
"""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collapipe_jax.core.statistics import mean_interval
from collapipe_jax.runs.figures import style
from collapipe_jax.runs.results.experiment import Results

_MEASURED = style.line(style.BLUE, "-", "o")
_BOUND = style.line(style.VERMILLION, (0, (4, 1.5)), "^")


def load(workdir: str) -> dict[str, np.ndarray]:
    """Latency and backlog with their bounds, ``[V, R]``, and ``v [V]``.

    Raises:
      InputError: if there are none.
    """
    return Results.open(workdir, "stability").read("bounds")


@style.styled
def draw(bounds: Mapping[str, np.ndarray]) -> Figure:
    """Draw both panels; a backlog that no comparison bounds is left out."""
    figure = style.new_figure(style.COLUMN_WIDTH_IN, 4.0)
    above, below = figure.subplots(2, 1, sharex=True)
    for axes, name in ((above, "latency"), (below, "backlog")):
        bounded = np.isfinite(bounds[f"{name}_bound"])
        _curve(axes, bounds["v"], bounds[name], bounded, _MEASURED, "measured")
        _curve(axes, bounds["v"], bounds[f"{name}_bound"], bounded, _BOUND, "bound")
        axes.set_xscale("log")
    below.set_yscale("log")
    above.set_ylabel("Mean latency\nover reference [–]")
    below.set_ylabel("Mean backlog,\nall queues [–]")
    below.set_xlabel("Weight of latency V [–]")
    style.legend_above(above)
    return figure


def _curve(
    axes: Axes, v: np.ndarray, values: np.ndarray, bounded: np.ndarray, look: style.Look, name: str
) -> None:
    """Means over bounded networks with their intervals; V without one are left out."""
    rows = [row[use] for row, use in zip(values, bounded, strict=True) if use.any()]
    intervals = [mean_interval(row) for row in rows]
    mean, half = ([one[key] or 0.0 for one in intervals] for key in ("mean", "ci95"))
    axes.errorbar(v[bounded.any(axis=1)], mean, half, capsize=2, label=name, **look)
