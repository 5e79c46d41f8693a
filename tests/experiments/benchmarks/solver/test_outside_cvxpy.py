"""The bound by CVXPY is below every objective, and just below the best."""

import importlib

import numpy as np
import pytest

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.decision import Decision
from experiments.benchmarks.solver import outside_cvxpy
from experiments.benchmarks.solver.outside_cvxpy import lower_bound_with_cvxpy
from experiments.benchmarks.solver.outside_scipy import solve_with_scipy

needs_cvxpy = pytest.mark.skipif(outside_cvxpy.cp is None, reason="optional packages")


def check_bound(problem, start: Decision):
    best = solve_with_scipy(problem, start)
    at_best = lower_bound_with_cvxpy(problem, best.decision, rounds=4)
    assert at_best.solution.objective <= best.objective
    assert 1 - 1e-6 < at_best.lower_bound / at_best.solution.objective <= 1 + 1e-9
    assert at_best.lower_bound <= best.objective * (1 + 1e-9)
    from_start = lower_bound_with_cvxpy(problem, start)
    assert 1 - 1e-5 < from_start.lower_bound / best.objective <= 1 + 1e-9
    assert from_start.solution.objective == pytest.approx(best.objective, rel=1e-5)


@pytest.mark.slow
@needs_cvxpy
def test_the_bound_is_just_below(case):
    check_bound(*case)


@pytest.mark.slow
@needs_cvxpy
def test_clusters_that_sit_out_and_single_micro_batches(case):
    problem, start = case
    segments, counts = np.array(start.segments), np.array(start.micro_batches)
    segments[0] = [0, 4]
    counts[0] = 1
    check_bound(problem, start.replace(segments=segments, micro_batches=counts))
    segments[1] = 0
    allocation = {
        name: np.array(getattr(start, name))
        for name in ("d2d_share", "d2d_power_w", "d2e_share", "d2e_power_w")
    }
    for values in allocation.values():
        values[1] = 0.0
    check_bound(problem, start.replace(segments=segments, micro_batches=counts, **allocation))


@needs_cvxpy
def test_attempts_that_take_time_are_refused(case):
    problem, start = case
    problem = problem.replace(radio=problem.radio.replace(retransmissions="counted"))
    with pytest.raises(InputError, match="retransmissions"):
        lower_bound_with_cvxpy(problem, start)


def test_missing_packages_are_named(case, monkeypatch):
    monkeypatch.setattr(outside_cvxpy, "cp", None)
    with pytest.raises(InputError, match="bench"):
        lower_bound_with_cvxpy(*case)


def test_the_module_imports_without_optional_packages(monkeypatch):
    monkeypatch.setitem(importlib.sys.modules, "cvxpy", None)
    assert importlib.reload(outside_cvxpy).cp is None
    monkeypatch.undo()
    importlib.reload(outside_cvxpy)
