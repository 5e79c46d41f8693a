"""Excess of searches over the best of all of them."""

import numpy as np

from experiments.benchmarks.solver.effort import summarise


def test_excess_is_over_the_best_of_all_where_one_is_finite():
    objectives = {
        "short": np.array([1.0, 2.01, np.inf, 0.0]),
        "long": np.array([1.1, 2.0, np.inf, 0.0]),
    }
    found = summarise(objectives)
    assert list(found["short"]) == ["over 0.1 %", "over 1 %", "mean", "largest"]
    np.testing.assert_allclose(list(found["short"].values()), [0.5, 0.0, 0.0025, 0.005], rtol=1e-6)
    np.testing.assert_allclose(list(found["long"].values()), [0.5, 0.5, 0.05, 0.1], rtol=1e-6)
