"""Are the long-term constraints kept: energy and divergence over their targets, and queues."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from collapipe_jax.runs.figures import style
from collapipe_jax.runs.results.checkpoints import RunRecord

# Which nodes of a cluster belong to a class: node 0 is the control unit.
_NODE_CLASSES = {
    "control units": (slice(0, 1), style.line(style.VERMILLION, (0, (4, 1.5)), "s")),
    "devices": (slice(1, None), style.line(style.BLUE, "-", "o")),
}


def running_mean(values: np.ndarray) -> np.ndarray:
    """Mean over the rounds so far, along the first axis."""
    rounds = np.arange(1, len(values) + 1).reshape(-1, *[1] * (values.ndim - 1))
    return np.cumsum(values, axis=0) / rounds


def energy_over_budget(record: RunRecord) -> np.ndarray:
    """Mean energy so far over the budget of (P1), no unit, ``[R, N, K + 1]``."""
    return running_mean(record.history["energy_j"]) / record.constants["energy_budget_j"][None]


def divergence_over_target(record: RunRecord) -> np.ndarray:
    """Mean divergence so far over its target of (P1), no unit, ``[R]``."""
    return running_mean(record.history["divergence"]) / record.constants["divergence_target"]


@style.styled
def draw(records: Sequence[RunRecord]) -> Figure:
    """Draw a row of energy panels a run, and a last row of divergence over all runs.

    In the energy panels every node has a thin line, and of each class of nodes the one
    whose energy ends highest, or whose queue is longest in the mean, a bold one. Panels of a
    column share their scales, but for the last row.
    """
    rows = len(records) + 1
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 0.5 + 1.6 * rows)
    panels = figure.subplots(rows, 2, sharex=True, squeeze=False)
    ratios = [energy_over_budget(record) for record in records]
    queues = [record.history["energy_queue"] for record in records]
    # A row of energy a run.
    for row, label in enumerate(style.run_labels(records)):
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
    looks = zip(style.run_looks(records), style.run_labels(records), strict=True)
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
