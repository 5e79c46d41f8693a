"""Means and medians with 95 % confidence intervals, and paired savings."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import special  # scipy.stats takes a second to import

_RESAMPLES = 2_000

Interval = dict[str, float | None]
"""``mean`` and ``ci95``, the half width of its 95 % interval; None where unknown."""


class Estimate(NamedTuple):
    """A number and the ends of its interval, nan where unknown; arrays of one shape."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def within(self, limits: tuple[float, float]) -> "Estimate":
        """The same estimate with its interval clipped to the limits of an axis."""
        return self._replace(low=np.clip(self.low, *limits), high=np.clip(self.high, *limits))


def running_mean(values: np.ndarray) -> np.ndarray:
    """Mean over the rounds so far, along the first axis."""
    rounds = np.arange(1, len(values) + 1).reshape(-1, *[1] * (values.ndim - 1))
    return np.cumsum(values, axis=0) / rounds


def mean_interval(values: np.ndarray) -> Interval:
    """Mean and half width of its 95 % confidence interval by Student's t; ``values [R]``.

    Both are unknown where a value is not finite, the half width also of a single value.
    """
    values = np.asarray(values, np.float64)
    if not np.all(np.isfinite(values)) or values.size == 0:
        return {"mean": None, "ci95": None}
    mean, half = float(values.mean()), None
    if values.size > 1:
        deviation = values.std(ddof=1) / np.sqrt(values.size)
        half = float(special.stdtrit(values.size - 1, 0.975) * deviation)
    return {"mean": mean, "ci95": half}


def interval_text(interval: Mapping[str, float | None], form: str = "{:.3g}") -> str:
    """Mean and half width as text, the latter where it is known."""
    if interval["mean"] is None:
        return "?"
    mean = form.format(interval["mean"])
    if interval["ci95"] is None:
        return mean
    return f"{mean} ± {form.replace('+', '').format(interval['ci95'])}"


def median_text(summary: Mapping[str, Any]) -> str:
    """Median with the ends of its interval as text, the latter where they are known."""
    text, (low, high) = number_text(summary["median"]), summary["median_ci95"]
    return (
        text if low is None or high is None else f"{text} [{number_text(low)}, {number_text(high)}]"
    )


def number_text(value: float | None) -> str:
    """A number to 3 digits, without an exponent up to a million; ``?`` where unknown."""
    if value is None:
        return "?"
    digits = f"{value:.3g}"
    return f"{float(digits):,.0f}" if 1e3 <= abs(value) < 1e6 else digits


def mean_estimate(values: np.ndarray) -> Estimate:
    """Mean with Student's interval over the first axis, ``values [R, ...]``.

    Unknown where a value is not finite. Few heavy-tailed values make the interval reach
    below 0, or miss more often than it says.
    """
    return _over_first_axis(_mean, values)


def median_estimate(values: np.ndarray) -> Estimate:
    """Median with the interval between two order statistics, over the first axis.

    The interval of ``values [R, ...]`` holds for any distribution, infinite values included. It
    is unknown for fewer than 6 values, and an infinite median, or that of nothing, is unknown.
    """
    return _over_first_axis(_median, values)


def _over_first_axis(estimate: Callable, values: np.ndarray) -> Estimate:
    return Estimate(*np.apply_along_axis(estimate, 0, np.asarray(values, np.float64)))


def _mean(values: np.ndarray) -> np.ndarray:
    interval = mean_interval(values)
    mean, half = (np.nan if part is None else part for part in interval.values())
    return np.array([mean, mean - half, mean + half])


def _median(values: np.ndarray) -> np.ndarray:
    """Median, and the narrowest symmetric ranks of a sign test at 5 %."""
    ordered = np.sort(values)
    if values.size == 0 or not np.isfinite(median := np.median(ordered)):
        return np.full(3, np.nan)
    chances = special.bdtr(np.arange(ordered.size + 1), ordered.size, 0.5)
    rank = int(np.searchsorted(chances, 0.025))
    ends = (ordered[rank - 1], ordered[-rank]) if rank else (np.nan, np.nan)
    return np.array([median, *ends])


def reduction_percent(ours: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Paired reduction of ours under the other, in percent of the other, ``[R]``.

    100 where the other alone is infinite; nan where ours is, or both are 0.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        reduction = 100.0 * (1.0 - ours / other)
    return np.where(np.isfinite(ours), reduction, np.nan)


def median_reduction(ours: np.ndarray, other: np.ndarray) -> Estimate:
    """Reduction of the median of ours under that of the other, in percent of the other.

    The interval is that of the 2.5 % and 97.5 % quantiles of a bootstrap of the pairs, ``[R]``
    each. Where a median of ours is infinite, the reduction is minus infinity.
    """
    drawn = np.random.default_rng(0).integers(len(ours), size=(_RESAMPLES, len(ours)))

    def reduction(rows: np.ndarray) -> np.ndarray:
        medians = np.median(ours[rows], axis=-1), np.median(other[rows], axis=-1)
        return np.nan_to_num(reduction_percent(*medians), nan=-np.inf, neginf=-np.inf)

    ends = np.quantile(reduction(drawn), (0.025, 0.975), method="inverted_cdf")
    return Estimate(reduction(np.arange(len(ours))), *ends)


def log_slope(x: np.ndarray, y: np.ndarray) -> float:
    """Slope of a line through the logarithms; nan through fewer than two positive points."""
    use = (x > 0) & (y > 0)
    if use.sum() < 2:
        return float("nan")
    return float(np.polyfit(np.log(x[use]), np.log(y[use]), 1)[0])
