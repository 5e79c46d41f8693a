"""Means with their 95 % confidence intervals."""

import math

import numpy as np
from scipy import stats


def mean_interval(values: np.ndarray) -> dict[str, float | None]:
    """Mean and half width of its 95 % confidence interval by Student's t; ``values [R]``.

    The half width of fewer than two values is unknown, and so are both where a value is not
    finite.
    """
    values = np.asarray(values, np.float64)
    if not np.all(np.isfinite(values)) or values.size == 0:
        return {"mean": None, "ci95": None}
    if values.size == 1:
        return {"mean": float(values[0]), "ci95": None}
    deviation = values.std(ddof=1) / math.sqrt(values.size)
    half = stats.t.ppf(0.975, values.size - 1) * deviation
    return {"mean": float(values.mean()), "ci95": float(half)}
