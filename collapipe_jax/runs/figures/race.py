"""Score against simulated time, a row a race and a panel a seed.

Every seed is another network, with a time axis of its own.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from collapipe_jax.learning.tasks.registry import find_task
from collapipe_jax.runs.figures import style
from collapipe_jax.runs.results.studies import Run

_ROW_IN = 1.7


@style.styled
def draw(races: Sequence[Sequence[Run]]) -> Figure:
    """Draw validation scores at the rounds that were evaluated.

    Every race is of a task of its own; one of fewer seeds leaves panels out.
    """
    seeds = [sorted({run.seed for run in race}) for race in races]
    columns = max(map(len, seeds))
    width = style.COLUMN_WIDTH_IN if columns == 1 else style.DOUBLE_WIDTH_IN
    figure = style.new_figure(width, 0.5 + _ROW_IN * len(races))
    panels = figure.subplots(len(races), columns, sharey="row", squeeze=False)
    names = list(dict.fromkeys(run.policy for race in races for run in race))
    for row, race, drawn in zip(panels, races, seeds, strict=True):
        task = race[0].record.config["task"]["kind"]
        for axes, seed in zip(row, drawn, strict=False):
            _draw_seed(axes, [run for run in race if run.seed == seed], names)
            axes.set_title(f"{task}, seed {seed}", loc="left")
        for axes in row[len(drawn) :]:
            axes.set_visible(False)
        row[0].set_ylabel(find_task(task).score_label())
        row[0].set_ylim(bottom=0.0)
    handles = style.policy_handles(names)
    if any(np.isfinite(run.record.constants["baseline_score"]) for race in races for run in race):
        handles.append(Line2D([], [], label="trivial answer", **style.TRIVIAL))
    most = 3 if columns == 1 else 6
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), most))
    return figure


def _draw_seed(axes: Axes, runs: Sequence[Run], names: Sequence[str]) -> None:
    """Runs of a seed, each through the rounds that were evaluated."""
    looks = style.policy_looks(names)
    longest_s = max(float(run.record.history["simulated_time_s"][-1]) for run in runs)
    unit_s, unit = style.time_unit(longest_s)
    for run in runs:
        history = run.record.history
        elapsed = history["simulated_time_s"] / unit_s
        style.plot_known(axes, elapsed, history["score"], looks[run.policy], markevery=1)
    trivial = float(runs[0].record.constants["baseline_score"])
    if np.isfinite(trivial):
        axes.axhline(trivial, **style.TRIVIAL)
    axes.set_xlim(left=0.0)
    axes.set_xlabel(f"Simulated time [{unit}]")
