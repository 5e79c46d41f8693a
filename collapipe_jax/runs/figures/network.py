"""The network of a training run in a round: places, links by quality, and blocks.

The first panel is the cell, the others are its clusters, each on a scale of its own. Without
``--round`` the last round is drawn. A network that has gains alone is drawn at distances that
follow losses.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from collapipe_jax.runs.figures import style
from collapipe_jax.runs.report.network import NetworkRounds, network_of_run
from collapipe_jax.runs.report.rounds import BASE_STATION, LINK_CLASSES, links_of_round
from collapipe_jax.runs.results.record import RunRecord, run_labels
from collapipe_jax.runs.results.timeline import index_of_round

_COLUMNS = 4
_PANEL_IN = style.DOUBLE_WIDTH_IN / _COLUMNS
# Colour and dashes of every class of links.
_LOOKS = (
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
        for (color, dashes), (_, words) in zip(_LOOKS, LINK_CLASSES, strict=True)
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
    color, dashes = _LOOKS[sum(known >= least for least, _ in LINK_CLASSES[1:])]
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
