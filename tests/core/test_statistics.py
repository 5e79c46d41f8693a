"""Means, medians and their intervals against closed forms and SciPy."""

import math

import numpy as np
import pytest
from scipy import stats

from collapipe_jax.core.statistics import (
    interval_text,
    log_slope,
    mean_estimate,
    mean_interval,
    median_estimate,
    median_reduction,
    reduction_percent,
)


@pytest.mark.parametrize("count", range(1, 60))
def test_interval_of_a_median_is_the_narrowest_between_ranks_that_holds(count):
    values = np.random.default_rng(count).permutation(np.arange(1.0, count + 1))
    told = median_estimate(values)
    assert told.value == np.median(values)

    def coverage(rank):  # of the interval from the rank-th smallest to the rank-th largest
        return 1 - 2 * sum(math.comb(count, below) for below in range(rank)) / 2**count

    if count < 6:
        assert np.isnan(told.low)
        assert np.isnan(told.high)
        return
    rank = int(told.low)
    assert told.high == count + 1 - rank
    assert coverage(rank) >= 0.95 > coverage(rank + 1)


def test_estimates_of_infinite_values():
    values = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, np.inf])
    assert np.isnan(mean_estimate(values).value)
    told = median_estimate(values)
    assert (told.value, told.low, told.high) == (4.0, 1.0, np.inf)
    assert told.within((0.0, 10.0)).high == 10.0
    assert np.isnan(median_estimate(np.array([1.0, np.inf, np.inf])).value)
    assert np.isnan(median_estimate(np.array([1.0, np.nan, 2.0])).value)


def test_mean_interval_is_students():
    values = np.random.default_rng(0).normal(size=(9, 4))
    told = mean_estimate(values)
    expected = stats.t.interval(0.95, 8, values.mean(axis=0), stats.sem(values, axis=0))
    np.testing.assert_allclose([told.low, told.high], expected)
    single = mean_estimate(values[:1])
    np.testing.assert_array_equal(single.value, values[0])
    assert np.isnan(single.low).all()


def test_intervals_of_too_few_or_infinite_values_are_unknown():
    assert mean_interval(np.array([2.0])) == {"mean": 2.0, "ci95": None}
    assert mean_interval(np.array([2.0, np.inf])) == {"mean": None, "ci95": None}
    assert mean_interval(np.array([])) == {"mean": None, "ci95": None}


@pytest.mark.parametrize(
    ("mean", "ci95", "form", "text"),
    [
        (1.2345, 0.0678, "{:.3g}", "1.23 ± 0.0678"),
        (2.0, 0.5, "{:+.1f}", "+2.0 ± 0.5"),
        (2.0, None, "{:.0f}", "2"),
        (None, None, "{:.0f}", "?"),
    ],
)
def test_intervals_as_text(mean, ci95, form, text):
    assert interval_text({"mean": mean, "ci95": ci95}, form) == text


def test_reduction_where_one_is_infinite():
    ours, other = np.array([1.0, np.inf, 1.0]), np.array([np.inf, 1.0, 4.0])
    np.testing.assert_array_equal(reduction_percent(ours, other), [100.0, np.nan, 75.0])


def test_a_slope_is_that_of_a_power_law_through_its_positive_points():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    assert log_slope(x, 3.0 * x**-1.5) == pytest.approx(-1.5)
    assert log_slope(x, np.array([0.0, 4.0, 16.0, 64.0])) == pytest.approx(2.0)
    assert np.isnan(log_slope(x, np.array([0.0, 0.0, 1.0, -1.0])))


def test_reduction_of_a_median_is_within_its_bootstrap_interval():
    rng = np.random.default_rng(0)
    ours, other = rng.lognormal(size=(2, 101))
    told = median_reduction(ours, other)
    assert told.value == pytest.approx(100 * (1 - np.median(ours) / np.median(other)))
    pairs = stats.bootstrap(
        (ours, other),
        lambda one, two, axis: 100 * (1 - np.median(one, axis) / np.median(two, axis)),
        paired=True,
        vectorized=True,
        method="percentile",
        rng=rng,
    )
    np.testing.assert_allclose(told[1:], pairs.confidence_interval, atol=6.0)
    exact = median_reduction(ours, 4 * ours)  # pairs are drawn together
    np.testing.assert_allclose(exact, 75.0)


def test_an_infinite_median_loses():
    told = median_reduction(np.full(5, np.inf), np.ones(5))
    assert set(told) == {-np.inf}
