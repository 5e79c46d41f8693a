"""Amounts against what a sweep changes, one line a policy.

``sweep`` has medians over networks and ``sweep_mean`` means. Intervals are of 95 %, of a median
between two order statistics, of a mean by Student's t; one that leaves a panel ends at its frame.
A network counts with its mean over the rounds. Points of a value are drawn side by side, lest
intervals hide one another. Axes of amounts are logarithmic where these differ by more than a
factor of 30. A point whose value is infinite, or where no network can run, has no marker. Where
links are bad, mean latencies rest on few networks, so read the medians first. A sweep whose points
have names has a row for each. A sweep of several axes has a figure along the first for every point
of the others; seeds are more networks.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from collapipe_jax.core.quantity import axis_texts
from collapipe_jax.core.statistics import Estimate, mean_estimate, median_estimate
from collapipe_jax.runs.figures import style
from collapipe_jax.runs.figures.comparison import horizon, separate_rows
from collapipe_jax.runs.results.realisations import Realisations, SweepLine, only_runnable, runnable
from collapipe_jax.runs.studies.comparison import margin_text, round_means

_STATISTICS = {"median": median_estimate, "mean": mean_estimate}
NAMED_METRICS = ("latency_s", "compute_latency_s", "energy_j", "device_memory_bytes")
"""Panels where the points have names."""
_LABELS = {
    "latency_s": "Latency of a round [s]",
    "compute_latency_s": "Compute latency [s]",
    "energy_j": "Energy of a round [J]",
    "device_memory_bytes": "Fullest device [{unit}]",
    "divergence_over_target": "Divergence / target [–]",
}
_SPREAD = 0.45  # of the gap between two values, over which their policies are spread
_MOST_TICKS = 8  # values that are all written on the axis
_POLICY_IN = 0.055  # of a row
_ROW_SPREAD = 0.8  # of a row, over which its policies are spread


class _Panel(NamedTuple):
    """One amount: the label of its axis, and estimates ``[points]`` in its unit by policy."""

    label: str
    estimates: dict[str, Estimate]

    def limited_by(self) -> np.ndarray:
        """Numbers that the axis has to hold; lower ends of intervals may leave it."""
        return np.concatenate([part for one in self.estimates.values() for part in one[::2]])


def _sweep_panels(points: Sequence[Realisations], statistic: str) -> dict[str, _Panel]:
    """Panels by metric, latency first, of a key of ``_STATISTICS``."""
    means = [round_means(point) for point in points]
    panels = {}
    for metric, label in _LABELS.items():
        estimates = {}
        for name in means[0]:
            parts = [_STATISTICS[statistic](point[name][metric]) for point in means]
            estimates[name] = Estimate(*map(np.stack, zip(*parts, strict=True)))
        panels[metric] = _Panel(label, estimates)
    memory = panels["device_memory_bytes"]
    most = memory.limited_by()
    unit_bytes, unit = style.memory_unit(np.max(most, where=np.isfinite(most), initial=0.0))
    scaled = {
        name: Estimate(*(part / unit_bytes for part in estimate))
        for name, estimate in memory.estimates.items()
    }
    return panels | {"device_memory_bytes": _Panel(memory.label.format(unit=unit), scaled)}


def _runnable_points(result: SweepLine) -> list[Realisations]:
    """Points with the networks that can run a round, perhaps none; some point has one."""
    kept = [runnable(point.networks) for point in result.points]
    if not np.any(kept):
        only_runnable(result.points[0])  # raises
    return [point.only(own) for point, own in zip(result.points, kept, strict=True)]


@style.styled
def draw_sweep(result: SweepLine, statistic: str = "median") -> Figure:
    """Draw latency at the left and, smaller, the other amounts; by a key of ``_STATISTICS``."""
    points, named = _runnable_points(result), isinstance(result.values[0], str)
    panels = _sweep_panels(points, statistic)
    figure = (_draw_named if named else _draw_values)(result, panels)
    fullest = max(points, key=lambda point: len(point.networks["can_run"]))
    title = f"{statistic} over {horizon(fullest)}"
    at = ", ".join(f"{name} = {value}" for name, value in result.others.items())
    figure.axes[0].set_title(f"{at}\n{title}" if at else title, loc="left")
    handles = style.policy_handles(panels["latency_s"].estimates, joined=not named)
    figure.legend(handles=handles, loc="outside upper center", ncols=4)
    return figure


def _draw_values(result: SweepLine, panels: dict[str, _Panel]) -> Figure:
    """Draw one panel an amount against the values."""
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 3.7)
    grid = figure.add_gridspec(2, 3, width_ratios=[1.35, 1.0, 1.0])
    places = (grid[:, 0], grid[0, 1], grid[0, 2], grid[1, 1], grid[1, 2])
    for panel, place in zip(panels.values(), places, strict=True):
        axes = figure.add_subplot(place)
        _swept_axis(axes, result, labelled=place.rowspan.stop == 2)
        _overlay(axes, side_by_side(result, len(panel.estimates)), panel)
        axes.set_ylabel(panel.label)
    return figure


def _is_log(result: SweepLine) -> bool:
    """Whether the axis of the swept values is logarithmic."""
    return result.log and min(result.values) > 0


def _offsets(policies: int) -> np.ndarray:
    """Places of policies side by side, from -1/2 to 1/2."""
    return (np.arange(policies) + 0.5) / policies - 0.5


def side_by_side(result: SweepLine, policies: int) -> np.ndarray:
    """Places of the points of every policy, around the values, ``[policies, points]``."""
    values = np.array(result.values, np.float64)
    place = np.log(values) if _is_log(result) else values
    gap = np.diff(np.sort(place)).min() if place.size > 1 else np.log(2.0)
    places = place + _SPREAD * gap * _offsets(policies)[:, None]
    return np.exp(places) if _is_log(result) else places


def _overlay(axes: Axes, places: np.ndarray, panel: _Panel) -> None:
    """Lines of all policies with their intervals."""
    limits = style.wide_axis(axes, "y", panel.limited_by())
    if not np.isfinite(panel.limited_by()).any():
        style.say_empty(axes, "no finite value")
    looks = style.policy_looks(panel.estimates)
    for place, (name, estimate) in zip(places, panel.estimates.items(), strict=True):
        each = estimate.within(limits)
        error = np.maximum(np.nan_to_num([each.value - each.low, each.high - each.value]), 0.0)
        thin = {"capsize": 1.0, "elinewidth": 0.7}
        axes.errorbar(place, each.value, yerr=error, **thin, **looks[name])


def _swept_axis(axes: Axes, result: SweepLine, labelled: bool) -> None:
    """Scale and ticks of what is swept; its unit where it has one."""
    if _is_log(result):
        axes.set_xscale("log")
    label, texts, scale = axis_texts(result.axis.rstrip(), result.values)
    if len(result.values) <= _MOST_TICKS:
        axes.set_xticks(result.values, labels=texts)
        axes.set_xticks([], minor=True)
    elif scale != 1.0:
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / scale:g}")
    if labelled:
        axes.set_xlabel(label)
    else:
        axes.tick_params(labelbottom=False)


def _draw_named(result: SweepLine, panels: dict[str, _Panel]) -> Figure:
    """Draw one panel an amount; in a row, a named point, policies are below one another."""
    count = len(result.values)
    row_in = max(0.2, _POLICY_IN * len(panels["latency_s"].estimates))
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 1.0 + row_in * count)
    widths = [1.6, *[1.0] * (len(NAMED_METRICS) - 1)]
    drawn = figure.subplots(1, len(NAMED_METRICS), sharey=True, width_ratios=widths)
    for axes, metric in zip(drawn, NAMED_METRICS, strict=True):
        _rows(axes, panels[metric])
        axes.set_xlabel(panels[metric].label)
    drawn[0].set_yticks(range(count), labels=result.values)
    drawn[0].set_ylim(count - 0.5, -0.5)
    drawn[0].set_ylabel(result.axis)
    for axes in drawn:
        axes.tick_params(axis="y", length=0)
        separate_rows(axes, count)
    return figure


def _rows(axes: Axes, panel: _Panel) -> None:
    """Markers of all policies on their intervals."""
    limits = style.wide_axis(axes, "x", panel.limited_by())
    offsets = _ROW_SPREAD * _offsets(len(panel.estimates))
    looks = style.policy_looks(panel.estimates)
    for (name, estimate), offset in zip(panel.estimates.items(), offsets, strict=True):
        each = estimate.within(limits)
        rows = np.arange(each.value.size) + offset
        axes.hlines(rows, each.low, each.high, color=looks[name]["color"], linewidth=0.7)
        axes.plot(each.value, rows, clip_on=False, **style.markers_only(looks[name]))


def draw_sweeps(lines: Sequence[SweepLine]) -> dict[str, Figure]:
    """Both figures of every line, by the names of their files."""
    figures = {}
    for index, line in enumerate(lines):
        number = f"_{index + 1}" if len(lines) > 1 else ""
        figures |= {
            f"sweep{number}": draw_sweep(line),
            f"sweep_mean{number}": draw_sweep(line, "mean"),
        }
    return figures


# Who wins where: a plane of two keys, a cell for every pair of values.
#
# A cell has the colour and the name of its winner, and what the winner saves of the latency of
# the runner-up. Lines separate regions of different winners, so that a grey print reads as
# well.

_ROW_IN = 0.52
_NARROW = 3  # most columns of a figure of one column's width
_NAME_CHARACTERS = 13  # in a line
_PALE = (0.6, 0.75, 0.88)  # shares of white in cells of policies that have one colour


@style.styled
def draw_map(summary: Mapping[str, Any]) -> Figure:
    """Draw the plane of a map's summary."""
    columns, rows = len(summary["x_values"]), len(summary["y_values"])
    cells = np.reshape(np.array(summary["cells"], object), (rows, columns))
    wide = columns > _NARROW
    width_in = style.DOUBLE_WIDTH_IN if wide else style.COLUMN_WIDTH_IN
    figure = style.new_figure(width_in, 1.2 + _ROW_IN * rows)
    axes = figure.add_subplot()
    axes.set_title(_title(summary, 115 if wide else 50), loc="left", fontsize=7)
    winners = [[cell["winner"] for cell in row] for row in cells]
    colors = cell_colors(sorted({name for row in winners for name in row if name}))
    image = [[colors.get(name, (1.0, 1.0, 1.0)) for name in row] for row in winners]
    axes.imshow(image, aspect="auto", origin="lower")
    for (row, column), cell in np.ndenumerate(cells):
        axes.text(column, row, _cell_text(cell), ha="center", va="center", fontsize=7)
    _separate(axes, winners)
    for which, values in (("x", summary["x_values"]), ("y", summary["y_values"])):
        label, texts, _ = axis_texts(summary[which], values)
        axes.set(**{f"{which}label": label, f"{which}ticks": range(len(values))})
        axes.set(**{f"{which}ticklabels": texts})
    axes.grid(visible=False)
    axes.tick_params(length=0)
    return figure


def _title(summary: Mapping[str, Any], characters: int) -> str:
    """What a cell shows, in lines of at most some characters."""
    text = (
        f"Lowest median latency ({summary['realisations']} networks, {summary['rounds']} rounds) "
        "among policies that are over a limit of memory, energy or divergence in at most "
        f"{100 * summary['tolerance']:g} % of networks. First number: saving of the median over "
        "that of the runner-up (~: the 95 % interval includes 0; alone: no runner-up). Second: "
        "networks in which the winner is the faster of the two."
    )
    return textwrap.fill(text, characters)


def cell_colors(names: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Pale colours of policies, as RGB; those that share a colour differ in lightness."""
    colors, seen = {}, {}
    for name, look in style.policy_looks(names).items():
        turn = seen.get(look["color"], 0)
        seen[look["color"]] = turn + 1
        white = _PALE[turn % len(_PALE)]
        colors[name] = tuple(white + (1.0 - white) * np.array(to_rgb(look["color"])))
    return colors


def _cell_text(cell: Mapping[str, Any]) -> str:
    """Winner and margin, long names in two lines."""
    if cell["winner"] is None:
        return "nobody"
    name = textwrap.fill(style.policy_label(cell["winner"]), _NAME_CHARACTERS)
    return f"{name}\n{margin_text(cell)}"


def _separate(axes: Axes, winners: Sequence[Sequence[str | None]]) -> None:
    """Lines between neighbours of different winners."""
    names = np.array(winners, object)
    line = {"color": style.BLACK, "linewidth": 1.0}
    for row, column in np.argwhere(names[:, 1:] != names[:, :-1]):
        axes.plot([column + 0.5] * 2, [row - 0.5, row + 0.5], **line)
    for row, column in np.argwhere(names[1:] != names[:-1]):
        axes.plot([column - 0.5, column + 0.5], [row + 0.5] * 2, **line)
