"""Outside solvers agree with one another, and with the package's own."""

import importlib

import jax
import numpy as np
import pytest
from collapipe_jax.cost.round import price
from support.random_problems import pick, plain_problems

from collapipe_jax.allocation.allocate import tune_resources
from collapipe_jax.cost.feasibility import is_feasible
from collapipe_jax.cost.static_pipeline import static_pipeline
from collapipe_jax.errors import InputError
from experiments.benchmarks.solver import (
    conic_program,
    outside_bound,
    outside_solvers,
    smooth_form,
    smooth_variables,
)
from experiments.benchmarks.solver.outside_bound import lower_bound_with_cvxpy
from experiments.benchmarks.solver.outside_solvers import in_double, solve_with_scipy

pytestmark = pytest.mark.slow  # of benchmarks


@pytest.fixture(scope="module")
def case():
    problem = pick(plain_problems(1, clusters=2, devices=2, blocks=4), 0)
    return problem, jax.jit(static_pipeline, static_argnums=1)(problem, 6)


@pytest.fixture(scope="module")
def slsqp(case):
    return solve_with_scipy(*case, "SLSQP", starts=2)


@pytest.mark.usefixtures("x64")
def test_a_solution_is_feasible_and_better_than_its_start(case, slsqp):
    problem, start = in_double(case)
    assert jax.jit(is_feasible)(problem, slsqp.decision)
    cost = jax.jit(price)(problem, slsqp.decision)
    assert float(cost.objective) == slsqp.objective
    assert slsqp.objective < 0.999 * float(jax.jit(price)(problem, start).objective)
    np.testing.assert_array_equal(slsqp.decision.segments, start.segments)


@pytest.mark.usefixtures("x64")
def test_caps_are_kept_and_cost_something(case, slsqp):
    problem, start = in_double(case)
    low = start.replace(d2d_power_w=0.1 * start.d2d_power_w, d2e_power_w=0.1 * start.d2e_power_w)
    priced = jax.jit(price)
    spent_j = priced(problem, low).energy_j
    control = problem.control
    budget_j = np.where(spent_j > 0, spent_j, control.energy_budget_j)
    capped = problem.replace(
        control=control.replace(energy_budget_j=budget_j, energy_queue=0.0 * spent_j)
    )
    found = solve_with_scipy(capped, low, "SLSQP", capped=True)
    use = np.asarray(priced(capped, found.decision).energy_j / budget_j)
    assert 0.99 < use.max() <= 1.0 + 2e-6
    free = solve_with_scipy(capped, low, "SLSQP")
    assert free.objective < found.objective < float(priced(capped, low).objective)
    assert np.max(priced(capped, free.decision).energy_j / budget_j) > 1.1


def test_two_methods_agree(case, slsqp):
    trust = solve_with_scipy(*case, "trust-constr")
    assert trust.objective == pytest.approx(slsqp.objective, rel=2e-5)


@pytest.mark.usefixtures("x64")
def test_slsqp_is_not_worse_than_the_package(case, slsqp):
    problem, start = in_double(case)
    tuned = jax.jit(tune_resources, static_argnames="steps")(problem, start, steps=200)
    assert slsqp.objective <= float(tuned.objective) * (1 + 1e-4)


def test_the_bound_lies_just_below(case, slsqp):
    pytest.importorskip("cvxpy", reason="an optional package")
    pytest.importorskip("clarabel", reason="an optional package")
    at_optimum = lower_bound_with_cvxpy(case[0], slsqp.decision, rounds=1)
    assert 1 - 1e-5 < at_optimum.lower_bound / slsqp.objective <= 1 + 1e-9
    from_start = lower_bound_with_cvxpy(*case, rounds=4)
    assert 1 - 1e-3 < from_start.lower_bound / slsqp.objective <= 1 + 1e-9
    assert from_start.solution.objective == pytest.approx(slsqp.objective, rel=1e-3)


@pytest.mark.usefixtures("x64")
def test_the_smooth_form_is_tight_at_a_decision(case):
    problem, start = in_double(case)
    flat = jax.jit(smooth_variables.variables_of)(problem, start)
    _, kept = smooth_form.used_entries(start)
    _, values = smooth_form.evaluate(problem, start, flat, True)
    log_objective = float(np.log(jax.jit(price)(problem, start).objective))
    assert float(values.objective) == pytest.approx(log_objective, abs=1e-12)
    least = np.asarray(values.constraints)[kept].min()
    assert least == pytest.approx(0.0, abs=1e-7)  # the start's shares are in single precision
    back = jax.jit(smooth_variables.decision_of)(problem, start, flat)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7), back, start)


def test_wrong_requests_are_told(case, monkeypatch):
    with pytest.raises(InputError, match="SLSQP"):
        solve_with_scipy(*case, "newton")
    monkeypatch.setattr(outside_solvers, "optimize", None)
    monkeypatch.setattr(outside_bound, "cp", None)
    for solve in (solve_with_scipy, lower_bound_with_cvxpy):
        with pytest.raises(InputError, match="bench"):
            solve(*case)


@pytest.mark.parametrize("module", [outside_bound, conic_program])
def test_the_modules_import_without_optional_packages(module, monkeypatch):
    """They are named in the error, and nothing else of the package needs them."""
    monkeypatch.setitem(importlib.sys.modules, "cvxpy", None)
    assert importlib.reload(module).cp is None
    monkeypatch.undo()
    importlib.reload(module)
