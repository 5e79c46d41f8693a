"""How losses slow the learning of a real task, and what that is worth in time.

Above, the training loss of the last rounds against the number of
micro-batches, of stages and the interference, above that of the setting around which they
vary: a grey line a seed, each a network of its own, and the mean with its 95 % interval. Below,
for every number of micro-batches, the score against rounds and against simulated time, mean
over seeds, and the time to a score (:data:`GOAL` of the best last one of the seed) over the
least of the seed, with the median in blue; a line ends where the score was never reached.
"""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collapipe_jax.core.statistics import mean_estimate
from collapipe_jax.runs.figures import style
from experiments.studies.convergence import ConvergenceStudy, Row

GOAL = 0.3
"""Share of the best last score of a seed, to which times are measured: what most runs reach."""

_LABELS = {
    "micro_batches": "Micro-batches [–]",
    "stages": "Stages [–]",
    "activity": "Time that others\ninterfere [–]",
}
_COLORS = (style.VERMILLION, style.ORANGE, style.GREEN, style.SKY, style.BLUE)
_MARKERS = "v^osD"


@style.styled
def draw(study: ConvergenceStudy) -> Figure:
    """Draw all panels."""
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 4.2)
    above, below = figure.subplots(2, 3)
    for axes, name in zip(above, _LABELS, strict=True):
        _losses(axes, study, name)
    above[0].set_ylabel("Training loss, above\nthat of the base [nat]")
    _scores(below[0], study, lambda row: np.arange(1.0, len(row["score"]) + 1))
    below[0].set_xlabel(style.ROUND_LABEL)
    below[0].set_ylabel("Score [%]")
    _scores(below[1], study, lambda row: np.array(row["simulated_time_s"]))
    below[1].set_xlabel("Simulated time [s]")
    _times(below[2], study)
    handles, labels = below[0].get_legend_handles_labels()
    place = {"loc": "outside lower center", "ncols": len(labels)}
    figure.legend(handles, labels, title="Micro-batches", **place)
    return figure


def _evaluated(row: Row, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places and scores of a run where it was evaluated, from 0 on."""
    score = np.array(row["score"])
    known = np.isfinite(score)
    return np.append(0.0, x[known]), np.append(0.0, score[known])


def _losses(axes: Axes, study: ConvergenceStudy, name: str) -> None:
    """Training loss over an axis, evenly spaced, seed by seed above that of the base."""
    place = np.arange(len(study.axes[name]))
    runs = [study.of(name, value) for value in study.axes[name]]
    values = np.array([[row["train_loss"] for row in own] for own in runs])
    values -= [row["train_loss"] for row in study.of(name, study.base[name])]
    axes.axhline(0.0, **style.RULE)
    axes.plot(place, values, color="0.75", linewidth=0.7)
    found = mean_estimate(values.T)
    bars = np.array([found.value - found.low, found.high - found.value])
    axes.errorbar(place, found.value, bars, color=style.BLUE, marker="o", capsize=2)
    axes.set_xticks(place, [f"{value:g}" for value in study.axes[name]])
    axes.set_xlabel(_LABELS[name])


def _scores(axes: Axes, study: ConvergenceStudy, where: Callable[[Row], np.ndarray]) -> None:
    """Score of every number of micro-batches, mean over seeds, as far as all of them go."""
    counts = study.axes["micro_batches"]
    for count, color, marker in zip(counts, _COLORS, _MARKERS, strict=True):
        runs = [_evaluated(row, where(row)) for row in study.of("micro_batches", count)]
        grid = np.linspace(0.0, min(x[-1] for x, _ in runs), 13)
        score = np.mean([np.interp(grid, *run) for run in runs], axis=0)
        look = {"color": color, "marker": marker, "label": f"{count}"}
        axes.plot(grid, score, markevery=3, clip_on=False, **look)
    axes.set_xlim(left=0.0)
    axes.set_ylim(bottom=0.0)


def times_to_goal(study: ConvergenceStudy) -> np.ndarray:
    """Time to the goal over the least of the seed, ``[seeds, settings]``; infinite if missed."""
    runs = [study.of("micro_batches", count) for count in study.axes["micro_batches"]]
    times = []
    for of_seed in zip(*runs, strict=True):
        goal = GOAL * max(row["last_score"] for row in of_seed)
        times.append([_first_time(row, goal) for row in of_seed])
    times = np.array(times)
    return times / times.min(axis=1, keepdims=True)


def _first_time(row: Row, goal: float) -> float:
    """When the score, a line from one evaluation to the next, first reaches the goal."""
    time_s, score = _evaluated(row, np.array(row["simulated_time_s"]))
    reached = np.flatnonzero(score >= goal)
    if not reached.size:
        return np.inf
    after = reached[0]
    part = (goal - score[after - 1]) / (score[after] - score[after - 1])
    return time_s[after - 1] + part * (time_s[after] - time_s[after - 1])


def _times(axes: Axes, study: ConvergenceStudy) -> None:
    """Time to the goal; a seed's line ends where its run never reached it."""
    times, counts = times_to_goal(study), study.axes["micro_batches"]
    place, median = np.arange(len(counts)), np.median(times, axis=0)
    axes.plot(place, np.where(np.isfinite(times), times, np.nan).T, color="0.75", linewidth=0.7)
    known = np.isfinite(median)
    axes.plot(place[known], median[known], color=style.BLUE, marker="o")
    axes.set_xticks(place, [f"{count}" for count in counts])
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_yticks([1.0, 1.5, 2.0, 3.0, 5.0], labels=["1", "1.5", "2", "3", "5"])
    axes.set_xlabel(_LABELS["micro_batches"])
    axes.set_ylabel(f"Time to {100 * GOAL:.0f} % of the best\nscore, over the least [–]")
