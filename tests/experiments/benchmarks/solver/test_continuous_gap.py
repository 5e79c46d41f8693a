"""Wrong certificates and objectives below a bound do not pass."""

import pytest

from experiments.benchmarks.solver.continuous_gap import contradictions, summarise

GOOD = {"objective": 10.00001, "feasible": True, "lower_bound": 9.99, "residual": 0, "status": 0}


def row(**ours):
    double = GOOD | ours
    return {"network": 3, "scipy": 10.0, "bound": 9.9999999, "loss": 0.1, "float32": GOOD} | {
        "float64": double
    }


def test_a_sound_row_passes():
    assert contradictions([row()]) == []


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"lower_bound": 10.0001}, "certificate above an objective"),
        ({"objective": 9.999}, "objective below the bound"),
        ({"feasible": False}, "not feasible"),
    ],
)
def test_a_corrupted_answer_is_caught(wrong, problem):
    assert {"network": 3, "float64": problem} in contradictions([row(**wrong)])


def test_a_corrupted_bound_is_caught():
    assert contradictions([row() | {"bound": 10.01}])


def test_heavy_losses_are_summarised_apart():
    rows = [row(), row(objective=10.02), row() | {"loss": 0.95}]
    summary = summarise(rows)
    assert [one["networks"] for one in summary.values()] == [2, 2, 1, 1]
    assert summary["float64"]["worse_than_scipy"] == 1
    assert summary["float64"]["ours_over_scipy"]["max"] == pytest.approx(2e-3)
    assert summary["float64"]["status"] == {"0": 2}
