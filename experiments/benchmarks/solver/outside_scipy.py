"""Shares and powers of a fixed partition by SciPy, in double precision.

It gets the smooth program of :mod:`epigraph`, interference in full, one network at a time.
"""

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

from collapipe_jax.cost.decision import Decision, active_nodes, participates
from collapipe_jax.cost.evaluate import evaluate
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.errors import InputError
from experiments.benchmarks.solver.epigraph import (
    bounds,
    decision_at,
    derivatives,
    fix,
    hessian,
    point_of,
    unravel,
    used_entries,
)
from experiments.benchmarks.solver.networks import in_double

METHODS = {
    "SLSQP": {"maxiter": 1500, "ftol": 1e-10},
    # A gtol that can be met ends it before its barrier has come down. Sparse is as fast as
    # dense, and does not share so small a matrix among threads.
    "trust-constr": {
        "maxiter": 400,
        "gtol": 1e-14,
        "xtol": 1e-6,
        "barrier_tol": 1e-8,
        "sparse_jacobian": True,
    },
}
"""Methods by name, with their options."""

_ROUNDING = 1e-6  # of a cap, in budgets


class OutsideSolution(NamedTuple):
    """Result of an outside solver.

    Attributes:
      decision: feasible, in double precision.
      objective: of the decision, docs/system-model.md (P2).
    """

    decision: Decision
    objective: float


evaluate_compiled = jax.jit(evaluate)


def solve_with_scipy(
    problem: RoundProblem,
    decision: Decision,
    method: str = "SLSQP",
    starts: int = 1,
    smooth: bool = True,
    capped: bool = False,
) -> OutsideSolution:
    """Shares and powers by SciPy, the best of several starts.

    Args:
      problem: one round of one network.
      decision: the partition, and the first start.
      method: one of :data:`METHODS`; "trust-constr" with exact Hessians.
      starts: number; those after the first are the decision's shares and powers, perturbed
        at random.
      smooth: as in :func:`.epigraph.program`. False is several times faster, and often a
        little off.
      capped: no node may spend more than its budget; the decision must keep that.

    Returns:
      The best point, never worse than the decision.

    Raises:
      InputError: if the method is unknown.
    """
    if method not in METHODS:
        raise InputError("method", method, "unknown method", f"Choose among: {', '.join(METHODS)}")
    with jax.enable_x64(True):
        problem, decision = in_double(problem), in_double(decision)
        best = OutsideSolution(decision, float(evaluate_compiled(problem, decision).objective))
        rng = np.random.default_rng(0)
        for attempt in range(starts):
            start = decision if attempt == 0 else _perturbed(rng, problem, decision)
            found = _Reduced(problem, start, smooth, capped).solve(method)
            cost = evaluate_compiled(problem, found)
            use = jnp.max(cost.energy_j / problem.control.energy_budget_j)
            kept = not capped or use <= 1.0 + _ROUNDING
            if float(cost.objective) < best.objective and kept:
                best = OutsideSolution(found, float(cost.objective))
    return best


class _Reduced:
    """The program in the variables that a partition uses."""

    def __init__(self, problem: RoundProblem, start: Decision, smooth: bool, capped: bool):
        self._problem, self._decision, self._smooth = problem, start, smooth
        self._fixed = fix(problem, start)
        self._variables, self._constraints = used_entries(self._fixed, smooth, capped)
        flat = np.asarray(point_of(problem, self._fixed, start))
        self._lower, self._upper = (limit[self._variables] for limit in bounds(self._fixed))
        self._start = np.clip(flat[self._variables], self._lower, self._upper)
        self._last = None

    def solve(self, method: str) -> Decision:
        """The decision that a method ends with."""
        constraints = optimize.NonlinearConstraint(
            lambda x: self._at(x)[2],
            0.0,
            np.inf,
            jac=lambda x: self._at(x)[3],
            hess=lambda x, multipliers: self._hessian(x, 0.0, multipliers),
        )
        with warnings.catch_warnings():
            # Singular Jacobians of redundant constraints; Hessians that SLSQP has no use for.
            warnings.simplefilter("ignore")
            found = optimize.minimize(
                lambda x: self._at(x)[0],
                self._start,
                jac=lambda x: self._at(x)[1],
                hess=lambda x: self._hessian(x, 1.0, 0.0),
                bounds=optimize.Bounds(self._lower, self._upper),
                constraints=constraints,
                method=method,
                options=METHODS[method],
            )
        logs = unravel(self._fixed, self._full(found.x)).logs
        return decision_at(self._problem, self._fixed, self._decision, logs)

    def _full(self, x: np.ndarray) -> np.ndarray:
        """All variables, those that are not used 0."""
        flat = np.zeros(self._variables.size)
        flat[self._variables] = x
        return flat

    def _at(self, x: np.ndarray) -> tuple:
        """Objective, its slope, constraints, theirs; solvers ask for them one by one."""
        if self._last is None or not np.array_equal(self._last[0], x):
            at = self._problem, self._fixed, self._full(x)
            slopes, values = derivatives(*at, smooth=self._smooth)
            entries = np.ix_(self._constraints, self._variables)
            self._last = (
                x.copy(),
                float(values.objective),
                np.asarray(slopes.objective)[self._variables],
                np.asarray(values.constraints)[self._constraints],
                np.asarray(slopes.constraints)[entries],
            )
        return self._last[1:]

    def _hessian(self, x: np.ndarray, of_objective: float, of_constraints) -> np.ndarray:
        multipliers = np.zeros(1 + self._constraints.size)
        multipliers[0] = of_objective
        multipliers[1:][self._constraints] = of_constraints
        at = self._problem, self._fixed, self._full(x), multipliers
        second = np.asarray(hessian(*at, smooth=self._smooth))
        return second[np.ix_(self._variables, self._variables)]


def _perturbed(rng: np.random.Generator, problem: RoundProblem, decision: Decision) -> Decision:
    """Shares and powers of a decision, each off by a random factor, inside the limits."""

    def spread(value, used):
        return jnp.where(used, value * np.exp(rng.normal(size=value.shape)), 0.0)

    active, sends = active_nodes(decision.segments), participates(decision.segments)
    d2d_share, d2e_share = spread(decision.d2d_share, active), spread(decision.d2e_share, sends)
    d2d_total = jnp.sum(d2d_share, axis=1, keepdims=True)
    radio = problem.radio
    return decision.replace(
        d2d_share=d2d_share / jnp.where(d2d_total > 0, d2d_total, 1.0),
        d2d_power_w=jnp.minimum(spread(decision.d2d_power_w, active), radio.d2d_power_max_w),
        d2e_share=d2e_share / jnp.sum(d2e_share),
        d2e_power_w=jnp.minimum(spread(decision.d2e_power_w, sends), radio.d2e_power_max_w),
    )
