"""One round: when each resource of a pipeline, or each client, serves what, and the network.

Without ``--round`` the last round is drawn, without ``--cluster`` its slowest cluster.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import ConnectionPatch, Patch, Rectangle

from collapipe_jax.core.quantity import time_unit
from collapipe_jax.runs.figures import style
from collapipe_jax.runs.report.network import NetworkRounds, network_of_run
from collapipe_jax.runs.report.rounds import BASE_STATION, LINK_CLASSES, links_of_round
from collapipe_jax.runs.results.record import (
    BACKWARD,
    FORWARD,
    TURN,
    ClientRound,
    RunRecord,
    Step,
    choose_round,
    client_round,
    first_step,
    index_of_round,
    run_labels,
)

# Forward bars are light and backward bars dark, so that they differ in grey print too;
# successive micro-batches alternate between two shades.
_SHADES = {
    FORWARD: ("#74BDE9", "#AEDAF4"),
    TURN: ("#E9C94A", "#F4E08E"),
    BACKWARD: ("#A84A00", "#C4621A"),
}
_NUMBER_COLOR = {FORWARD: style.BLACK, TURN: style.BLACK, BACKWARD: "#FFFFFF"}
_LEGEND = {FORWARD: "forward", TURN: "decoder (both ways)", BACKWARD: "backward"}
_TURN_LINE = {"color": style.BLACK, "linewidth": 0.8, "linestyle": (0, (3, 2))}
_ROW_IN = 0.17
_STRIP_IN = 0.2
_CHART_WIDTH_IN = style.DOUBLE_WIDTH_IN - 1.4  # what the row names leave
_DIGIT_IN = 0.075  # of a number of 7 points
_THIN_IN = 0.04  # narrower bars would vanish behind their edges
_BEFORE_STEPS = 2  # parts of a round before its local steps: download and distribution


@style.styled
def draw_gantt(
    records: Sequence[RunRecord], round_number: int | None = None, cluster: int | None = None
) -> Figure:
    """Draw the first local step of one cluster in one round, one panel a run on one time axis.

    Above each chart a strip shows the whole round to scale, the moves of parameters
    before and after the local steps included, and where in it the chart lies. By default it is
    the last round and its slowest cluster.

    Raises:
      InputError: no such round or cluster, it ran no pipeline, or D2D radios take turns.
    """
    picked = [choose_round(record, round_number, cluster) for record in records]
    steps = [first_step(record, *at) for record, at in zip(records, picked, strict=True)]
    chart_in = [_ROW_IN * len(step.resources) for step in steps]
    height_in = 0.4 + sum(chart_in) + len(steps) * (_STRIP_IN + 0.85)
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, height_in)
    ratios = [size for chart in chart_in for size in (_STRIP_IN, chart)]
    panels = figure.subplots(2 * len(steps), 1, height_ratios=ratios)
    longest_s = max(step.finish_s for step in steps)
    for row, label in enumerate(run_labels(records)):
        strip, chart = panels[2 * row : 2 * row + 2]
        _chart(chart, steps[row], longest_s)
        begin, end = _strip(strip, records[row], steps[row], label)
        last = steps[row].finish_s / time_unit(longest_s)[0]
        for above, below in ((begin, 0.0), (end, last)):  # from the frame to the ends of the chart
            places = {"coordsA": strip.transData, "coordsB": chart.transData}
            thin = {"color": style.GREY, "linewidth": 0.6}
            line = ConnectionPatch((above, -0.5), (below, 0.5), **places, **thin)
            line.set_in_layout(False)
            figure.add_artist(line)
    figure.legend(handles=_handles(), loc="outside lower center", ncols=5)
    return figure


def _chart(axes: Axes, step: Step, longest_s: float) -> None:
    """Bars of one local step, a row a resource."""
    unit_s, unit = time_unit(longest_s)
    heights = {name: -row for row, name in enumerate(step.resources)}
    inch_s = longest_s / _CHART_WIDTH_IN
    numbered_from_s = inch_s * (_DIGIT_IN * len(str(step.micro_batches)) + 0.03)
    thin_s = inch_s * _THIN_IN
    for bar in step.bars:
        width_s = bar.finish_s - bar.start_s
        height, shade = heights[bar.resource], _SHADES[bar.direction][bar.micro_batch % 2]
        place = {"left": bar.start_s / unit_s, "height": 0.8, "color": shade}
        edge = {"edgecolor": "white", "linewidth": 0.5 if width_s >= thin_s else 0.0}
        axes.barh(height, width_s / unit_s, **place, **edge)
        if width_s >= numbered_from_s:
            middle = (bar.start_s + bar.finish_s) / 2 / unit_s
            look = {"color": _NUMBER_COLOR[bar.direction], "fontsize": 7}
            number = str(bar.micro_batch + 1)
            axes.text(middle, height, number, ha="center", va="center_baseline", **look)
    axes.axvline(step.turned_s / unit_s, **_TURN_LINE)
    axes.set_yticks(list(heights.values()), labels=list(heights))
    axes.set_ylim(0.5 - len(heights), 0.5)
    axes.set_xlim(0.0, longest_s / unit_s)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"Time since the local steps began, first of them only [{unit}]")


def _strip(axes: Axes, record: RunRecord, step: Step, label: str) -> tuple[float, float]:
    """The cluster's whole round to scale, docs/system-model.md (14), its first local step framed.

    Returns:
      Where the frame begins and ends.
    """
    parts_s = record.history["parts_s"][step.index, step.cluster]
    unit_s, unit = time_unit(float(parts_s.sum()))
    # One bar a part of the latency, end to end.
    start_s = 0.0
    for look, part_s in zip(style.PART_LOOKS.values(), parts_s, strict=True):
        place = {"left": start_s / unit_s, "height": 1.0}
        axes.barh(0.0, part_s / unit_s, **place, **look)
        start_s += part_s
    number = record.history["round"][step.index]
    axes.set_xlim(0.0, start_s / unit_s)
    axes.set_ylim(-0.5, 0.5)
    axes.set_yticks([0.0], labels=["whole round"])
    axes.tick_params(axis="y", length=0)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_xlabel(
        f"{label}, cluster {step.cluster}, micro-batches: {step.micro_batches}. "
        f"Time since round {number} began [{unit}]",
        loc="left",
    )
    axes.grid(visible=False)
    # The frame of the local step that the panels below show.
    begin = float(parts_s[:_BEFORE_STEPS].sum()) / unit_s
    end = begin + step.finish_s / unit_s
    frame = Rectangle((begin, -0.5), end - begin, 1.0, fill=False, linewidth=1.2, clip_on=False)
    axes.add_patch(frame)
    return begin, end


def _handles() -> list[Artist]:
    """Legend of two rows: the chart's signs above, the strip's below."""
    chart = [Patch(color=_SHADES[key][0], label=text) for key, text in _LEGEND.items()]
    chart.append(Line2D([], [], label="last decoder pass ends", **_TURN_LINE))
    chart.append(Patch(fill=False, linewidth=1.2, label="first local step"))
    strip = style.fill_handles(style.PART_LOOKS)
    return [handle for column in zip(chart, strip, strict=True) for handle in column]


# A round of a data-parallel policy: what every client does when.
#
# Without ``--round`` the last round is drawn. A row is a client; local steps are drawn
# together, computing before messages, though each step does both.

_CLIENT_LOOKS = {
    "download": style.PART_LOOKS["download"],
    "computing": style.PART_LOOKS["iterations"],
    "activations and gradients": style.fill(style.ORANGE, "//////"),
    "upload": style.PART_LOOKS["upload"],
}
_CLIENT_ROW_IN = 0.13


@style.styled
def draw_gantt_clients(records: Sequence[RunRecord], round_number: int | None = None) -> Figure:
    """Draw one round, the last by default, a panel a run on one time axis.

    Raises:
      InputError: no such round, or nobody took part.
    """
    picked = [client_round(record, round_number) for record in records]
    chart_in = [_CLIENT_ROW_IN * len(each.names) for each in picked]
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 0.5 + sum(chart_in) + 0.5 * len(picked))
    panels = figure.subplots(len(picked), 1, height_ratios=chart_in, sharex=True, squeeze=False)
    longest_s = max(each.parts_s.sum(axis=1).max() for each in picked)
    for axes, each, label in zip(panels[:, 0], picked, run_labels(records), strict=True):
        _client_chart(axes, each, longest_s)
        axes.set_title(f"{label}, round {each.number}", loc="left")
    panels[-1, 0].set_xlabel(f"Time since the round began [{time_unit(longest_s)[1]}]")
    seen = np.any([each.parts_s.any(axis=0) for each in picked], axis=0)
    # Whole models exchange no activations.
    pairs = zip(_CLIENT_LOOKS.items(), seen, strict=True)
    looks = dict(look for look, is_seen in pairs if is_seen)
    handles = style.fill_handles(looks)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _client_chart(axes: Axes, picked: ClientRound, longest_s: float) -> None:
    """Bars of all clients, end to end."""
    unit_s, _ = time_unit(longest_s)
    place = -np.arange(len(picked.names))
    start = np.zeros(len(place))
    for look, width in zip(_CLIENT_LOOKS.values(), picked.parts_s.T / unit_s, strict=True):
        axes.barh(place, width, left=start, height=0.8, **look)
        start += width
    axes.set_yticks(place, labels=picked.names)
    axes.set_ylim(0.5 - len(place), 0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


# The network in a round: places, links by quality, and blocks.
#
# The first panel is the cell, the others are its clusters, each on a scale of its own. A network
# that has gains alone is drawn at distances that follow losses.

_COLUMNS = 4
_PANEL_IN = style.DOUBLE_WIDTH_IN / _COLUMNS
# Colour and dashes of every class of links.
_LINK_LOOKS = (
    (style.VERMILLION, (0, (1, 1))),
    (style.ORANGE, (0, (4, 1.5))),
    (style.SKY, "-"),
    (style.BLUE, "-"),
)


@style.styled
def draw_network(records: Sequence[RunRecord], round_number: int | None = None) -> Figure:
    """Draw a round of every run, one below another.

    Raises:
      InputError: if a run has no such round, or its network is on file and has changed.
    """
    clusters = [record.constants["memory_limit_bytes"].shape[0] for record in records]
    rows = [-(-(count + 1) // _COLUMNS) for count in clusters]
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 0.35 + (_PANEL_IN + 0.2) * sum(rows))
    panels = figure.subplots(sum(rows), _COLUMNS, squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()
        axes.set_aspect("equal")
    for index, (record, label) in enumerate(zip(records, run_labels(records), strict=True)):
        number = record.history["round"][-1] if round_number is None else round_number
        at, network = index_of_round(record, int(number)), network_of_run(record)
        own = panels[sum(rows[:index]) : sum(rows[: index + 1])].ravel()
        _cell(own[0], network, at)
        own[0].set_title(f"{label}, round {number}", loc="left")
        for cluster, axes in enumerate(own[1 : clusters[index] + 1]):
            _cluster(axes, network, record, at, cluster)
            axes.set_title(f"cluster {cluster}", loc="left")
    handles = [
        Line2D([], [], color=color, linestyle=dashes, label=words)
        for (color, dashes), (_, words) in zip(_LINK_LOOKS, LINK_CLASSES, strict=True)
    ]
    handles.append(_marker("^", style.PURPLE, "base station"))
    handles.append(_marker("s", style.BLACK, "control unit"))
    handles.append(_marker("o", style.GREEN, "device with its blocks"))
    figure.legend(handles=handles, loc="outside upper center", ncols=4)
    return figure


def _marker(marker: str, color: str, words: str) -> Line2D:
    return Line2D([], [], color=color, marker=marker, linestyle="none", label=words)


def _places(network: NetworkRounds, at: int) -> np.ndarray:
    return network.position_m[at if len(network.position_m) > 1 else 0]


def _link(axes: Axes, start: np.ndarray, end: np.ndarray, decibel: float | None) -> None:
    """An arrow in the look of its class."""
    known = -np.inf if decibel is None else decibel
    color, dashes = _LINK_LOOKS[sum(known >= least for least, _ in LINK_CLASSES[1:])]
    look = {"arrowstyle": "-|>", "color": color, "linestyle": dashes, "linewidth": 1.2}
    look |= {"connectionstyle": "arc3,rad=0.12", "shrinkA": 5, "shrinkB": 5}
    axes.annotate("", xy=end, xytext=start, arrowprops=look, zorder=1)


def _cell(axes: Axes, network: NetworkRounds, at: int) -> None:
    """The base station, all nodes, and the links between them."""
    place_m = _places(network, at)
    axes.plot(*place_m[:, 1:].reshape(-1, 2).T, ".", color=style.GREY, markersize=2)
    for n, j, to, decibel, _ in links_of_round(network, at):
        if to == BASE_STATION:
            _link(axes, place_m[n, j], np.zeros(2), decibel)
    axes.plot(*place_m[:, 0].T, "s", color=style.BLACK, markersize=8)
    for cluster, (x, y) in enumerate(place_m[:, 0]):
        axes.text(x, y, cluster, color="white", ha="center", va="center_baseline", fontsize=7)
    axes.plot(0.0, 0.0, "^", color=style.PURPLE, markersize=8)
    _square(axes, 1.15 * np.abs(network.position_m).max())


def _cluster(axes: Axes, network: NetworkRounds, record: RunRecord, at: int, cluster: int) -> None:
    """Nodes of a cluster around the control unit, with blocks, and their links."""
    history, place_m = record.history, _places(network, at)[cluster]
    offset_m = place_m - place_m[0]
    reach_m = np.linalg.norm(offset_m, axis=-1).max() or 1.0
    outwards = -1.25 * reach_m * place_m[0] / max(np.linalg.norm(place_m[0]), 1e-9)
    if "samples" in history:
        held = history["client_blocks"][at] * (history["samples"][at, cluster] > 0)
    else:
        held = history["segments"][at, cluster]
    for n, j, to, decibel, _ in links_of_round(network, at):
        if n == cluster:
            _link(axes, offset_m[j], outwards if to == BASE_STATION else offset_m[to], decibel)
    axes.plot(0.0, 0.0, "s", color=style.BLACK, markersize=8)
    axes.plot(*outwards, "^", color=style.PURPLE, markersize=6)
    blocks = np.broadcast_to(held, len(offset_m) - 1)
    for (x, y), count in zip(offset_m[1:], blocks, strict=True):
        face = style.GREEN if count else "white"
        axes.plot(x, y, "o", markersize=10, markerfacecolor=face, color=style.BLACK)
        if count:
            axes.text(x, y, count, color="white", ha="center", va="center_baseline", fontsize=7)
    _square(axes, 1.45 * reach_m)


def _square(axes: Axes, half_m: float) -> None:
    """A panel around the origin."""
    axes.set(xlim=(-half_m, half_m), ylim=(-half_m, half_m))
