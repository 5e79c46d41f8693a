"""What figures of comparisons share: networks that can run, and one row a policy.

A row shows every network as a dot, and median and mean with their 95 % intervals.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.statistics import Estimate, mean_estimate, median_estimate
from collapipe_jax.runs.figures import style
from collapipe_jax.runs.results.limits import runnable
from collapipe_jax.runs.results.realisations import Realisations

ROW_IN = 0.22
_DOTS_AT, _MEDIAN_AT, _MEAN_AT = 0.24, 0.0, -0.24  # below the middle of the row
_DOT = {"linestyle": "none", "marker": ".", "markeredgewidth": 0.0}
_MARKERS = {"median": ("D", "white"), "mean": ("o", None)}  # and its face


def only_runnable(result: Realisations) -> Realisations:
    """The comparison without networks in which no cluster can ever hold the encoder.

    Raises:
      InputError: if no network is left.
    """
    kept = runnable(result.networks)
    if not kept.any():
        problem = "no network of the comparison can run a round"
        raise InputError("realisations", len(kept), problem, "Give devices more memory")
    return result.only(kept)


def horizon(result: Realisations) -> str:
    """Number of networks and rounds behind a figure."""
    counts = {"network": len(result.networks["divergence_target"]), "round": result.rounds}
    return ", ".join(f"{n} {noun}" if n == 1 else f"{n} {noun}s" for noun, n in counts.items())


def draw_rows(axes: Axes, values: Mapping[str, np.ndarray], limits: tuple[float, float]) -> None:
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


def row_legend(figure: Figure, rule: str, note: str) -> None:
    """Legend of rows above a figure: dots, markers, a ruled line, and a note."""
    dot = {"color": style.GREY, "alpha": 0.6, "markersize": 4.0, **_DOT}
    handles = [Line2D([], [], label="a network", **dot)]
    for kind, (marker, face) in _MARKERS.items():
        look = {"color": style.GREY, "marker": marker, "markerfacecolor": face or style.GREY}
        handles.append(Line2D([], [], label=f"{kind}, 95 %", **look))
    handles += [Line2D([], [], label=rule, **style.RULE)]
    handles += [Line2D([], [], linestyle="none", label=note)]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
