"""Shares and powers by well-known outside solvers, to hold the package's own against.

Segments and micro-batches are fixed, and interference counts in full. SciPy gets the
smooth program with exact derivatives, one network at a time, in double precision.
"""

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from collapipe_jax.cost.round import price

from collapipe_jax.cost.decision import Decision, active_nodes, participates
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.errors import InputError
from experiments.benchmarks.solver.smooth_form import evaluate, hessian, used_entries
from experiments.benchmarks.solver.smooth_variables import bounds, decision_of, variables_of

try:
    from scipy import optimize
except ModuleNotFoundError:  # an optional package; told when it is asked for
    optimize = None

SCIPY_METHODS = ("SLSQP", "trust-constr")

_SLSQP_STEPS = 1500
_TRUST_STEPS = 400
_KEPT = 1e-6
"""Excess over a cap, in budgets, that is left to rounding."""


class OutsideSolution(NamedTuple):
    """What an outside solver found.

    Attributes:
      decision: feasible, in double precision.
      objective: its price by the package, docs/system-model.md (P2).
    """

    decision: Decision
    objective: float


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
      decision: segments and micro-batches to keep, and the first start.
      method: "SLSQP" or "trust-constr", the latter with exact Hessians.
      starts: how many; those after the first are the decision's shares and powers,
        perturbed at random.
      smooth: give every message's rate a variable of its own. False leaves the kinks at
        the ceiling of the modulation in: several times faster, and often a little off.
      capped: no node may spend more than its budget; the decision must keep that.

    Returns:
      The best point that was found, never worse than the decision.
    """
    if optimize is None:
        raise InputError("scipy", None, "the package is missing", 'Run pip install -e ".[bench]"')
    if method not in SCIPY_METHODS:
        known = ", ".join(SCIPY_METHODS)
        raise InputError("method", method, "unknown method", f"Choose among: {known}")
    with jax.enable_x64(True):
        problem, decision = in_double(problem), in_double(decision)
        best = OutsideSolution(decision, float(_price(problem, decision).objective))
        rng = np.random.default_rng(0)
        for attempt in range(starts):
            start = decision if attempt == 0 else _perturbed(rng, problem, decision)
            found = _solve(problem, start, method, smooth, capped)
            if found.objective < best.objective and not (capped and _over(problem, found)):
                best = found
    return best


def _over(problem: RoundProblem, solution: OutsideSolution) -> bool:
    """Whether a node spends more than its budget."""
    use = _price(problem, solution.decision).energy_j / problem.control.energy_budget_j
    return bool(jnp.max(use) > 1.0 + _KEPT)


def in_double(tree):
    """The same tree, its floating-point leaves in double precision."""

    def widen(leaf):
        leaf = np.asarray(leaf)
        return jnp.asarray(leaf.astype(float) if leaf.dtype.kind == "f" else leaf)

    return jax.tree.map(widen, tree)


@jax.jit
def _setting(problem, decision):
    return variables_of(problem, decision), *bounds(problem, decision)


_price = jax.jit(price)
_realise = jax.jit(decision_of)


class _Reduced:
    """The program in the variables that a layout uses, as SciPy wants it."""

    def __init__(self, problem: RoundProblem, decision: Decision, smooth: bool, capped: bool):
        self._problem, self._decision, self._smooth = problem, decision, smooth
        self._variables, self._constraints = used_entries(decision, smooth, capped)
        start, lower, upper = (np.array(x) for x in _setting(problem, decision))
        self._flat = np.where(self._variables, start, 0.0)
        self.lower, self.upper = lower[self._variables], upper[self._variables]
        self.start = np.clip(start[self._variables], self.lower, self.upper)
        self._seen = None

    def full(self, x: np.ndarray) -> np.ndarray:
        """All variables, those that are not used 0."""
        flat = self._flat.copy()
        flat[self._variables] = x
        return flat

    def _at(self, x: np.ndarray):
        """Values and derivatives; solvers ask for them one by one at the same point."""
        if self._seen is None or not np.array_equal(self._seen[0], x):
            slopes, values = evaluate(self._problem, self._decision, self.full(x), self._smooth)
            kept = np.ix_(self._constraints, self._variables)
            self._seen = (
                x.copy(),
                float(values.objective),
                np.asarray(slopes.objective)[self._variables],
                np.asarray(values.constraints)[self._constraints],
                np.asarray(slopes.constraints)[kept],
            )
        return self._seen

    def objective(self, x):
        return self._at(x)[1]

    def gradient(self, x):
        return self._at(x)[2]

    def constraints(self, x):
        return self._at(x)[3]

    def jacobian(self, x):
        return self._at(x)[4]

    def objective_hessian(self, x):
        return self._second(x, 1.0, 0.0)

    def constraint_hessian(self, x, multipliers):
        return self._second(x, 0.0, multipliers)

    def _second(self, x, of_objective, of_constraints):
        multipliers = np.zeros(1 + self._constraints.size)
        multipliers[0] = of_objective
        multipliers[1:][self._constraints] = of_constraints
        at = self._problem, self._decision, self.full(x)
        second = hessian(*at, multipliers, self._smooth)
        return np.asarray(second)[np.ix_(self._variables, self._variables)]


def _solve(
    problem: RoundProblem, start: Decision, method: str, smooth: bool, capped: bool
) -> OutsideSolution:
    """One run from one start."""
    reduced = _Reduced(problem, start, smooth, capped)
    run = _run_slsqp if method == "SLSQP" else _run_trust_constr
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # singular Jacobians of redundant constraints
        x = run(reduced)
    decision = _realise(problem, start, reduced.full(x))
    return OutsideSolution(decision, float(_price(problem, decision).objective))


def _run_slsqp(reduced: _Reduced) -> np.ndarray:
    return optimize.minimize(
        reduced.objective,
        reduced.start,
        jac=reduced.gradient,
        bounds=optimize.Bounds(reduced.lower, reduced.upper),
        constraints={"type": "ineq", "fun": reduced.constraints, "jac": reduced.jacobian},
        method="SLSQP",
        options={"maxiter": _SLSQP_STEPS, "ftol": 1e-10},
    ).x


def _run_trust_constr(reduced: _Reduced) -> np.ndarray:
    constraints = optimize.NonlinearConstraint(
        reduced.constraints,
        0.0,
        np.inf,
        jac=reduced.jacobian,
        hess=reduced.constraint_hessian,
    )
    return optimize.minimize(
        reduced.objective,
        reduced.start,
        jac=reduced.gradient,
        hess=reduced.objective_hessian,
        bounds=optimize.Bounds(reduced.lower, reduced.upper),
        constraints=constraints,
        method="trust-constr",
        options={
            "maxiter": _TRUST_STEPS,
            # A gtol that can be met ends it before its barrier has come down.
            "gtol": 1e-14,
            "xtol": 1e-6,
            "barrier_tol": 1e-8,
            # As fast as dense, and does not share so small a matrix among threads.
            "sparse_jacobian": True,
        },
    ).x


def _perturbed(rng: np.random.Generator, problem: RoundProblem, decision: Decision) -> Decision:
    """Shares and powers of a decision, each off by a random factor, inside the limits."""

    def spread(value, used):
        return jnp.where(used, value * np.exp(rng.normal(size=value.shape)), 0.0)

    active, present = active_nodes(decision.segments), participates(decision.segments)
    d2d_share = spread(decision.d2d_share, active)
    d2e_share = spread(decision.d2e_share, present)
    d2d_total = jnp.sum(d2d_share, axis=1, keepdims=True)
    return decision.replace(
        d2d_share=d2d_share / jnp.where(d2d_total > 0, d2d_total, 1.0),
        d2d_power_w=jnp.minimum(
            spread(decision.d2d_power_w, active), problem.radio.d2d_power_max_w
        ),
        d2e_share=d2e_share / jnp.sum(d2e_share),
        d2e_power_w=jnp.minimum(
            spread(decision.d2e_power_w, present), problem.radio.d2e_power_max_w
        ),
    )
