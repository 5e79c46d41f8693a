"""A lower bound on the price of any shares and powers, by CVXPY and Clarabel.

In logarithms of shares and powers everything in (P2) is an exponential of something
affine, or a convex function of a message's log SINR (docs/system-model.md, section 5). The
former are cones that Clarabel knows. The latter, the log of a rate, the hazard and the
inverse survival, are replaced by maxima of tangents, which lie below them. Nothing else
is relaxed: interference, the coupling by powers and all maxima are exact. Tangents are
added where the last solution lies until the bound meets a price, so that it comes to lie
at the optimum itself.
"""

import contextlib
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from collapipe_jax.cost.round import price

from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round_cost import RoundCost
from collapipe_jax.errors import InputError
from experiments.benchmarks.solver.conic_program import HAZARDS, Points, Variables, conic_program
from experiments.benchmarks.solver.layout_numbers import Layout, layout_numbers
from experiments.benchmarks.solver.outside_solvers import OutsideSolution, in_double
from experiments.benchmarks.solver.tangents import block_hazard, tangents

try:
    import clarabel  # noqa: F401  CVXPY finds it by itself, if it is there
    import cvxpy as cp
except ModuleNotFoundError:  # optional packages; told when they are asked for
    cp = None

_LOG_SINRS = (-4.0, -2.0, 0.0, 2.0, 4.0)  # over the gap of the code; tangents are always there
_LATEST = 4  # tangents kept at solutions
_CLOSE = 1e-7  # of bound and price, relative: settled
_TOLERANCE = 1e-9  # of Clarabel

_price = jax.jit(price)


class OutsideBound(NamedTuple):
    """What CVXPY found.

    Attributes:
      lower_bound: no shares and powers cost less with these segments and micro-batches.
      solution: the best point that the bounds came with, or the decision itself.
    """

    lower_bound: float
    solution: OutsideSolution


def lower_bound_with_cvxpy(
    problem: RoundProblem, decision: Decision, rounds: int = 10
) -> OutsideBound:
    """Bound (P2) from below over all shares and powers.

    The value is that of the dual, which is a bound whether or not the solver converged,
    less what the dual's residual may be worth. If the decision is optimal the first round
    settles it.

    Args:
      problem: one round of one network.
      decision: segments and micro-batches to keep; the first tangents touch at its shares
        and powers, which must be positive where used.
      rounds: at most so many, each with new tangents.
    """
    if cp is None:
        raise InputError(
            "cvxpy", None, "the package or its solver is missing", 'Run pip install -e ".[bench]"'
        )
    with jax.enable_x64(True):
        problem, decision = in_double(problem), in_double(decision)
        layout = layout_numbers(problem, decision)
        points = _first_points(problem, layout, decision)
        start = OutsideSolution(decision, float(_price(problem, decision).objective))
        best = OutsideBound(-np.inf, start)
        for _ in range(rounds):
            scale = _price(problem, best.solution.decision)
            bound, variables = _solve(problem, layout, points, scale)
            best = best._replace(lower_bound=max(bound, best.lower_bound))
            if variables.hazard.value is None:  # the solver failed; what is known stands
                break
            found = _realise(problem, decision, layout, variables)
            if found.objective < best.solution.objective:
                best = best._replace(solution=found)
            if best.lower_bound >= (1.0 - _CLOSE) * best.solution.objective:
                break
            points = _with_more(points, variables)
    return best


def _solve(
    problem: RoundProblem, layout: Layout, points: Points, scale: RoundCost
) -> tuple[float, Variables]:
    """Bound by the conic program whose tangents touch at the points; as for `conic_program`."""
    program, variables = conic_program(problem, layout, points, scale)
    value = float(scale.objective) * _dual_value(program)
    return value + float(layout.whole.fixed_price), variables


def _dual_value(program) -> float:
    """Value of the dual at what Clarabel returns, less what its residual may be worth.

    For any multipliers ``z`` of the cones, ``q x >= -b z + (A' z + q) x`` at a feasible
    ``x``, which is taken to lie within twice the size of the solution.
    """
    options = {
        "tol_gap_abs": _TOLERANCE,
        "tol_gap_rel": _TOLERANCE,
        "tol_feas": _TOLERANCE,
        "max_threads": 1,
        "accept_unknown": True,
    }
    data, chain, inverse = program.get_problem_data(cp.CLARABEL, solver_opts=options)
    solution = chain.solve_via_data(program, data, solver_opts=options)
    with warnings.catch_warnings(), contextlib.suppress(cp.SolverError):
        warnings.simplefilter("ignore")  # an inaccurate solution still makes a bound
        program.unpack_results(solution, chain, inverse)
    x, z = np.asarray(solution.x), np.asarray(solution.z)
    residual = data["A"].T @ z + data["c"]
    offset = inverse[-1][cp.settings.OFFSET]
    value = float(offset - data["b"] @ z - 2.0 * np.abs(residual) @ (1.0 + np.abs(x)))
    return value if np.isfinite(value) else -np.inf


def _realise(
    problem: RoundProblem, decision: Decision, layout: Layout, variables: Variables
) -> OutsideSolution:
    """The shares and powers of a solution, inside the limits, with their price."""

    def spread(log, used):
        values = np.zeros(used.shape)
        values[used] = np.exp(np.minimum(log.value, 0.0))
        return values

    d2d_share = spread(variables.d2d_share, layout.active)
    d2e_share = spread(variables.d2e_share, layout.present)
    radio = problem.radio
    found = decision.replace(
        d2d_share=jnp.asarray(d2d_share / np.maximum(d2d_share.sum(1, keepdims=True), 1.0)),
        d2d_power_w=spread(variables.d2d_power, layout.active) * radio.d2d_power_max_w,
        d2e_share=jnp.asarray(d2e_share / max(d2e_share.sum(), 1.0)),
        d2e_power_w=spread(variables.d2e_power, layout.present) * radio.d2e_power_max_w,
    )
    return OutsideSolution(found, float(_price(problem, found).objective))


def _first_points(problem: RoundProblem, layout: Layout, decision: Decision) -> Points:
    """At the decision, and on a grid."""
    chains, radio = layout.chains, problem.radio
    share = np.asarray(decision.d2d_share)[layout.active]
    power = np.asarray(decision.d2d_power_w / radio.d2d_power_max_w)[layout.active]
    noise = np.log1p(power @ layout.heard)
    d2d = chains.sends @ np.log(power) - chains.shares @ np.log(share) - chains.hears @ noise
    up = decision.d2e_power_w / radio.d2e_power_max_w / decision.d2e_share
    up = np.log(np.asarray(up)[layout.present])
    log_sinr = np.log(layout.message.sinr) + np.concatenate([d2d, up])
    of_block = tangents(block_hazard, problem, [log_sinr])[0].value
    trip = chains.forward + chains.backward
    hazard = trip @ (layout.message.blocks * of_block) + layout.cluster.downlink_hazard
    at_gap = np.log(float(radio.snr_gap))
    return Points(
        [log_sinr, *(np.full_like(log_sinr, x + at_gap) for x in _LOG_SINRS)],
        [hazard, *(np.full_like(hazard, x) for x in (0.0, *HAZARDS))],
    )


def _with_more(points: Points, variables: Variables) -> Points:
    """Tangents at a solution added; of more than a few, nearly parallel, Clarabel tires."""
    first = 1 + len(_LOG_SINRS), 2 + len(HAZARDS)
    found = variables.log_sinr.value, variables.hazard.value
    return Points(
        *(
            [*kept[:count], *kept[count:][1 - _LATEST :], point]
            for kept, count, point in zip(points, first, found, strict=True)
        )
    )
