"""How losses slow the learning of a real task, and what that is worth in time.

    python -m figures.convergence --workdir=DIR [--out=DIR]

Reads ``convergence.json`` of ``experiments.convergence`` and writes ``convergence.pdf`` and
``convergence.png``. Above, the training loss of the last rounds against the number of
micro-batches, of stages and the interference, above that of the setting around which they
vary: a grey line a seed, each a network of its own, and the mean with its 95 % interval. Below,
for every number of micro-batches, the score against rounds and against simulated time, mean
over seeds, and the time to a score (:data:`GOAL` of the best last one of the seed) over the
least of the seed, with the median in blue; a line ends where the score was never reached.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collapipe_jax.command_line import run_reporting_errors
from experiments.convergence import AXES, BASE, rows_of
from figures import style
from figures.command_line import draw_result, load_report
from figures.estimates import mean_estimate

GOAL = 0.3
"""Share of the best last score of a seed, to which times are told: what most runs reach."""

_LABELS = {
    "micro_batches": "Micro-batches [–]",
    "stages": "Stages [–]",
    "activity": "Time that others\ninterfere [–]",
}
_COLORS = (style.VERMILLION, style.ORANGE, style.GREEN, style.SKY, style.BLUE)
_MARKERS = "v^osD"

Row = dict[str, Any]


def load_rows(workdir: str | os.PathLike) -> list[Row]:
    """Runs on file.

    Raises:
      InputError: if there are none.
    """
    return load_report(workdir, "convergence.json", "experiments.convergence")["runs"]


@style.styled
def draw(rows: Sequence[Row]) -> Figure:
    """Draw all panels.

    Args:
      rows: as ``experiments.convergence`` writes them.
    """
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 4.2)
    above, below = figure.subplots(2, 3)
    for axes, name in zip(above, AXES, strict=True):
        _losses(axes, rows, name)
    above[0].set_ylabel("Training loss, above\nthat of the base [nat]")
    _scores(below[0], rows, lambda row: row["rounds"])
    below[0].set_xlabel(style.ROUND_LABEL)
    below[0].set_ylabel("Score [%]")
    _scores(below[1], rows, lambda row: row["time_s"])
    below[1].set_xlabel("Simulated time [s]")
    _times(below[2], rows)
    handles, labels = below[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), title="Micro-batches"
    )
    return figure


def _losses(axes: Axes, rows: Sequence[Row], name: str) -> None:
    """Training loss over an axis, evenly spaced, seed by seed above that of the base."""
    settings = AXES[name]
    place = np.arange(len(settings))
    values = np.array([[row["train_loss"] for row in rows_of(rows, one)] for one in settings])
    values -= [row["train_loss"] for row in rows_of(rows, BASE)]
    axes.axhline(0.0, **style.RULE)
    axes.plot(place, values, color="0.75", linewidth=0.7)
    _with_interval(axes, place, values.T, style.BLUE)
    axes.set_xticks(place, [f"{getattr(one, name):g}" for one in settings])
    axes.set_xlabel(_LABELS[name])


def _with_interval(axes: Axes, place: np.ndarray, values: np.ndarray, color: str) -> None:
    found = mean_estimate(values)
    bars = np.array([found.value - found.low, found.high - found.value])
    axes.errorbar(place, found.value, bars, color=color, marker="o", capsize=2)


def _scores(axes: Axes, rows: Sequence[Row], where: Callable[[Row], list[float]]) -> None:
    """Score of every number of micro-batches, mean over seeds, as far as all of them go."""
    for setting, color, marker in zip(AXES["micro_batches"], _COLORS, _MARKERS, strict=True):
        runs = rows_of(rows, setting)
        end = min(where(row)[-1] for row in runs)
        grid = np.linspace(0.0, end, 13)
        score = [np.interp(grid, [0.0, *where(row)], [0.0, *row["score"]]) for row in runs]
        look = {"color": color, "marker": marker, "label": f"{setting.micro_batches}"}
        axes.plot(grid, np.mean(score, axis=0), markevery=3, clip_on=False, **look)
    axes.set_xlim(left=0.0)
    axes.set_ylim(bottom=0.0)


def times_to_goal(rows: Sequence[Row]) -> np.ndarray:
    """Time to the goal over the least of the seed, ``[seeds, settings]``; infinite if missed.

    Args:
      rows: of all numbers of micro-batches and seeds.
    """
    runs = [rows_of(rows, setting) for setting in AXES["micro_batches"]]
    times = []
    for of_seed in zip(*runs, strict=True):
        goal = GOAL * max(row["last_score"] for row in of_seed)
        times.append([_first_time(row, goal) for row in of_seed])
    times = np.array(times)
    return times / times.min(axis=1, keepdims=True)


def _first_time(row: Row, goal: float) -> float:
    """When the score, a line from one evaluation to the next, first reaches the goal."""
    score, time_s = np.array([0.0, *row["score"]]), np.array([0.0, *row["time_s"]])
    reached = np.flatnonzero(score >= goal)
    if not reached.size:
        return np.inf
    after = reached[0]
    part = (goal - score[after - 1]) / (score[after] - score[after - 1])
    return time_s[after - 1] + part * (time_s[after] - time_s[after - 1])


def _times(axes: Axes, rows: Sequence[Row]) -> None:
    """Time to the goal; a seed's line ends where its run never reached it."""
    settings = AXES["micro_batches"]
    times, place = times_to_goal(rows), np.arange(len(settings))
    axes.plot(place, np.where(np.isfinite(times), times, np.nan).T, color="0.75", linewidth=0.7)
    median = np.median(times, axis=0)
    known = np.isfinite(median)
    axes.plot(place[known], median[known], color=style.BLUE, marker="o")
    axes.set_xticks(place, [f"{one.micro_batches}" for one in settings])
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_yticks([1.0, 1.5, 2.0, 3.0, 5.0], labels=["1", "1.5", "2", "3", "5"])
    axes.set_xlabel(_LABELS["micro_batches"])
    axes.set_ylabel(f"Time to {100 * GOAL:.0f} % of the best\nscore, over the least [–]")


def main(argv: Sequence[str]) -> None:
    """Draw the figure from the runs on file."""
    draw_result(argv, __doc__, "experiments.convergence", "convergence", load_rows, draw)


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
