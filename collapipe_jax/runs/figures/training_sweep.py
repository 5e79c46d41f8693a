"""Validation scores of training runs at every point of a sweep.

At the left the score after the last evaluated round, at the right the scores on the way there.
Both are means over seeds; bars and bands are Student's intervals of 95 %.
"""

import itertools
import json
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collapipe_jax.core.statistics import Estimate, mean_estimate
from collapipe_jax.learning.tasks.registry import find_task
from collapipe_jax.runs.config.sweeps import SEED
from collapipe_jax.runs.figures import style

if TYPE_CHECKING:
    import xarray

_ROW_IN = 0.18
_MOST_CURVES = 6


@style.styled
def draw(found: "xarray.Dataset") -> Figure:
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
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, max(2.6, 1.0 + _ROW_IN * len(labels)))
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
    return ", ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in point) or "all"


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
