"""Figures of comparisons, one row a policy, on networks that can run: costs and savings.

A row shows every network as a dot, and median and mean with their 95 % intervals.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.statistics import (
    Estimate,
    mean_estimate,
    median_estimate,
    reduction_percent,
)
from collapipe_jax.runs.figures import style
from collapipe_jax.runs.results.realisations import Realisations, only_runnable
from collapipe_jax.runs.studies.comparison import OURS, round_means

ROW_IN = 0.22
_DOTS_AT, _MEDIAN_AT, _MEAN_AT = 0.24, 0.0, -0.24  # below the middle of the row
_DOT = {"linestyle": "none", "marker": ".", "markeredgewidth": 0.0}
_MARKERS = {"median": ("D", "white"), "mean": ("o", None)}  # and its face


def horizon(result: Realisations) -> str:
    """Number of networks and rounds behind a figure."""
    counts = {"network": len(result.networks["divergence_target"]), "round": result.rounds}
    return ", ".join(f"{n} {noun}" if n == 1 else f"{n} {noun}s" for noun, n in counts.items())


def _draw_rows(axes: Axes, values: Mapping[str, np.ndarray], limits: tuple[float, float]) -> None:
    """Fill a panel, policies from top to bottom.

    What is not finite has no dot; its networks are counted at the right of the row. An
    interval that leaves the panel ends at the frame.

    Args:
      axes: panel, with its scale.
      values: of every network by policy, ``[R]`` each.
      limits: of the horizontal axis.
    """
    looks = style.policy_looks(values)
    for row, (name, value) in enumerate(values.items()):
        color = looks[name]["color"]
        finite = value[np.isfinite(value)]
        place = np.full(finite.size, row + _DOTS_AT)
        axes.plot(finite, place, color=color, alpha=0.4, markersize=3.0, **_DOT)
        _estimate(axes, median_estimate(value).within(limits), row + _MEDIAN_AT, "median", color)
        _estimate(axes, mean_estimate(value).within(limits), row + _MEAN_AT, "mean", color)
        if finite.size < value.size:  # beside the panel, where the layout makes room
            words = f"∞ {value.size - finite.size}/{value.size}"
            place = axes.get_yaxis_transform()
            axes.text(1.01, row, words, transform=place, va="center", fontsize=7)


def _estimate(axes: Axes, estimate: Estimate, row: float, kind: str, color: str) -> None:
    """Marker on its interval; nothing where the value is unknown."""
    if not np.isfinite(estimate.value):
        return
    marker, face = _MARKERS[kind]
    axes.plot([estimate.low, estimate.high], [row, row], color=color, linewidth=1.4)
    look = {"markerfacecolor": face or color, "markeredgecolor": color, "markeredgewidth": 0.8}
    alone = {"linestyle": "none", "zorder": 3, "clip_on": False}
    axes.plot([estimate.value], [row], marker=marker, **look, **alone)


def name_rows(axes: Axes, names: Sequence[str], labelled: bool = True) -> None:
    """Make the vertical axis one of policies, the first on top."""
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), labels=[style.policy_label(name) for name in names])
    axes.tick_params(axis="y", length=0, labelleft=labelled)
    separate_rows(axes, len(names))


def separate_rows(axes: Axes, count: int) -> None:
    """Lines between rows in place of those through them."""
    axes.grid(visible=False, axis="y")
    for edge in range(1, count):
        axes.axhline(edge - 0.5, color="0.88", linewidth=0.4, zorder=0.5)


def _row_legend(figure: Figure, rule: str, note: str) -> None:
    """Legend of rows above a figure: dots, markers, a ruled line, and a note."""
    dot = {"color": style.GREY, "alpha": 0.6, "markersize": 4.0, **_DOT}
    handles = [Line2D([], [], label="a network", **dot)]
    for kind, (marker, face) in _MARKERS.items():
        look = {"color": style.GREY, "marker": marker, "markerfacecolor": face or style.GREY}
        handles.append(Line2D([], [], label=f"{kind}, 95 %", **look))
    handles += [Line2D([], [], label=rule, **style.RULE)]
    handles += [Line2D([], [], linestyle="none", label=note)]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))


# Policies side by side: latency and where it goes, compute, energy and divergence.
#
# A network counts with its mean over the rounds. Latencies are heavy-tailed over networks: one
# bad link multiplies them by hundreds, so a mean rests on few networks and its interval may
# reach 0. Each row therefore shows every network, the median with an interval that holds for
# any distribution, and the mean with Student's; an axis is logarithmic where its values differ
# by more than a factor of 30, and begins at 0 elsewhere. An interval that leaves a panel ends
# at its frame. For the same reason the parts of the latency are shares: those of the slowest
# cluster, its sums over the rounds, within every network, then averaged over networks, each of
# which weighs the same. Networks in which a round never ends have no shares.

_PANELS = {
    "latency_s": "Latency of a round [s]",
    "compute_latency_s": "Compute latency [s]",
    "energy_j": "Energy of a round, all nodes [J]",
    "divergence_over_target": "Divergence / target [–]",
}


def part_shares(parts_s: np.ndarray) -> np.ndarray:
    """Shares of the slowest cluster's parts ``[R, T, 5]`` in its latency, mean over networks.

    They are ``[5]`` and sum to 1; nan where no network has finite latencies.
    """
    totals = parts_s.astype(np.float64).sum(axis=1)
    latency = totals.sum(axis=1)
    usable = np.isfinite(latency) & (latency > 0)
    if not usable.any():
        return np.full(totals.shape[1], np.nan)
    return np.mean(totals[usable] / latency[usable, None], axis=0)


@style.styled
def draw_policies(result: Realisations) -> Figure:
    """Draw latency and its parts above, the other amounts below; rows are policies."""
    result = only_runnable(result)
    means = round_means(result)
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 1.5 + 2 * ROW_IN * len(means))
    grid = figure.add_gridspec(2, 6)
    places = {
        "latency_s": grid[0, :3],
        "compute_latency_s": grid[1, :2],
        "energy_j": grid[1, 2:4],
        "divergence_over_target": grid[1, 4:],
    }
    for metric, place in places.items():
        axes = figure.add_subplot(place)
        values = {name: metrics[metric] for name, metrics in means.items()}
        _draw_rows(axes, values, style.wide_axis(axes, "x", np.concatenate(list(values.values()))))
        axes.set_xlabel(_PANELS[metric])
        name_rows(axes, list(means), labelled=place.colspan.start == 0)
    axes.axvline(1.0, **style.RULE)
    _shares(figure.add_subplot(grid[0, 3:]), result)
    _row_legend(figure, "target", horizon(result))
    return figure


def _shares(axes: Axes, result: Realisations) -> None:
    """Stacked bars, one a policy, and the names of the parts above."""
    for row, values in enumerate(result.policies.values()):
        shares = 100.0 * part_shares(values["parts_s"])
        if np.isnan(shares).any():
            axes.text(50.0, row, "no finite latency", ha="center", va="center", color=style.GREY)
            continue
        starts = np.cumsum(shares) - shares
        for share, start, look in zip(shares, starts, style.PART_LOOKS.values(), strict=True):
            axes.barh(row, share, 0.7, start, **look)
    name_rows(axes, list(result.policies), labelled=False)
    axes.set_xlim(0.0, 100.0)
    axes.set_xlabel("Parts of the slowest cluster's latency [%]")
    handles = style.fill_handles(style.PART_LOOKS)
    room = {"handlelength": 1.2, "columnspacing": 0.8, "handletextpad": 0.4}
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": len(handles)}
    axes.legend(handles=handles, **place, **room)


# What ``dssra`` saves against every other policy, in percent and network by network.
#
# A dot is by how much the mean over the rounds of ``dssra`` lies under the other policy's mean
# in the same network; below 0 ``dssra`` needs more. Memory is of the device that holds most.
# Intervals are those of figures.policies. A saving cannot pass 100 %, but a loss has no end, so
# an axis that falls below -100 % by far is logarithmic there.

TITLES = {
    "latency_s": "latency",
    "compute_latency_s": "compute latency",
    "device_memory_bytes": "device memory",
    "energy_j": "energy",
}
_LEAST_LOW = -20.0  # of an axis, so that one of equal policies is not empty


def can_reduce(result: Realisations) -> bool:
    """Whether the comparison has ``dssra`` and another policy."""
    return OURS in result.policies and len(result.policies) > 1


def reductions(result: Realisations) -> dict[str, dict[str, np.ndarray]]:
    """Reductions in percent by metric and other policy, ``[R]``.

    Raises:
      InputError: if the comparison lacks ``dssra``, or has nothing else.
    """
    if not can_reduce(result):
        problem = f"no reduction to draw without {OURS} and another policy in the comparison"
        remedy = "Compare again with both in --policies"
        raise InputError("--policies", ",".join(result.policies), problem, remedy)
    others = round_means(only_runnable(result))
    ours = others.pop(OURS)
    return {
        metric: {
            name: reduction_percent(ours[metric], other[metric]) for name, other in others.items()
        }
        for metric in TITLES
    }


@style.styled
def draw_reduction(result: Realisations) -> Figure:
    """Draw one panel a metric; rows are the other policies."""
    panels = reductions(result)
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 1.0 + ROW_IN * (len(result.policies) - 1))
    drawn = figure.subplots(1, len(panels))
    for axes, (metric, values) in zip(drawn, panels.items(), strict=True):
        _draw_rows(axes, values, _percent_axis(axes, values))
        name_rows(axes, list(values), labelled=axes is drawn[0])
        axes.axvline(0.0, **style.RULE)
        axes.set_title(TITLES[metric], loc="left")
        axes.set_xlabel(f"{OURS} saves [%]")
    _row_legend(figure, "no difference", horizon(only_runnable(result)))
    return figure


def _percent_axis(axes: Axes, values: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """Linear above -100 %, logarithmic below where something lies there; the limits."""
    every = np.concatenate(list(values.values()))
    lowest = np.min(every, where=np.isfinite(every), initial=_LEAST_LOW)
    if lowest >= -100.0:
        limits = lowest - 0.06 * (100.0 - lowest), 105.0
    else:
        limits = 1.3 * lowest, 120.0
        axes.set_xscale("symlog", linthresh=100.0, linscale=1.0)
        farthest = -(10.0 ** np.floor(np.log10(-lowest)))
        axes.xaxis.set_major_locator(FixedLocator([farthest, 0.0, 100.0]))
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(*limits)
    return limits
