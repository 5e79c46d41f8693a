"""Amounts against what a sweep changes, one line a policy.

    python -m figures.sweep --workdir=DIR [--out=DIR]

Reads the files of ``experiments.sweep`` and writes ``sweep`` with medians over networks and
``sweep_mean`` with means, each as PDF and PNG. Intervals are of 95 %, of a median between two
order statistics, of a mean by Student's t; an interval that leaves a panel ends at its frame.
A network counts with its mean over the rounds. Points of a value stand side by side, lest
intervals hide one another. Vertical axes are logarithmic where values
differ by more than a factor of 30. A point whose value is infinite has no marker. Latency
means rest on few networks where links are bad, so read the medians first.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from collapipe_jax.command_line import run_reporting_errors
from experiments.sweep_files import SweepResult, load_sweep
from figures import style
from figures.command_line import out_dir, print_paths, result_parser
from figures.comparison import horizon, kept, round_means
from figures.estimates import Estimate, mean_estimate, median_estimate

STATISTICS = {"median": median_estimate, "mean": mean_estimate}
_FILES = {"median": "sweep", "mean": "sweep_mean"}
_SPREAD = 0.45  # of the gap between two values, that points of one take
_MOST_TICKS = 8  # values that are all written on the axis


def lines(
    result: SweepResult, estimate: Callable[[np.ndarray], Estimate]
) -> dict[str, dict[str, Estimate]]:
    """Estimates over the networks at every point.

    Args:
      result: a sweep.
      estimate: mean or median.

    Returns:
      By metric and policy, arrays ``[points]``.
    """
    points = [round_means(kept(point)) for point in result.points]
    metrics = next(iter(points[0].values()))
    told = {}
    for metric in metrics:
        told[metric] = {}
        for name in points[0]:
            parts = [estimate(point[name][metric]) for point in points]
            told[metric][name] = Estimate(*map(np.stack, zip(*parts, strict=True)))
    return told


@style.styled
def draw(result: SweepResult, statistic: str = "median") -> Figure:
    """Draw latency at the left and, smaller, the other amounts.

    Args:
      result: a sweep.
      statistic: ``"median"`` or ``"mean"`` over networks.
    """
    told = lines(result, STATISTICS[statistic])
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 3.7)
    grid = figure.add_gridspec(2, 3, width_ratios=[1.35, 1.0, 1.0])
    memory = np.concatenate([each.value for each in told["device_memory_bytes"].values()])
    unit_bytes, unit = style.memory_unit(np.max(memory, where=np.isfinite(memory), initial=0.0))
    panels = {
        "latency_s": (grid[:, 0], 1.0, "Latency of a round [s]"),
        "compute_latency_s": (grid[0, 1], 1.0, "Compute latency [s]"),
        "energy_j": (grid[0, 2], 1.0, "Energy of a round [J]"),
        "device_memory_bytes": (grid[1, 1], unit_bytes, f"Fullest device [{unit}]"),
        "divergence_over_target": (grid[1, 2], 1.0, "Divergence / target [–]"),
    }
    for metric, (place, scale, label) in panels.items():
        axes = figure.add_subplot(place)
        scaled = {
            name: Estimate(*(part / scale for part in each)) for name, each in told[metric].items()
        }
        _swept_axis(axes, result, labelled=place.rowspan.stop == 2)
        _overlay(axes, side_by_side(result, len(scaled)), scaled)
        axes.set_ylabel(label)
    figure.axes[0].set_title(f"{statistic} over {horizon(kept(result.points[0]))}", loc="left")
    _legend(figure, told["latency_s"])
    return figure


def is_log(result: SweepResult) -> bool:
    """Whether the swept values stand on a logarithmic axis."""
    return result.log and min(result.values) > 0


def side_by_side(result: SweepResult, policies: int) -> np.ndarray:
    """Where the points of every policy stand, around the values, ``[policies, points]``."""
    values = np.array(result.values, np.float64)
    place = np.log(values) if is_log(result) else values
    gap = np.diff(np.sort(place)).min() if place.size > 1 else 0.0
    offsets = _SPREAD * gap * ((np.arange(policies) + 0.5) / policies - 0.5)
    places = place + offsets[:, None]
    return np.exp(places) if is_log(result) else places


def _overlay(axes: Axes, places: np.ndarray, told: Mapping[str, Estimate]) -> None:
    """Lines of all policies with their intervals."""
    parts = [part for each in told.values() for part in (each.value, each.high)]
    limits = style.wide_axis(axes, "y", np.concatenate(parts))
    looks = style.policy_looks(told)
    for place, (name, estimate) in zip(places, told.items(), strict=True):
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


def _legend(figure: Figure, names: Mapping[str, Estimate]) -> None:
    handles = [
        Line2D([], [], label=style.policy_label(name), **look._asdict())
        for name, look in style.policy_looks(names).items()
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=4)


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
