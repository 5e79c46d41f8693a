"""Mean and median over networks with their 95 % confidence intervals."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats

from experiments.intervals import mean_interval


class Estimate(NamedTuple):
    """A number and the ends of its interval, nan where unknown; arrays of one shape."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def within(self, limits: tuple[float, float]) -> "Estimate":
        """The same with the ends of the interval moved to the limits of an axis."""
        return self._replace(low=np.clip(self.low, *limits), high=np.clip(self.high, *limits))


def mean_estimate(values: np.ndarray) -> Estimate:
    """Mean with Student's interval over the first axis, ``values [R, ...]``.

    Unknown where a value is not finite. Few heavy-tailed values make the interval reach
    below 0, or miss more often than it says.
    """
    return _over_networks(_mean, values)


def median_estimate(values: np.ndarray) -> Estimate:
    """Median over the first axis with the interval between two order statistics.

    The interval holds for any distribution, infinite values included; it is unknown for
    fewer than 6 values, and an infinite median counts as unknown.

    Args:
      values: ``[R, ...]``.
    """
    return _over_networks(_median, values)


def _over_networks(estimate: Callable, values: np.ndarray) -> Estimate:
    return Estimate(*np.apply_along_axis(estimate, 0, np.asarray(values, np.float64)))


def _mean(values: np.ndarray) -> np.ndarray:
    told = mean_interval(values)
    mean, half = (np.nan if part is None else part for part in (told["mean"], told["ci95"]))
    return np.array([mean, mean - half, mean + half])


def _median(values: np.ndarray) -> np.ndarray:
    """Median, and the narrowest symmetric ranks of a sign test at 5 %."""
    ordered = np.sort(values)
    if np.isnan(ordered).any() or not np.isfinite(median := _middle(ordered)):
        return np.full(3, np.nan)
    rank = int(stats.binom.ppf(0.025, ordered.size, 0.5))
    ends = (ordered[rank - 1], ordered[-rank]) if rank else (np.nan, np.nan)
    return np.array([median, *ends])


def _middle(ordered: np.ndarray) -> float:
    """Median of sorted values; nan between two infinities."""
    below, above = ordered[(ordered.size - 1) // 2], ordered[ordered.size // 2]
    return below if below == above else 0.5 * (below + above)
