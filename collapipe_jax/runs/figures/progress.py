"""Learning progress: score and losses against rounds and against simulated time."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from collapipe_jax.learning.tasks.registry import find_task
from collapipe_jax.runs.figures import style
from collapipe_jax.runs.results.checkpoints import RunRecord


@style.styled
def draw(records: Sequence[RunRecord]) -> Figure:
    """Draw score (above) and losses (below) against rounds (left) and time (right).

    All runs are in every panel; rounds without evaluation are passed over.
    """
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 4.0)
    panels = figure.subplots(2, 2, sharex="col", sharey="row")
    longest_s = max(float(record.history["simulated_time_s"][-1]) for record in records)
    unit_s, unit = style.time_unit(longest_s)
    # Every run in all four panels.
    for look, record in zip(style.run_looks(records), records, strict=True):
        history = record.history
        for column, x in enumerate((history["round"], history["simulated_time_s"] / unit_s)):
            style.plot_known(panels[0, column], x, history["score"], look)
            _losses(panels[1, column], x, history, look)
    # What a trivial answer scores.
    trivial = {float(record.constants["baseline_score"]) for record in records}
    for axes in panels[0]:
        for value in sorted(value for value in trivial if np.isfinite(value)):
            axes.axhline(value, **style.TRIVIAL)
    if not any(np.isfinite(record.history["score"]).any() for record in records):
        for axes in panels[0]:
            style.say_empty(axes, "no evaluation yet")
    # Axes and legend.
    task = find_task(records[0].config["task"]["kind"])
    panels[0, 0].set_ylabel(task.score_label())
    panels[1, 0].set_ylabel("Loss [nats/prediction]")
    panels[0, 0].set_ylim(bottom=0.0)
    style.round_axis(panels[1, 0])
    panels[1, 1].set_xlim(left=0.0)
    panels[1, 1].set_xlabel(f"Simulated time [{unit}]")
    handles = [
        *style.run_handles(records),
        Line2D([], [], color=style.GREY, linewidth=0.7, alpha=0.6, label="training (thin)"),
        Line2D([], [], color=style.GREY, marker="o", label="validation (marked)"),
        Line2D([], [], label="trivial answer", **style.TRIVIAL),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 5))
    return figure


def _losses(axes: Axes, x: np.ndarray, history: dict, look: style.Look) -> None:
    """Training loss thin and pale, validation loss bold with markers."""
    alone = "." if len(x) == 1 else None  # a line through one point is not visible
    thin = {**look, "marker": alone, "linewidth": 0.7, "alpha": 0.6}
    axes.plot(x, history["train_loss"], **thin)
    style.plot_known(axes, x, history["validation_loss"], look)
