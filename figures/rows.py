"""One row a policy: every network a dot, median and mean with their 95 % intervals."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from figures import style
from figures.estimates import Estimate, mean_estimate, median_estimate

ROW_IN = 0.22
_DOTS_AT, _MEDIAN_AT, _MEAN_AT = 0.24, 0.0, -0.24  # below the middle of the row
_MARKERS = {"median": ("D", "white"), "mean": ("o", None)}  # and its face


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
        color = looks[name].color
        finite = value[np.isfinite(value)]
        axes.plot(
            finite,
            np.full(finite.size, row + _DOTS_AT),
            linestyle="none",
            marker=".",
            markersize=3.0,
            markeredgewidth=0.0,
            alpha=0.4,
            color=color,
        )
        _estimate(axes, median_estimate(value).within(limits), row + _MEDIAN_AT, "median", color)
        _estimate(axes, mean_estimate(value).within(limits), row + _MEAN_AT, "mean", color)
        _count_others(axes, value.size - finite.size, value.size, row)


def _estimate(axes: Axes, estimate: Estimate, row: float, kind: str, color: str) -> None:
    """Marker on its interval; nothing where the value is unknown."""
    if not np.isfinite(estimate.value):
        return
    marker, face = _MARKERS[kind]
    axes.plot([estimate.low, estimate.high], [row, row], color=color, linewidth=1.4)
    axes.plot(
        [estimate.value],
        [row],
        linestyle="none",
        marker=marker,
        markerfacecolor=face or color,
        markeredgecolor=color,
        markeredgewidth=0.8,
        zorder=3,
        clip_on=False,
    )


def _count_others(axes: Axes, count: int, total: int, row: float) -> None:
    """Beside the panel, where it hides no data; the layout makes room."""
    if count:
        place = axes.get_yaxis_transform()
        axes.text(1.01, row, f"∞ {count}/{total}", transform=place, va="center", fontsize=7)


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


def row_handles() -> list[Line2D]:
    """What dots and markers mean, for a legend."""
    dot = Line2D([], [], linestyle="none", marker=".", markersize=4.0, color=style.GREY)
    dot.set(alpha=0.6, markeredgewidth=0.0, label="a network")
    handles = [dot]
    for kind, (marker, face) in _MARKERS.items():
        handle = Line2D([], [], color=style.GREY, marker=marker, label=f"{kind}, 95 %")
        handle.set_markerfacecolor(face or style.GREY)
        handles.append(handle)
    return handles


def row_legend(figure: Figure, more: Sequence = ()) -> None:
    """Legend of rows above a figure, with further handles."""
    handles = [*row_handles(), *more]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
