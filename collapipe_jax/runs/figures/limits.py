"""Limits over rounds: queues of runs, constraints of comparisons, and memory.

Constraints: mean energy, worst energy queue, divergence queue.

Above means over networks with Student's 95 % intervals, below medians with intervals that hold
for any distribution: where a few networks are hopeless, only medians speak for the others. A line
ends where its value is infinite or unknown.

Energy is the mean so far of all nodes together, over the sum of their budgets: above 1 some
node is over its budget for certain, below 1 a single node may be. Of the nodes' queues the
longest is drawn.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from collapipe_jax.core.statistics import Estimate, mean_estimate, median_estimate
from collapipe_jax.runs.figures import style
from collapipe_jax.runs.figures.comparison import ROW_IN, horizon, name_rows
from collapipe_jax.runs.results.realisations import (
    Realisations,
    energy_over_budget,
    only_runnable,
)
from collapipe_jax.runs.results.record import (
    RunRecord,
    divergence_over_target,
    record_energy_over_budget,
    run_labels,
)

# Are the long-term constraints kept: energy and divergence over their targets, and queues.

# Which nodes of a cluster belong to a class: node 0 is the control unit.
_NODE_CLASSES = {
    "control units": (slice(0, 1), style.line(style.VERMILLION, (0, (4, 1.5)), "s")),
    "devices": (slice(1, None), style.line(style.BLUE, "-", "o")),
}


@style.styled
def draw_queues(records: Sequence[RunRecord]) -> Figure:
    """Draw a row of energy panels a run, and a last row of divergence over all runs.

    In the energy panels every node has a thin line, and of each class of nodes the one
    whose energy ends highest, or whose queue is longest in the mean, a bold one. Panels of a
    column share their scales, but for the last row.
    """
    rows = len(records) + 1
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 0.5 + 1.6 * rows)
    panels = figure.subplots(rows, 2, sharex=True, squeeze=False)
    ratios = [record_energy_over_budget(record) for record in records]
    queues = [record.history["energy_queue"] for record in records]
    # A row of energy a run.
    for row, label in enumerate(run_labels(records)):
        rounds = records[row].history["round"]
        _nodes(panels[row, 0], rounds, ratios[row], ratios[row][-1])
        _nodes(panels[row, 1], rounds, queues[row], np.mean(queues[row], axis=0))
        panels[row, 0].set_title(label, loc="left")
        panels[row, 0].set_ylabel("Mean energy\n/ budget [–]")
        panels[row, 1].set_ylabel("Energy queue [–]")
    _scale(panels[:-1, 0], ratios, least=1.2)
    _scale(panels[:-1, 1], queues, least=0.1)
    # The last row: divergence of all runs.
    _divergence(panels[-1], records)
    for axes in panels[:, 0]:
        axes.axhline(1.0, **style.RULE)
    for axes in panels[-1]:
        style.round_axis(axes)
    handles = [
        Line2D([], [], label=f"{name} (worst bold)", **look)
        for name, (_, look) in _NODE_CLASSES.items()
    ]
    handles.append(Line2D([], [], label="budget, target", **style.RULE))
    figure.legend(handles=handles, loc="outside upper center", ncols=3)
    return figure


def _line(axes: Axes, rounds: np.ndarray, values: np.ndarray, look: style.Look, **more) -> None:
    every = style.mark_every(len(rounds), 8)
    axes.plot(rounds, values, markevery=every, clip_on=False, **look, **more)


def _nodes(axes: Axes, rounds: np.ndarray, values: np.ndarray, badness: np.ndarray) -> None:
    """Lines of all nodes, ``values [R, N, K + 1]``, bold where ``badness [N, K + 1]`` is most."""
    alone = "." if len(rounds) == 1 else None  # a line through one point is not visible
    thin = {"linewidth": 0.4, "alpha": 0.5, "marker": alone, "zorder": 1.5}
    for nodes, look in _NODE_CLASSES.values():
        lines = values[:, :, nodes].reshape(len(rounds), -1)
        axes.plot(rounds, lines, color=look["color"], **thin)
        if lines.shape[1]:
            _line(axes, rounds, lines[:, np.argmax(badness[:, nodes])], look)


def _scale(panels: Sequence[Axes], values: Sequence[np.ndarray], least: float) -> None:
    """One vertical scale from 0 for several panels, its top at ``least`` or above.

    Infinite values do not count.
    """
    top = max(least, *(float(np.max(run, where=np.isfinite(run), initial=0.0)) for run in values))
    for axes in panels:
        style.stretched_axis(axes, top)


def _divergence(panels: Sequence[Axes], records: Sequence[RunRecord]) -> None:
    """Divergence over target (left) and its queue (right), all runs overlaid."""
    ratios = [divergence_over_target(record) for record in records]
    queues = [record.history["divergence_queue"] for record in records]
    looks = zip(style.run_looks(records), run_labels(records), strict=True)
    for index, (look, label) in enumerate(looks):
        for axes, values in zip(panels, (ratios[index], queues[index]), strict=True):
            _line(axes, records[index].history["round"], values, look, label=label)
    _scale(panels[:1], ratios, least=1.2)
    _scale(panels[1:], queues, least=0.1)
    panels[0].set_title("divergence", loc="left")
    panels[0].set_ylabel("Mean divergence\n/ target [–]")
    panels[1].set_ylabel("Divergence queue [–]")
    if len(records) > 1:
        style.legend_above(panels[1])


_LABELS = {
    "energy": "Mean energy so far\n/ sum of budgets [–]",
    "energy_queue": "Worst energy queue [–]",
    "divergence_queue": "Divergence queue [–]",
}
_MARKS = 8  # markers along a line


def _constraint_series(result: Realisations) -> dict[str, dict[str, np.ndarray]]:
    """What the panels show: by panel and policy, ``[R, T]`` each."""
    policies = result.policies
    return {
        "energy": {name: energy_over_budget(result, name) for name in policies},
        "energy_queue": {name: policies[name]["worst_energy_queue"] for name in policies},
        "divergence_queue": {name: policies[name]["divergence_queue"] for name in policies},
    }


@style.styled
def draw_constraints(result: Realisations) -> Figure:
    """Draw means above and medians below, one column a constraint."""
    result = only_runnable(result)
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 4.3)
    panels = figure.subplots(2, 3, sharex=True)
    for column, (panel, series) in enumerate(_constraint_series(result).items()):
        _overlay(panels[0, column], series, mean_estimate)
        _overlay(panels[1, column], series, median_estimate)
        style.round_axis(panels[1, column])
        for axes in panels[:, column]:
            axes.set_ylabel(_LABELS[panel])
    for axes in panels[:, 0]:
        axes.axhline(1.0, **style.RULE)
    panels[0, 0].set_title(f"mean over {horizon(result)}", loc="left")
    panels[1, 0].set_title("median over networks", loc="left")
    handles = [*style.policy_handles(result.policies), Line2D([], [], label="budget", **style.RULE)]
    figure.legend(handles=handles, loc="outside upper center", ncols=5)
    return figure


def _overlay(
    axes: Axes, series: Mapping[str, np.ndarray], estimate: Callable[[np.ndarray], Estimate]
) -> None:
    """Lines of all policies on their bands, on one scale from 0."""
    estimates = {name: estimate(values) for name, values in series.items()}
    highest = [np.ravel(part) for each in estimates.values() for part in (each.value, each.high)]
    highest = np.concatenate(highest)
    top = style.stretched_axis(axes, max(1.2, highest.max(where=np.isfinite(highest), initial=0.0)))
    if not np.isfinite(highest).any():
        style.say_empty(axes, "no finite value")
    looks = style.policy_looks(estimates)
    for name, each in estimates.items():
        rounds = np.arange(1, each.value.size + 1)
        every = style.mark_every(rounds.size, _MARKS)
        band = each.within((0.0, top))
        color = looks[name]["color"]
        axes.fill_between(rounds, band.low, band.high, color=color, alpha=0.08, linewidth=0.0)
        for end in (band.low, band.high):  # visible where bands overlap
            axes.plot(rounds, end, color=color, linewidth=0.4, alpha=0.7)
        axes.plot(rounds, each.value, markevery=every, clip_on=False, **looks[name])


# Memory of a device against the blocks it holds, and how often it holds how many.
#
# Both panels are over all devices that take part, in all rounds and networks. Above, markers of
# a number of blocks are side by side, for policies that cut the model alike need the same
# memory; lines are the limits of the boards. Below, shares of a policy's devices in percent.

_SPREAD = 0.7  # of the room between two numbers of blocks
_HEADROOM = 1.06  # above the largest limit, for its words
_MOST_LIMITS = 4  # that are drawn one by one
_MOST_NUMBERS = 26  # columns in which a share of 100 can be read
_PALEST, _DARKEST = 1.0, 0.25  # grey of shares of 0 and 100 %


def held_memory(values: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """What devices of a policy hold, over all rounds and networks, by number of blocks.

    Returns:
      Mean memory in bytes, nan where no device holds that many blocks, and the share of the
      devices, in percent; ``[L + 1]`` each.
    """
    held = values["blocks_held"].astype(np.float64).sum(axis=0)
    memory = values["memory_by_blocks"].astype(np.float64).sum(axis=0)
    mean = np.divide(memory, held, out=np.full(held.size, np.nan), where=held > 0)
    return mean, 100.0 * held / max(held.sum(), 1.0)


def board_limits(limits_bytes: np.ndarray) -> dict[str, float]:
    """Limits to draw, by their words.

    If there are few, every one with the share of the devices that have it; else the smallest,
    the median and the largest.
    """
    found, counts = np.unique(np.ravel(limits_bytes), return_counts=True)
    if found.size > _MOST_LIMITS:
        middle = float(np.median(limits_bytes))
        ends = {"smallest limit": float(found[0]), "largest limit": float(found[-1])}
        return {**ends, "median limit": middle}
    shares = 100.0 * counts / counts.sum()
    return {
        f"limit of {share:.0f} % of the devices": float(limit)
        for limit, share in zip(found, shares, strict=True)
    }


@style.styled
def draw_memory(result: Realisations) -> Figure:
    """Draw memory above and how often below; both share the axis of blocks."""
    result = only_runnable(result)
    held = {name: held_memory(values) for name, values in result.policies.items()}
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 3.3 + ROW_IN * len(held))
    heights = [2.2, 0.3 + ROW_IN * len(held)]
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    _memories(above, held, board_limits(result.networks["memory_limit_bytes"]))
    _shares(below, {name: share for name, (_, share) in held.items()})
    below.set_xlabel("Blocks held by a device [–]")
    below.xaxis.set_major_locator(MaxNLocator(nbins=_MOST_NUMBERS, integer=True, min_n_ticks=1))
    below.set_title(f"share of the policy's devices [%], {horizon(result)}", loc="left")
    handles = style.policy_handles(held, joined=False)
    figure.legend(handles=handles, loc="outside upper center", ncols=4)
    return figure


def _memories(axes: Axes, held: dict, limits: dict[str, float]) -> None:
    """Mean memory by blocks, policies side by side, and the limits."""
    drawn_bytes = np.concatenate([*(memory for memory, _ in held.values()), list(limits.values())])
    unit_bytes, unit = style.memory_unit(np.nanmax(drawn_bytes))
    offsets = _SPREAD * ((np.arange(len(held)) + 0.5) / len(held) - 0.5)
    looks = style.policy_looks(held)
    for (name, (memory, _)), offset in zip(held.items(), offsets, strict=True):
        blocks = np.flatnonzero(np.isfinite(memory))
        look = style.markers_only(looks[name])
        axes.plot(blocks + offset, memory[blocks] / unit_bytes, **look)
    style.wide_axis(axes, "y", _HEADROOM * drawn_bytes / unit_bytes)
    for words, limit in limits.items():
        axes.axhline(limit / unit_bytes, **style.RULE)
        place = axes.get_yaxis_transform()
        axes.text(0.01, limit / unit_bytes, words, transform=place, va="bottom", fontsize=7)
    for edge in range(len(next(iter(held.values()))[0])):
        axes.axvline(edge + 0.5, color="0.88", linewidth=0.4, zorder=0.5)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel(f"Memory of a device [{unit}]")


def _shares(axes: Axes, shares: dict[str, np.ndarray]) -> None:
    """One row a policy, one column a number of blocks, darker where more devices are."""
    table = np.stack(list(shares.values()))
    used = np.flatnonzero(table.any(axis=0))
    first, last = (used[0], used[-1]) if used.size else (0, 1)
    name_rows(axes, list(shares))
    axes.grid(visible=False)
    axes.set_xlim(min(first, 1) - 0.5, last + 0.5)
    for row, column in zip(*np.nonzero(table), strict=True):
        share = table[row, column]
        grey = _PALEST + (_DARKEST - _PALEST) * share / 100.0
        axes.barh(row, 1.0, 1.0, column - 0.5, color=str(grey), linewidth=0.0, zorder=0.4)
        if last - first < _MOST_NUMBERS:
            words = f"{share:.0f}" if share >= 0.5 else "<1"
            ink = "white" if grey < 0.55 else "black"
            axes.text(column, row, words, ha="center", va="center", fontsize=7, color=ink)
