"""SciPy's decisions against the package's, on the package's own cost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.feasibility import is_feasible
from collapipe_jax.edge.solver.allocate import allocate
from experiments.benchmarks.solver.outside_scipy import (
    derivatives,
    fix,
    point_of,
    solve_with_scipy,
    used_entries,
)
from experiments.double_precision import in_double

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(case):
    return solve_with_scipy(*case, starts=2)


@pytest.mark.usefixtures("x64")
def test_a_solution_is_feasible_and_better_than_its_start(case, found):
    problem, start = in_double(case)
    assert jax.jit(is_feasible)(problem, found.decision)
    assert float(jax.jit(evaluate)(problem, found.decision).objective) == found.objective
    assert found.objective < 0.999 * float(jax.jit(evaluate)(problem, start).objective)
    np.testing.assert_array_equal(found.decision.segments, start.segments)


@pytest.mark.usefixtures("x64")
def test_the_package_finds_the_same_objective(case, found):
    ours = jax.jit(allocate, static_argnames="steps")(*in_double(case), steps=200)
    assert float(ours.objective) == pytest.approx(found.objective, rel=1e-4)
    assert float(ours.lower_bound) <= found.objective * (1 + 1e-9)


@pytest.mark.usefixtures("x64")
def test_caps_are_kept_and_cost_something(case):
    problem, start = in_double(case)
    low = start.replace(d2d_power_w=0.1 * start.d2d_power_w, d2e_power_w=0.1 * start.d2e_power_w)
    cost, control = jax.jit(evaluate), problem.control
    energy_j = cost(problem, low).energy_j
    budget_j = np.where(energy_j > 0, energy_j, control.energy_budget_j)
    capped = problem.replace(
        control=control.replace(energy_budget_j=budget_j, energy_queue=0.0 * energy_j)
    )
    found = solve_with_scipy(capped, low, capped=True)
    use = np.asarray(cost(capped, found.decision).energy_j / budget_j)
    assert 0.99 < use.max() <= 1.0 + 2e-6
    free = solve_with_scipy(capped, low)
    assert free.objective < found.objective < float(cost(capped, low).objective)
    assert np.max(cost(capped, free.decision).energy_j / budget_j) > 1.1


@pytest.mark.usefixtures("x64")
def test_the_program_is_tight_at_a_decision_and_convex(case):
    problem, start = in_double(case)
    fixed = fix(problem, start)
    flat = np.asarray(point_of(fixed, start))
    used, kept = used_entries(fixed, capped=True)
    slopes, values = derivatives(problem, fixed, flat)
    log_objective = float(jnp.log(jax.jit(evaluate)(problem, start).objective))
    assert float(values.objective) == pytest.approx(log_objective, abs=1e-12)
    uncapped = used_entries(fixed, capped=False)[1]
    least = np.asarray(values.constraints)[uncapped].min()
    assert least == pytest.approx(0.0, abs=1e-7)  # the start's shares are in single precision
    rng = np.random.default_rng(0)
    for size in (0.01, 0.3, 2.0):
        move = np.where(used, -np.abs(rng.normal(size=flat.shape)), 0.0) * size
        there = derivatives(problem, fixed, flat + move)[1]
        assert float(there.objective) >= float(values.objective + slopes.objective @ move) - 1e-9
        tangent = np.asarray(values.constraints + slopes.constraints @ move)
        assert np.all(np.asarray(there.constraints)[kept] <= tangent[kept] + 1e-9)
