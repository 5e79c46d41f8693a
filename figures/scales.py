"""Scales and limits of axes whose values may differ by orders of magnitude."""

import numpy as np
from matplotlib.axes import Axes

_LOG_FROM = 30.0  # between the largest and the smallest, from which on an axis is logarithmic
_LOG_MARGIN = 0.04  # of a logarithmic axis, on either side of the values
_STRETCHED_FROM = 10.0  # above this a linear axis would flatten what matters, around 1
_PLAIN_BELOW = 1e5  # from here on ticks are written as powers


def decades(values: np.ndarray) -> tuple[float, float]:
    """Powers of ten around positive values; a logarithmic axis numbers only those."""
    if not np.size(values):
        return 0.1, 1.0
    low, high = np.floor(np.log10(np.min(values))), np.ceil(np.log10(np.max(values)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def wide_axis(axes: Axes, which: str, values: np.ndarray) -> tuple[float, float]:
    """Scale of an axis of amounts: from 0, or logarithmic where they differ much.

    Args:
      axes: panel.
      which: ``"x"`` or ``"y"``.
      values: what it shows; infinite entries and those not above 0 do not count.

    Returns:
      Limits of the axis.
    """
    positive = values[np.isfinite(values) & (values > 0)]
    top = positive.max(initial=0.0)
    if top <= _LOG_FROM * positive.min(initial=top):
        limits = 0.0, 1.05 * top or 1.0
        axes.set(**{f"{which}lim": limits})
        return limits
    limits = _log_limits(positive)
    axes.set(**{f"{which}scale": "log"})
    if limits[0] >= 1e-3 and limits[1] < _PLAIN_BELOW:
        getattr(axes, f"{which}axis").set_major_formatter("{x:g}")
    axes.set(**{f"{which}lim": limits})
    return limits


def _log_limits(positive: np.ndarray) -> tuple[float, float]:
    """Close around the values where two powers of ten lie between, else those around them."""
    margin = (positive.max() / positive.min()) ** _LOG_MARGIN
    low, high = positive.min() / margin, positive.max() * margin
    between = np.floor(np.log10(high)) - np.ceil(np.log10(low))
    return (low, high) if between >= 1 else decades(positive)


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
