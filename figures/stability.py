"""Latency and backlog of closed loops under the bounds of drift plus penalty.

    python -m figures.stability --workdir=DIR [--out=DIR]

Reads ``stability.json`` of ``experiments.stability`` and writes ``stability.pdf`` and
``stability.png``: means over networks with 95 % intervals against V, and the bounds (T20) and
(T22) of docs/theory.md, whose constants are computed and not fitted.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collapipe_jax.command_line import run_reporting_errors
from figures import style
from figures.command_line import draw_result, load_report

_MEASURED = style.LineLook(style.BLUE, "-", "o")
_BOUND = style.LineLook(style.VERMILLION, (0, (4, 1.5)), "^")


def load_rows(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """Rows on file, one a V.

    Raises:
      InputError: if there are none.
    """
    return load_report(workdir, "stability.json", "experiments.stability")["v"]


@style.styled
def draw(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw both panels.

    Args:
      rows: as ``experiments.stability`` writes them.
    """
    figure = style.new_figure(style.COLUMN_WIDTH_IN, 4.0)
    above, below = figure.subplots(2, 1, sharex=True)
    for axes, name in ((above, "latency"), (below, "backlog")):
        _curve(axes, rows, name, _MEASURED, "measured")
        _curve(axes, rows, f"{name}_bound", _BOUND, "bound")
        axes.set_xscale("log")
    below.set_yscale("log")
    above.set_ylabel("Mean latency\nover reference [–]")
    below.set_ylabel("Mean backlog,\nall queues [–]")
    below.set_xlabel("Weight of latency V [–]")
    style.legend_above(above)
    return figure


def _curve(
    axes: Axes, rows: Sequence[dict[str, Any]], name: str, look: style.LineLook, label: str
) -> None:
    """Means with their intervals; V of which no network tells are left out."""
    known = [row for row in rows if row[name]["mean"] is not None]
    v, mean = ([row["v"] for row in known], [row[name]["mean"] for row in known])
    half = np.array([row[name]["ci95"] or 0.0 for row in known])
    axes.errorbar(v, mean, half, capsize=2, label=label, **look._asdict())


def main(argv: Sequence[str]) -> None:
    """Draw the figure from the bounds on file."""
    draw_result(argv, __doc__, "experiments.stability", "stability", load_rows, draw)


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
