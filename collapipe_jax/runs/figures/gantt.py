"""One local step: when each resource of a pipeline, or each client, serves what.

Without ``--round`` the last round is drawn, without ``--cluster`` its slowest cluster.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import ConnectionPatch, Patch, Rectangle

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.latency import Events, alternating_events, flow_events
from collapipe_jax.runs.figures import style
from collapipe_jax.runs.results.checkpoints import RunRecord

FORWARD, BACKWARD, TURN = "forward", "backward", "decoder"

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


class Bar(NamedTuple):
    """One service of one micro-batch, timed since the first local step began."""

    resource: str
    direction: str  # FORWARD, BACKWARD, or TURN for the decoder, whose stage is both
    micro_batch: int  # from 0
    start_s: float
    finish_s: float


class Step(NamedTuple):
    """First local step of a cluster in a round.

    Resources are the rows from top to bottom, in the order of the forward flow, idle ones left
    out; the downlink is last.
    """

    index: int  # of the round along the history's first axis
    cluster: int  # from 0
    micro_batches: int
    resources: list[str]
    bars: list[Bar]  # in both directions
    turned_s: float  # the last micro-batch leaves the decoder
    finish_s: float  # the step ends, at the latest by docs/system-model.md (12)


def runs_pipeline(record: RunRecord) -> np.ndarray:
    """Which clusters ran a pipeline in which rounds, ``[R, N]``.

    None where a cluster sat out, and nowhere under a data-parallel policy.
    """
    if "forward_flow_s" not in record.history:
        return np.zeros(record.history["cluster_latency_s"].shape, bool)
    flow_s = np.concatenate(
        [record.history["forward_flow_s"], record.history["backward_flow_s"]], axis=-1
    )
    return (flow_s > 0).any(axis=-1) & np.isfinite(flow_s).all(axis=-1)


def _index_of_round(record: RunRecord, number: int) -> int:
    """Index of a round along the first axis of a run's history.

    Raises:
      InputError: if the run has no such round.
    """
    rounds = record.history["round"]
    if number not in rounds:
        remedy = f"Choose one of {rounds[0]} to {rounds[-1]}"
        raise InputError("--round", number, "the run has no such round", remedy)
    return int(np.flatnonzero(rounds == number)[0])


def choose_round(
    record: RunRecord, round_number: int | None, cluster: int | None
) -> tuple[int, int]:
    """Which round and cluster to draw: the last round with a pipeline, its slowest cluster.

    Returns:
      Index of the round along the history's first axis, and the cluster from 0.

    Raises:
      InputError: no such round or cluster, or it ran no pipeline.
    """
    runs = runs_pipeline(record)
    if not runs.any():
        problem = "no round of this run has a pipeline"
        raise InputError("policy", record.policy, problem, "Draw another run")
    if cluster is not None and not 0 <= cluster < runs.shape[1]:
        remedy = f"Choose one of 0 to {runs.shape[1] - 1}"
        raise InputError("--cluster", cluster, "the run has no such cluster", remedy)
    eligible = runs if cluster is None else runs[:, [cluster]]
    if round_number is None:
        index = int(np.max(np.nonzero(eligible.any(axis=1))[0], initial=-1))
    else:
        index = _index_of_round(record, round_number)
    if index < 0 or not eligible[index].any():
        key, value = ("--cluster", cluster) if cluster is not None else ("--round", round_number)
        raise InputError(key, value, "it sat out", "Choose another round or cluster")
    if cluster is None:
        latency_s = np.where(runs[index], record.history["cluster_latency_s"][index], -np.inf)
        cluster = int(np.argmax(latency_s))
    return index, cluster


def first_step(record: RunRecord, index: int, cluster: int) -> Step:
    """Place every micro-batch of the first local step on the resources it passes.

    Under GPipe the backward flow starts when the last micro-batch has left the decoder.

    See docs/system-model.md (12) and section 7. The cluster ran a pipeline in that round,
    ``index`` along the history's first axis.

    Raises:
      InputError: if D2D radios take turns.
    """
    if record.duplex == "half":
        problem = "stages of half duplex share radios, and have no chart"
        raise InputError("radio.duplex", record.duplex, problem, "Draw a run with full duplex")
    forward_s = record.history["forward_flow_s"][index, cluster]
    backward_s = record.history["backward_flow_s"][index, cluster]
    micro_batches = int(record.history["micro_batches"][index, cluster])
    gateways = record.history.get("gateway")
    names = _names(forward_s, 0 if gateways is None else int(gateways[index, cluster]))
    events_of = _one_f_one_b if record.schedule == "1f1b" else _gpipe
    there, back = events_of(forward_s, backward_s, micro_batches)
    forward = [
        bar._replace(direction=TURN) if bar.resource == names[-1] else bar
        for bar in _bars(forward_s, names, there, FORWARD)
    ]
    bars = forward + _bars(backward_s, ["downlink", *names[-3::-1]], back, BACKWARD)
    busy = {bar.resource for bar in bars}
    resources = [name for name in [*names, "downlink"] if name in busy]
    turned_s, finish_s = float(there.finish_s[-1, -1]), float(back.finish_s[-1, -1])
    return Step(index, cluster, micro_batches, resources, bars, turned_s, finish_s)


def _gpipe(
    forward_s: np.ndarray, backward_s: np.ndarray, micro_batches: int
) -> tuple[Events, Events]:
    """Events of both flows, the backward one after the forward one."""
    there = flow_events(jnp.asarray(forward_s), micro_batches)
    return there, flow_events(jnp.asarray(backward_s), micro_batches, there.finish_s[-1, -1])


def _one_f_one_b(
    forward_s: np.ndarray, backward_s: np.ndarray, micro_batches: int
) -> tuple[Events, Events]:
    """Events of both flows in turn; those of idle devices and hops do not matter."""
    by_stage_s = np.append(backward_s[::-1], 0.0)  # the decoder turns in its forward stage
    runs = np.flatnonzero((forward_s > 0) | (by_stage_s > 0))
    stages = jnp.asarray(forward_s[runs]), jnp.asarray(by_stage_s[runs])

    def spread(own_s: Array) -> np.ndarray:
        every_s = np.zeros((micro_batches, len(forward_s)))
        every_s[:, runs] = own_s
        return every_s

    there, back = jax.tree.map(spread, alternating_events(*stages, micro_batches))
    return there, jax.tree.map(lambda every_s: every_s[:, -2::-1], back)


def _names(forward_s: np.ndarray, gateway: int) -> list[str]:
    """Names of the stages of the forward flow, ``[2 K + 4]``.

    A hop is named by the nodes it joins, the next active one included, at last the gateway; 0
    marks a device that is skipped.
    """
    end = f"device {gateway}" if gateway else "CU"
    devices = (len(forward_s) - 4) // 2
    active = [node for node in range(1, devices + 1) if forward_s[2 * node] > 0]
    names = []
    for node in range(devices + 1):
        following = next((f"device {other}" for other in active if other > node), end)
        sender = f"device {node}" if node else "CU"
        names += [sender if node else "control unit", f"{sender} ↔ {following}"]
    return [*names, "uplink", "decoder"]


def _bars(stage_s: np.ndarray, names: list[str], events: Events, direction: str) -> list[Bar]:
    """Bars of one flow, stages of time 0 left out."""
    start, finish = np.asarray(events.start_s), np.asarray(events.finish_s)
    return [
        Bar(name, direction, micro, float(start[micro, stage]), float(finish[micro, stage]))
        for stage, name in enumerate(names)
        if stage_s[stage] > 0
        for micro in range(len(start))
    ]


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
    for row, label in enumerate(style.run_labels(records)):
        strip, chart = panels[2 * row : 2 * row + 2]
        _chart(chart, steps[row], longest_s)
        begin, end = _strip(strip, records[row], steps[row], label)
        last = steps[row].finish_s / style.time_unit(longest_s)[0]
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
    unit_s, unit = style.time_unit(longest_s)
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
    unit_s, unit = style.time_unit(float(parts_s.sum()))
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
# together, computing before messages, though each step does both. Pipelines have
# :mod:`collapipe_jax.runs.figures.gantt`.

_LOOKS = {
    "download": style.PART_LOOKS["download"],
    "computing": style.PART_LOOKS["iterations"],
    "activations and gradients": style.fill(style.ORANGE, "//////"),
    "upload": style.PART_LOOKS["upload"],
}
_CLIENT_ROW_IN = 0.13


class ClientRound(NamedTuple):
    """Clients of a round, cluster by cluster."""

    number: int
    names: list[str]
    parts_s: np.ndarray  # by part, [clients, 4]; 0 for one that never ends


def has_clients(record: RunRecord) -> bool:
    """Whether a run's policy was a data-parallel one and anybody ever took part."""
    return "samples" in record.history and bool((record.history["samples"] > 0).any())


def client_round(record: RunRecord, round_number: int | None) -> ClientRound:
    """The clients that took part in a round; ``None`` is the last in which anybody did.

    Raises:
      InputError: no such round, or nobody took part.
    """
    if not has_clients(record):
        raise InputError("policy", record.policy, "the run has no clients", "Draw another run")
    takes_part = record.history["samples"] > 0
    if round_number is None:
        index = int(np.flatnonzero(takes_part.any(axis=(1, 2)))[-1])
    else:
        index = _index_of_round(record, round_number)
    places = np.argwhere(takes_part[index])
    if not len(places):
        raise InputError("--round", round_number, "everybody sat out", "Choose another round")
    names = [f"cluster {cluster}, device {device + 1}" for cluster, device in places]
    if "control_unit_memory_bytes" in record.history:
        names = [f"cluster {cluster}, control unit" for cluster, _ in places]
    parts_s = record.history["client_parts_s"][index][takes_part[index]]
    return ClientRound(
        int(record.history["round"][index]), names, np.where(np.isfinite(parts_s), parts_s, 0.0)
    )


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
    for axes, each, label in zip(panels[:, 0], picked, style.run_labels(records), strict=True):
        _client_chart(axes, each, longest_s)
        axes.set_title(f"{label}, round {each.number}", loc="left")
    panels[-1, 0].set_xlabel(f"Time since the round began [{style.time_unit(longest_s)[1]}]")
    seen = np.any([each.parts_s.any(axis=0) for each in picked], axis=0)
    # Whole models exchange no activations.
    looks = {name: _LOOKS[name] for name, is_seen in zip(_LOOKS, seen, strict=True) if is_seen}
    handles = style.fill_handles(looks)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _client_chart(axes: Axes, picked: ClientRound, longest_s: float) -> None:
    """Bars of all clients, end to end."""
    unit_s, _ = style.time_unit(longest_s)
    place = -np.arange(len(picked.names))
    start = np.zeros(len(place))
    for look, width in zip(_LOOKS.values(), picked.parts_s.T / unit_s, strict=True):
        axes.barh(place, width, left=start, height=0.8, **look)
        start += width
    axes.set_yticks(place, labels=picked.names)
    axes.set_ylim(0.5 - len(place), 0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
