"""A sweep whose points have names in place of numbers: one row a point."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.sweep_files import SweepResult
from figures import style
from figures.comparison import horizon, kept
from figures.rows import separate_rows
from figures.scales import wide_axis
from figures.sweep_points import Panel, sweep_panels

METRICS = ("latency_s", "compute_latency_s", "energy_j", "device_memory_bytes")
_POLICY_IN = 0.055  # of a row
_SPREAD = 0.8  # of a row, that its policies take


@style.styled
def draw(result: SweepResult, statistic: str) -> Figure:
    """Draw one panel an amount; in a row policies stand below one another.

    Args:
      result: a sweep with names.
      statistic: ``"median"`` or ``"mean"`` over networks.
    """
    told = sweep_panels(result, statistic)
    told = {metric: told[metric] for metric in METRICS}
    policies = list(told["latency_s"].told)
    row_in = max(0.2, _POLICY_IN * len(policies))
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 1.0 + row_in * len(result.values))
    panels = figure.subplots(
        1, len(told), sharey=True, width_ratios=[1.6, *[1.0] * (len(told) - 1)]
    )
    for axes, panel in zip(panels, told.values(), strict=True):
        _rows(axes, panel)
        axes.set_xlabel(panel.label)
    _name_points(panels[0], result)
    panels[0].set_title(f"{statistic} over {horizon(kept(result.points[0]))}", loc="left")
    figure.legend(
        handles=style.policy_handles(policies, joined=False), loc="outside upper center", ncols=4
    )
    return figure


def _rows(axes: Axes, panel: Panel) -> None:
    """Markers of all policies on their intervals."""
    limits = wide_axis(axes, "x", panel.limited_by())
    offsets = _SPREAD * ((np.arange(len(panel.told)) + 0.5) / len(panel.told) - 0.5)
    looks = style.policy_looks(panel.told)
    for (name, estimate), offset in zip(panel.told.items(), offsets, strict=True):
        each = estimate.within(limits)
        rows = np.arange(each.value.size) + offset
        axes.hlines(rows, each.low, each.high, color=looks[name].color, linewidth=0.7)
        axes.plot(each.value, rows, clip_on=False, **looks[name].alone()._asdict())


def _name_points(axes: Axes, result: SweepResult) -> None:
    """Names on the shared vertical axis, the first on top."""
    count = len(result.values)
    axes.set_yticks(range(count), labels=result.values)
    axes.set_ylim(count - 0.5, -0.5)
    axes.set_ylabel(result.axis)
    for panel in axes.figure.axes:
        panel.tick_params(axis="y", length=0)
        separate_rows(panel, count)
