"""Figures of training: progress, races, sweeps, constants of the bound, parts of latency.

Progress shows score and losses against rounds and against simulated time.
"""

import itertools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from collapipe_jax.core.console import setting_text
from collapipe_jax.core.errors import InputError
from collapipe_jax.core.quantity import time_unit
from collapipe_jax.core.statistics import Estimate, mean_estimate
from collapipe_jax.learning.tasks.registry import find_task
from collapipe_jax.runs.config.sweeps import SEED
from collapipe_jax.runs.figures import style
from collapipe_jax.runs.results.checkpoints import Run
from collapipe_jax.runs.results.record import RunRecord, run_labels, slowest_parts_s


@style.styled
def draw_progress(records: Sequence[RunRecord]) -> Figure:
    """Draw score (above) and losses (below) against rounds (left) and time (right).

    All runs are in every panel; rounds without evaluation are passed over.
    """
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 4.0)
    panels = figure.subplots(2, 2, sharex="col", sharey="row")
    longest_s = max(float(record.history["simulated_time_s"][-1]) for record in records)
    unit_s, unit = time_unit(longest_s)
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


# Score against simulated time, a row a race and a panel a seed.
#
# Every seed is another network, with a time axis of its own.

_ROW_IN = 1.7


@style.styled
def draw_race(races: Sequence[Sequence[Run]]) -> Figure:
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
    unit_s, unit = time_unit(longest_s)
    for run in runs:
        history = run.record.history
        elapsed = history["simulated_time_s"] / unit_s
        style.plot_known(axes, elapsed, history["score"], looks[run.policy], markevery=1)
    trivial = float(runs[0].record.constants["baseline_score"])
    if np.isfinite(trivial):
        axes.axhline(trivial, **style.TRIVIAL)
    axes.set_xlim(left=0.0)
    axes.set_xlabel(f"Simulated time [{unit}]")


# Validation scores of training runs at every point of a sweep.
#
# At the left the score after the last evaluated round, at the right the scores on the way
# there. Both are means over seeds; bars and bands are Student's intervals of 95 %.

if TYPE_CHECKING:
    import xarray

_SWEEP_ROW_IN = 0.18
_MOST_CURVES = 6


@style.styled
def draw_training_sweep(found: "xarray.Dataset") -> Figure:
    """Draw all points as rows, and the progress of the best ones.

    Args:
      found: of :func:`collapipe_jax.open_results`, of a sweep of training runs.
    """
    score = found["score"]
    score = score if SEED in score.dims else score.expand_dims(SEED)
    axes = [str(name) for name in score.dims if name not in (SEED, "round")]
    values = score.transpose(SEED, *axes, "round").values
    values = values.reshape(len(values), -1, values.shape[-1])  # [seeds, points, rounds]
    coordinates = (found[name].values for name in axes)
    labels = [_label(point) for point in itertools.product(*coordinates)]
    last = mean_estimate(_last_known(values))
    task = find_task(json.loads(found.attrs["config"])["task"]["kind"])
    merit = np.nan_to_num(task.merit(last.value), nan=-np.inf)
    best = np.argsort(-merit)[:_MOST_CURVES]
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, best.size))
    colors = dict(zip(best.tolist(), shades, strict=True))
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, max(2.6, 1.0 + _SWEEP_ROW_IN * len(labels)))
    left, right = figure.subplots(1, 2, width_ratios=[1.2, 1.0])
    _draw_rows(left, last, labels, colors)
    left.set_xlabel(f"{task.score_name} after the last round [{task.score_unit}]")
    left.set_ylabel(",\n".join(key.rpartition(".")[2] for key in axes) or "all runs")
    for point in colors:
        _draw_progress(right, values[:, point], labels[point], colors[point])
    style.round_axis(right)
    right.set_ylabel(task.score_label())
    seeds = f"mean of {len(values)} seeds" if len(values) > 1 else "one seed"
    left.set_title(f"{seeds}, {len(labels)} points", loc="left")
    right.set_title(f"the best {best.size}" if best.size < len(labels) else "", loc="left")
    right.set_ylim(bottom=0.0)
    right.legend()
    return figure


def _label(point: tuple) -> str:
    """Values of a point."""
    return ", ".join(map(setting_text, point)) or "all"


def _last_known(values: np.ndarray) -> np.ndarray:
    """The last known entry along the last axis; unknown where there is none."""
    known = np.isfinite(values)
    last = values.shape[-1] - 1 - np.argmax(known[..., ::-1], axis=-1)
    return np.take_along_axis(values, last[..., None], axis=-1)[..., 0]


def _draw_rows(axes: Axes, last: Estimate, labels: list[str], colors: dict) -> None:
    """A marker on its interval for every point, from above."""
    rows = np.arange(len(labels))
    shades = [colors.get(row, style.GREY) for row in rows]
    axes.hlines(rows, last.low, last.high, color=shades)
    axes.scatter(last.value, rows, color=shades, zorder=3)
    if not np.isfinite(last.value).any():
        style.say_empty(axes, "no evaluation yet")
    axes.set_yticks(rows, labels=labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)


def _draw_progress(axes: Axes, values: np.ndarray, label: str, color: np.ndarray) -> None:
    """Mean scores ``[seeds, rounds]`` at the rounds that were evaluated."""
    evaluated = np.flatnonzero(np.isfinite(values).all(axis=0))
    estimate = mean_estimate(values[:, evaluated]) if evaluated.size else None
    if estimate is None:
        return
    axes.plot(evaluated, estimate.value, color=color, marker=".", label=label)
    axes.fill_between(evaluated, estimate.low, estimate.high, color=color, alpha=0.15, linewidth=0)


# Constants of the convergence bound, estimated at the model, against rounds.
#
# Of runs with ``evaluation.estimate_every_rounds``. The estimate of the heterogeneity is the
# largest among clusters, and the thin line their weighted mean.

_LABELS = {
    "gradient_variance": r"Variance $\sigma^2$ [nats²]",
    "gradient_heterogeneity": r"Heterogeneity $\zeta^2$ [nats²]",
    "gradient_norm_squared": r"Gradient $\Vert\nabla F\Vert^2$ [nats²]",
    "smoothness": r"Smoothness $L_s$ [nats]",
}
_THIN = {"linewidth": 0.7, "alpha": 0.6}


def has_estimates(record: RunRecord) -> bool:
    """Whether a run estimated the constants."""
    return all(name in record.history for name in _LABELS)


@style.styled
def draw_constants(records: Sequence[RunRecord]) -> Figure:
    """Draw one panel a constant, all runs in it; rounds without an estimate are passed over.

    Raises:
      InputError: if one of them has no estimates.
    """
    for record, label in zip(records, run_labels(records), strict=True):
        if not has_estimates(record):
            remedy = "Train with evaluation.estimate_every_rounds above 0"
            raise InputError("--workdir", label, "the run estimated no constants", remedy)
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 3.6)
    panels = figure.subplots(2, 2, sharex=True)
    looks = list(zip(style.run_looks(records), (record.history for record in records), strict=True))
    for axes, (name, label) in zip(panels.flat, _LABELS.items(), strict=True):
        for look, history in looks:
            style.plot_known(axes, history["round"], history[name], look)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0.0)
    for look, history in looks:
        thin = {"marker": None, "clip_on": True, **_THIN}
        mean = history["mean_gradient_heterogeneity"]
        style.plot_known(panels[0, 1], history["round"], mean, look, **thin)
    for axes in panels[1]:
        style.round_axis(axes)
    mean = Line2D([], [], color=style.GREY, label="mean over clusters (thin)", **_THIN)
    handles = [*style.run_handles(records), mean]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 5))
    return figure


# Where the time of a round goes: parts of the slowest cluster's latency.

_PARTS = tuple(style.PART_LOOKS)


@style.styled
def draw_latency(records: Sequence[RunRecord]) -> Figure:
    """Draw the parts round by round, one panel a run, and their means in the last panel.

    One run makes a figure of column width, several one of double width.
    """
    columns = min(len(records), 2)
    rows = len(records) // columns + 1
    width_in = style.DOUBLE_WIDTH_IN if columns == 2 else style.COLUMN_WIDTH_IN
    figure = style.new_figure(width_in, 0.45 + 1.9 * rows)
    grid = figure.add_gridspec(rows, columns)
    panels: list[Axes] = []
    parts = [slowest_parts_s(record) for record in records]
    tops = [np.nansum(run, axis=1).max() for run in parts]
    unit_s, unit = time_unit(max(tops))
    for index, label in enumerate(run_labels(records)):
        shared = panels[0] if panels else None
        axes = figure.add_subplot(grid[divmod(index, columns)], sharex=shared, sharey=shared)
        _stack(axes, records[index].history["round"], parts[index] / unit_s)
        axes.set_title(label, loc="left")
        axes.set_ylabel(f"Round latency [{unit}]")
        style.round_axis(axes)
        panels.append(axes)
    panels[0].set_ylim(0.0, 1.05 * max(tops) / unit_s or 1.0)  # 1 where no round took time
    _means(figure.add_subplot(grid[-1, len(records) % columns :]), records, parts)
    handles = style.fill_handles(style.PART_LOOKS)
    figure.legend(handles=handles, loc="outside upper center", ncols=5 if columns == 2 else 3)
    return figure


def _stack(axes: Axes, rounds: np.ndarray, parts: np.ndarray) -> None:
    """Stairs, one a part, on top of each other; a cross where the latency is infinite."""
    edges = np.append(rounds - 0.5, rounds[-1] + 0.5)
    lower = np.zeros(len(rounds))
    for look, values in zip(style.PART_LOOKS.values(), np.nan_to_num(parts).T, strict=True):
        look = {**look, "linewidth": 0.25}
        axes.stairs(lower + values, edges, baseline=lower.copy(), fill=True, **look)
        lower += values
    endless = np.isnan(parts).any(axis=1)
    if endless.any():
        axes.plot(rounds[endless], np.zeros(endless.sum()), "x", color=style.BLACK, clip_on=False)


def _means(axes: Axes, records: Sequence[RunRecord], parts: Sequence[np.ndarray]) -> None:
    """Mean seconds of every part over the rounds of finite latency, one marker a run.

    On a logarithmic axis, for parts differ by orders of magnitude; a part that takes no
    time has no marker.
    """
    heights = np.arange(len(_PARTS))[::-1]
    offsets = 0.5 * (np.arange(len(records)) - (len(records) - 1) / 2) / max(len(records), 3)
    looks = zip(style.run_looks(records), run_labels(records), strict=True)
    for index, (look, label) in enumerate(looks):
        finite = parts[index][~np.isnan(parts[index]).any(axis=1)]
        means = finite.mean(axis=0) if finite.size else np.zeros(len(_PARTS))
        positive = means > 0
        if positive.any():
            place = (heights - offsets[index])[positive]
            keywords = {"clip_on": False, "zorder": 3, "label": label}
            axes.plot(means[positive], place, **keywords, **style.markers_only(look))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    drawn = [line.get_xdata() for line in axes.lines]
    axes.set_xlim(*style.decades(np.concatenate([*drawn, np.empty(0)])))
    axes.set_yticks(heights, labels=_PARTS)
    axes.set_ylim(-0.5, len(_PARTS) - 0.5)
    axes.set_xlabel("Mean over rounds [s]")
    if len(records) > 1 and axes.lines:
        style.legend_above(axes)
