"""What ``dssra`` saves against every other policy, in percent and network by network.

A dot is by how much the mean over the rounds of ``dssra`` lies under that of the other policy
in the same network; below 0 ``dssra`` needs more. Memory is of the device that holds most.
Intervals are those of figures.policies. A saving cannot pass 100 %, but a loss has no end, so
an axis that falls below -100 % by far is logarithmic there.
"""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.statistics import reduction_percent
from collapipe_jax.runs.figures import style
from collapipe_jax.runs.figures.comparison import (
    ROW_IN,
    draw_rows,
    horizon,
    name_rows,
    only_runnable,
    row_legend,
)
from collapipe_jax.runs.results.realisations import Realisations
from collapipe_jax.runs.studies.comparison import OURS, round_means

TITLES = {
    "latency_s": "latency",
    "compute_latency_s": "compute latency",
    "device_memory_bytes": "device memory",
    "energy_j": "energy",
}
_LEAST_LOW = -20.0  # of an axis, so that one of equal policies is not empty


def can_reduce(result: Realisations) -> bool:
    """Whether the comparison has ``dssra`` and another policy."""
    return OURS in result.policies and len(result.policies) > 1


def reductions(result: Realisations) -> dict[str, dict[str, np.ndarray]]:
    """Reductions in percent by metric and other policy, ``[R]``.

    Raises:
      InputError: if the comparison lacks ``dssra``, or has nothing else.
    """
    if not can_reduce(result):
        problem = f"no reduction to draw without {OURS} and another policy in the comparison"
        remedy = "Compare again with both in --policies"
        raise InputError("--policies", ",".join(result.policies), problem, remedy)
    others = round_means(only_runnable(result))
    ours = others.pop(OURS)
    return {
        metric: {
            name: reduction_percent(ours[metric], other[metric]) for name, other in others.items()
        }
        for metric in TITLES
    }


@style.styled
def draw(result: Realisations) -> Figure:
    """Draw one panel a metric; rows are the other policies."""
    panels = reductions(result)
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 1.0 + ROW_IN * (len(result.policies) - 1))
    drawn = figure.subplots(1, len(panels))
    for axes, (metric, values) in zip(drawn, panels.items(), strict=True):
        draw_rows(axes, values, _percent_axis(axes, values))
        name_rows(axes, list(values), labelled=axes is drawn[0])
        axes.axvline(0.0, **style.RULE)
        axes.set_title(TITLES[metric], loc="left")
        axes.set_xlabel(f"{OURS} saves [%]")
    row_legend(figure, "no difference", horizon(only_runnable(result)))
    return figure


def _percent_axis(axes: Axes, values: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """Linear above -100 %, logarithmic below where something lies there; the limits."""
    every = np.concatenate(list(values.values()))
    lowest = np.min(every, where=np.isfinite(every), initial=_LEAST_LOW)
    if lowest >= -100.0:
        limits = lowest - 0.06 * (100.0 - lowest), 105.0
    else:
        limits = 1.3 * lowest, 120.0
        axes.set_xscale("symlog", linthresh=100.0, linscale=1.0)
        farthest = -(10.0 ** np.floor(np.log10(-lowest)))
        axes.xaxis.set_major_locator(FixedLocator([farthest, 0.0, 100.0]))
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(*limits)
    return limits
