"""Amounts against what a sweep changes, one line a policy.

    python -m figures.sweep --workdir=DIR [--out=DIR]

Reads the files of ``experiments.sweep`` and writes ``sweep`` with medians over networks and
``sweep_mean`` with means, each as PDF and PNG. Intervals are of 95 %, of a median between two
order statistics, of a mean by Student's t; an interval that leaves a panel ends at its frame.
A network counts with its mean over the rounds. Points of a value stand side by side, lest
intervals hide one another. Axes of amounts are logarithmic where these differ by more than a
factor of 30. A point whose value is infinite has no marker. Where links are bad, mean
latencies rest on few networks, so read the medians first. A sweep whose points have names
gets a row a point.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collapipe_jax.command_line import run_reporting_errors
from experiments.sweep_files import SweepResult, load_sweep
from figures import choices, style
from figures.command_line import out_dir, print_paths, result_parser
from figures.comparison import horizon, kept
from figures.scales import wide_axis
from figures.sweep_points import Panel, sweep_panels

_FILES = {"median": "sweep", "mean": "sweep_mean"}
_SPREAD = 0.45  # of the gap between two values, that points of one take
_MOST_TICKS = 8  # values that are all written on the axis


@style.styled
def draw(result: SweepResult, statistic: str = "median") -> Figure:
    """Draw latency at the left and, smaller, the other amounts.

    Args:
      result: a sweep.
      statistic: ``"median"`` or ``"mean"`` over networks.
    """
    if isinstance(result.values[0], str):
        return choices.draw(result, statistic)
    told = sweep_panels(result, statistic)
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 3.7)
    grid = figure.add_gridspec(2, 3, width_ratios=[1.35, 1.0, 1.0])
    places = (grid[:, 0], grid[0, 1], grid[0, 2], grid[1, 1], grid[1, 2])
    for panel, place in zip(told.values(), places, strict=True):
        axes = figure.add_subplot(place)
        _swept_axis(axes, result, labelled=place.rowspan.stop == 2)
        _overlay(axes, side_by_side(result, len(panel.told)), panel)
        axes.set_ylabel(panel.label)
    figure.axes[0].set_title(f"{statistic} over {horizon(kept(result.points[0]))}", loc="left")
    handles = style.policy_handles(told["latency_s"].told)
    figure.legend(handles=handles, loc="outside upper center", ncols=4)
    return figure


def is_log(result: SweepResult) -> bool:
    """Whether the swept values stand on a logarithmic axis."""
    return result.log and min(result.values) > 0


def side_by_side(result: SweepResult, policies: int) -> np.ndarray:
    """Where the points of every policy stand, around the values, ``[policies, points]``."""
    values = np.array(result.values, np.float64)
    place = np.log(values) if is_log(result) else values
    gap = np.diff(np.sort(place)).min() if place.size > 1 else np.log(2.0)
    offsets = _SPREAD * gap * ((np.arange(policies) + 0.5) / policies - 0.5)
    places = place + offsets[:, None]
    return np.exp(places) if is_log(result) else places


def _overlay(axes: Axes, places: np.ndarray, panel: Panel) -> None:
    """Lines of all policies with their intervals."""
    limits = wide_axis(axes, "y", panel.limited_by())
    if not np.isfinite(panel.limited_by()).any():
        style.say_empty(axes, "no finite value")
    looks = style.policy_looks(panel.told)
    for place, (name, estimate) in zip(places, panel.told.items(), strict=True):
        each = estimate.within(limits)
        error = np.nan_to_num([each.value - each.low, each.high - each.value])
        axes.errorbar(
            place,
            each.value,
            yerr=np.maximum(error, 0.0),
            capsize=1.0,
            elinewidth=0.7,
            **looks[name]._asdict(),
        )


def _swept_axis(axes: Axes, result: SweepResult, labelled: bool) -> None:
    """Scale and ticks of what is swept; its unit where it has one."""
    if is_log(result):
        axes.set_xscale("log")
    if len(result.values) <= _MOST_TICKS:
        axes.set_xticks(result.values, labels=[f"{value:g}" for value in result.values])
        axes.set_xticks([], minor=True)
    if labelled:
        has_unit = result.axis.rstrip().endswith("]")
        axes.set_xlabel(result.axis if has_unit else f"{result.axis} [–]")
    else:
        axes.tick_params(labelbottom=False)


def draw_and_save(result: SweepResult, folder: str | Path) -> list[Path]:
    """Write both figures, and tell their paths."""
    return [
        path
        for statistic, name in _FILES.items()
        for path in style.save(draw(result, statistic), folder, name)
    ]


def main(argv: Sequence[str]) -> None:
    """Draw both figures from the sweep on file."""
    options = result_parser(__doc__, "experiments.sweep").parse_args(argv)
    print_paths(draw_and_save(load_sweep(options.workdir[0]), out_dir(options)))


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
