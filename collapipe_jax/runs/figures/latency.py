"""Where the time of a round goes: parts of the slowest cluster's latency."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collapipe_jax.runs.figures import style
from collapipe_jax.runs.results.checkpoints import RunRecord

_PARTS = tuple(style.PART_LOOKS)


def slowest_parts_s(record: RunRecord) -> np.ndarray:
    """Latency parts of the slowest cluster of every round, ``[R, 5]``.

    A row sums to the round's latency, docs/system-model.md (14). It is 0 where all clusters sit
    out, and NaN where the latency is infinite.
    """
    slowest = np.argmax(record.history["cluster_latency_s"], axis=1)
    parts_s = record.history["parts_s"][np.arange(slowest.size), slowest]
    finite = np.isfinite(record.history["latency_s"])[:, None]
    return np.where(finite & np.isfinite(parts_s), parts_s, np.nan)


@style.styled
def draw(records: Sequence[RunRecord]) -> Figure:
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
    unit_s, unit = style.time_unit(max(tops))
    for index, label in enumerate(style.run_labels(records)):
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
    looks = zip(style.run_looks(records), style.run_labels(records), strict=True)
    for index, (look, label) in enumerate(looks):
        finite = parts[index][~np.isnan(parts[index]).any(axis=1)]
        means = finite.mean(axis=0) if finite.size else np.zeros(len(_PARTS))
        positive = means > 0
        if positive.any():
            place = (heights - offsets[index])[positive]
            keywords = {"clip_on": False, "zorder": 3, "label": label}
            axes.plot(means[positive], place, **keywords, **style.alone(look))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    drawn = [line.get_xdata() for line in axes.lines]
    axes.set_xlim(*style.decades(np.concatenate([*drawn, np.empty(0)])))
    axes.set_yticks(heights, labels=_PARTS)
    axes.set_ylim(-0.5, len(_PARTS) - 0.5)
    axes.set_xlabel("Mean over rounds [s]")
    if len(records) > 1 and axes.lines:
        style.legend_above(axes)
