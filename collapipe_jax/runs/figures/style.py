"""The one look of all figures: sizes, colours, units, scales, and how a figure is saved.

Colours are those of Okabe and Ito, which colour-blind readers can distinguish; every colour
comes with a line style and marker, or with a hatch, so that a grey print reads as well.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from collapipe_jax.runs.results.record import RunRecord, policy_label, run_labels

COLUMN_WIDTH_IN = 3.5
DOUBLE_WIDTH_IN = 7.16

BLACK, GREY = "#000000", "#666666"
BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
VERMILLION, ORANGE, _YELLOW, PURPLE = "#D55E00", "#E69F00", "#F0E442", "#CC79A7"

ROUND_LABEL = "Round [–]"

RULE = {"color": BLACK, "linewidth": 0.8, "linestyle": (0, (1, 2))}
"""Line of a limit, a target, or of no difference."""
TRIVIAL = {"color": GREY, "linewidth": 0.9, "linestyle": (0, (1, 2))}
"""Line of a trivial answer's score."""

_PARAMETERS = {
    "font.family": "DejaVu Sans",  # ships with matplotlib, so every machine has it
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.linewidth": 0.4,
    "grid.color": "0.88",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "figure.constrained_layout.h_pad": 0.04,
    "figure.constrained_layout.w_pad": 0.04,
    "pdf.fonttype": 42,  # TrueType, as publishers ask
    "savefig.dpi": 300,
}

# Decorator of every function that makes artists: they read the settings when made.
styled = matplotlib.rc_context(_PARAMETERS)

_LOG_FROM = 30.0  # between the largest and the smallest, from which on an axis is logarithmic
_LOG_MARGIN = 0.04  # of a logarithmic axis, on either side of the values
_STRETCHED_FROM = 10.0  # above this a linear axis would flatten what matters, around 1
_PLAIN_BELOW = 1e5  # from here on ticks are written as powers

Look = dict[str, Any]
"""Keywords of a line or of a filled shape."""


def line(color: str, linestyle: str | tuple, marker: str | None) -> Look:
    """Look of a line."""
    return {"color": color, "linestyle": linestyle, "marker": marker}


def markers_only(look: Look) -> Look:
    """Look of markers that no line joins."""
    return {**look, "linestyle": "none"}


def fill(color: str, hatch: str | None) -> Look:
    """Look of a filled shape; a hatch of ``None`` is plain."""
    return {"facecolor": color, "hatch": hatch, "edgecolor": "0.2", "linewidth": 0.3}


_POLICY_LOOKS = {
    "dssra": line(BLUE, "-", "o"),
    "static_pipeline": line(VERMILLION, (0, (4, 1.5)), "s"),
    "titanic": line(GREEN, (0, (1, 1)), "^"),
    "titanic_pipelined": line(PURPLE, (0, (4, 1, 1, 1)), "D"),
    "greedy": line(ORANGE, (0, (6, 1, 1, 1, 1, 1)), "v"),
    "alternating": line(_YELLOW, (0, (5, 1)), "p"),
    "vanilla_fl": line(BLACK, (0, (2, 1)), "P"),
    "splitfed": line(SKY, (0, (8, 2)), "X"),
    "control_unit_split": line(SKY, (0, (2, 1)), "H"),
    "control_unit_fl": line(BLACK, (0, (6, 2)), "<"),
    "hierarchical_fl": line(BLACK, (0, (1, 2)), ">"),
    "dssra_wide": line(BLUE, (0, (3, 1)), "*"),
    "dssra_offline": line(BLUE, (0, (1, 1.5)), "8"),
    "best_mode": line(PURPLE, "-", "*"),
    "selected_fl": line(BLACK, "-", "d"),
    "random": line(GREY, (0, (2, 1, 1, 1, 1, 1)), "h"),
}
_LOOKS = list(_POLICY_LOOKS.values())
# In the order of RunRecord.history["parts_s"], docs/system-model.md (14).
PART_LOOKS = {
    "download": fill(SKY, None),
    "distribute": fill(ORANGE, "//////"),
    "iterations": fill(BLUE, None),
    "collect": fill(_YELLOW, "\\\\\\\\\\\\"),
    "upload": fill(PURPLE, "......"),
}


def policy_looks(names: Iterable[str]) -> dict[str, Look]:
    """Looks of policies by name: those of the package have theirs in every figure.

    A policy of another name takes a look that none of the others has, while there is one.
    """
    names = list(names)
    looks = {name: _POLICY_LOOKS[name] for name in names if name in _POLICY_LOOKS}
    free = cycle([look for look in _LOOKS if look not in looks.values()] or _LOOKS)
    return {name: looks[name] if name in looks else next(free) for name in names}


def policy_handles(names: Iterable[str], joined: bool = True) -> list[Line2D]:
    """Policies for a legend, as lines, or as markers alone where points are not joined."""
    return [
        Line2D([], [], label=policy_label(name), **(look if joined else markers_only(look)))
        for name, look in policy_looks(names).items()
    ]


def run_looks(records: Sequence[RunRecord]) -> list[Look]:
    """Looks of runs: those of their policies, or by position where two runs share one."""
    looks = policy_looks(record.policy for record in records)
    if len(looks) == len(records):
        return list(looks.values())
    return [_LOOKS[index % len(_LOOKS)] for index in range(len(records))]


def run_handles(records: Sequence[RunRecord]) -> list[Line2D]:
    """Runs for a legend."""
    return [
        Line2D([], [], label=label, **look)
        for look, label in zip(run_looks(records), run_labels(records), strict=True)
    ]


def fill_handles(looks: Mapping[str, Look]) -> list[Patch]:
    """Filled shapes by name, for a legend."""
    return [Patch(label=name, **look) for name, look in looks.items()]


def memory_unit(most_bytes: float) -> tuple[float, str]:
    """Bytes in the unit in which a memory reads well, and the unit's name."""
    for power, name in ((30, "GiB"), (20, "MiB")):
        if most_bytes >= 2**power:
            return 2.0**power, name
    return 2.0**10, "KiB"


@styled
def new_figure(width_in: float, height_in: float) -> Figure:
    """Empty figure that lays itself out; made without pyplot, so nothing global changes."""
    return Figure(figsize=(width_in, height_in), layout="constrained")


def round_axis(axes: Axes) -> None:
    """Make the horizontal axis one of rounds: whole numbers only."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    axes.set_xlabel(ROUND_LABEL)


def mark_every(points: int, marks: int = 12) -> int:
    """Step between markers along a line, more of which would hide it."""
    return max(1, -(-points // marks))


def plot_known(axes: Axes, x: np.ndarray, y: np.ndarray, look: Look, **keywords: Any) -> None:
    """Line through the points that are known; one on the frame is drawn whole."""
    known = np.isfinite(y)
    every = mark_every(known.sum())
    if known.any():
        keywords = {"markevery": every, "clip_on": False, **look, **keywords}
        axes.plot(x[known], y[known], **keywords)


def decades(values: np.ndarray) -> tuple[float, float]:
    """Powers of ten around positive values; a logarithmic axis numbers only those."""
    if not np.size(values):
        return 0.1, 1.0
    low, high = np.floor(np.log10(np.min(values))), np.ceil(np.log10(np.max(values)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def wide_axis(axes: Axes, which: str, values: np.ndarray) -> tuple[float, float]:
    """Scale of an axis of amounts: from 0, or logarithmic where they differ much.

    Infinite entries and those not above 0 do not count.

    Args:
      axes: panel.
      which: ``"x"`` or ``"y"``.
      values: what it shows.

    Returns:
      Limits of the axis.
    """
    positive = values[np.isfinite(values) & (values > 0)]
    top = positive.max(initial=0.0)
    if top <= _LOG_FROM * positive.min(initial=top):
        limits = 0.0, 1.05 * top or 1.0
        axes.set(**{f"{which}lim": limits})
        return limits
    margin = (positive.max() / positive.min()) ** _LOG_MARGIN
    limits = positive.min() / margin, positive.max() * margin
    if np.floor(np.log10(limits[1])) - np.ceil(np.log10(limits[0])) < 1:
        limits = decades(positive)  # at least two powers of ten are numbered
    axes.set(**{f"{which}scale": "log"})
    if limits[0] >= 1e-3 and limits[1] < _PLAIN_BELOW:
        getattr(axes, f"{which}axis").set_major_formatter("{x:g}")
    axes.set(**{f"{which}lim": limits})
    return limits


def stretched_axis(axes: Axes, top: float) -> float:
    """Vertical scale from 0 to a top: linear, or linear to 1 and logarithmic above.

    Returns:
      Upper end of the axis.
    """
    end = 1.08 * top
    if top > _STRETCHED_FROM:
        end = 2.0 * top
        linear = max(1.0, 0.1 * np.log10(end))  # in decades: room for a tick at 0 and at 1
        axes.set_yscale("symlog", linthresh=1.0, linscale=linear)
        axes.yaxis.get_major_locator().set_params(numticks=6)
        if top < _PLAIN_BELOW:
            axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylim(0.0, end)
    return end


def legend_above(axes: Axes) -> None:
    """Legend on top of a panel, where it hides no data."""
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, borderaxespad=0.2)


def say_empty(axes: Axes, words: str) -> None:
    """Say in a panel why it has no data."""
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color=GREY)


@styled
def save(figure: Figure, out_dir: str | Path, name: str) -> list[Path]:
    """Write a figure as ``name.pdf`` and ``name.png``, of 300 dots per inch, in a folder.

    The same figure gives the same bytes: no date is written.
    """
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    pdf, png = folder / f"{name}.pdf", folder / f"{name}.png"
    figure.savefig(pdf, metadata={"CreationDate": None})
    figure.savefig(png, metadata={"Software": None})
    return [pdf, png]
