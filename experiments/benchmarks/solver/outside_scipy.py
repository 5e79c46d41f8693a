"""Shares and powers of a fixed partition by SciPy's SLSQP, in double precision.

The program is convex. Variables are logarithms of shares and powers, and of the longest stages
and the round's latency: a rule for :func:`.round_terms` puts a variable in the place of a
maximum and makes its entries constraints. Only the kink of a message's time at the ceiling of
modulation is left in, as variables for it treble the size and bring next to nothing. All else
is the package's own cost, interference in full; derivatives are by automatic differentiation.
"""

import functools
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from scipy import optimize

from collapipe_jax.edge.cost.decision import (
    Allocation,
    Decision,
    active_nodes,
    decision_partition,
    make_decision,
    participates,
)
from collapipe_jax.edge.cost.evaluate import evaluate, node_energy_j, round_terms
from collapipe_jax.edge.cost.fixed_partition import FixedPartition, fix_decision
from collapipe_jax.edge.cost.maximum import HardMax, Maximum
from collapipe_jax.edge.cost.objective import drift_plus_penalty
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.solver.limits import to_allocation, to_logs
from experiments.double_precision import in_double

_OPTIONS = {"maxiter": 1500, "ftol": 1e-10}
_RANGE = 30.0  # of logarithms
_ROUNDING = 1e-6  # of a cap, in budgets


class OutsideSolution(NamedTuple):
    """A feasible decision of an outside solver, and its objective by the package."""

    decision: Decision
    objective: float


evaluate_compiled = jax.jit(evaluate)


def solve_with_scipy(
    problem: RoundProblem, decision: Decision, starts: int = 1, capped: bool = False
) -> OutsideSolution:
    """The best shares and powers of several starts, never worse than the decision.

    Args:
      problem: one round of one network.
      decision: the partition, and the first start; the others are perturbed at random.
      starts: number.
      capped: no node may spend more than its budget; the decision must keep that.
    """
    with jax.enable_x64(True):
        problem, decision = in_double(problem), in_double(decision)
        fixed = fix(problem, decision)
        best = OutsideSolution(decision, float(evaluate_compiled(problem, decision).objective))
        rng = np.random.default_rng(0)
        for attempt in range(starts):
            start = decision if attempt == 0 else _perturbed(rng, problem, decision)
            logs = _minimise(problem, fixed, start, capped)
            found = decision_at(fixed, decision, logs)
            cost = evaluate_compiled(problem, found)
            use = jnp.max(cost.energy_j / problem.control.energy_budget_j)
            kept = not capped or use <= 1.0 + _ROUNDING
            if float(cost.objective) < best.objective and kept:
                best = OutsideSolution(found, float(cost.objective))
    return best


@jax.jit
def fix(problem: RoundProblem, decision: Decision) -> FixedPartition:
    """The partition of a decision, its allocation aside."""
    with jax.numpy_rank_promotion("allow"):
        return fix_decision(problem, decision)


@jax.jit
def decision_at(fixed: FixedPartition, decision: Decision, logs: Allocation) -> Decision:
    """The decision at logarithms that may leave the limits by a little, brought inside."""
    partition = decision_partition(decision)
    inside = jax.tree.map(lambda leaf: jnp.minimum(leaf, 0.0), logs)
    with jax.numpy_rank_promotion("allow"):
        allocation = to_allocation(fixed, inside)
        found = make_decision(*partition, allocation, fixed.chain.used)
    d2d_total = jnp.sum(found.d2d_share, axis=1, keepdims=True)
    return found.replace(
        d2d_share=found.d2d_share / jnp.maximum(d2d_total, 1.0),
        d2e_share=found.d2e_share / jnp.maximum(jnp.sum(found.d2e_share), 1.0),
    )


class Maxima(NamedTuple):
    """A number for the longest stage of either flow, ``[N]``, and for the round's latency."""

    forward: Array
    backward: Array
    latency: Array


class Point(NamedTuple):
    """Logarithms of shares, of powers over their maxima, and of maxima; 0 where unused."""

    logs: Allocation
    maxima: Maxima


class Program(NamedTuple):
    """Logarithm of the objective, and constraints, flat."""

    objective: Array
    constraints: Array


class _Epigraph(HardMax):
    """Rule: variables for longest stages, with the constraints by their entries in ``slack``.

    Without variables maxima are exact, and ``log`` collects their logarithms.
    """

    def __init__(self, maxima: Maxima | None = None):
        self.maxima, self.slack, self.log = maxima, {}, {}

    def over(self, name: str, values: Array) -> Maximum:
        if self.maxima is None:
            exact = super().over(name, values)
            self.log[name] = _log(exact.value)
            return exact
        log = getattr(self.maxima, name)
        self.slack[name] = log - _log(values)
        return Maximum(jnp.exp(log), None)


def _log(values: Array) -> Array:
    """Logarithm, 0 of what is 0, with finite slopes."""
    return jnp.where(values > 0, jnp.log(jnp.where(values > 0, values, 1.0)), 0.0)


def _template(fixed: FixedPartition) -> Point:
    node = jnp.zeros(fixed.active.shape)
    logs = Allocation(node, node, node[0], node[0])
    return Point(logs, Maxima(node[0], node[0], jnp.zeros(())))


def program(problem: RoundProblem, fixed: FixedPartition, flat: Array) -> Program:
    """Objective and constraints at a :class:`Point`, raveled."""
    with jax.numpy_rank_promotion("allow"):
        point = ravel_pytree(_template(fixed))[1](flat)
        rule, allocation = _Epigraph(point.maxima), to_allocation(fixed, point.logs)
        terms = round_terms(fixed, allocation, rule)
        rule.slack["latency"] = point.maxima.latency - _log(terms.cluster_latency_s)
        latency_s = jnp.exp(point.maxima.latency)
        objective = drift_plus_penalty(fixed.costs, latency_s, terms.cluster_cost)
        budget_j = jnp.swapaxes(problem.control.energy_budget_j, 0, 1)
        shares = jax.tree.map(jnp.multiply, fixed.chain.used, allocation)
        constraints = (  # each 0 or more
            1.0 - jnp.sum(shares.d2d_share, axis=0),  # remaining part of the bands, [N]
            1.0 - jnp.sum(shares.d2e_share),
            Maxima(**rule.slack),  # logarithm of a maximum over each of its entries
            _log(budget_j) - _log(node_energy_j(fixed, terms)),  # [P, N]; of use with caps
        )
    # The logarithm is convex too, and has slopes of one size on any link.
    return Program(jnp.log(objective), ravel_pytree(constraints)[0])


@jax.jit
def derivatives(problem: RoundProblem, fixed: FixedPartition, flat: Array) -> tuple:
    """Derivatives of :func:`program` by every variable, and its values."""

    def values(flat):
        out = program(problem, fixed, flat)
        return out, out

    return jax.jacrev(values, has_aux=True)(flat)


@jax.jit
def point_of(fixed: FixedPartition, decision: Decision) -> Array:
    """The :class:`Point` of a decision, its maxima tight, raveled."""
    with jax.numpy_rank_promotion("allow"):
        logs, rule = to_logs(fixed, decision), _Epigraph()
        terms = round_terms(fixed, to_allocation(fixed, logs), rule)
    latency = jnp.log(jnp.max(terms.cluster_latency_s))
    return ravel_pytree(Point(logs, Maxima(**rule.log, latency=latency)))[0]


def used_entries(fixed: FixedPartition, capped: bool) -> tuple[np.ndarray, np.ndarray]:
    """Masks of the variables and of the constraints that a partition uses, flat."""
    active, always = np.asarray(fixed.active), np.array(True)
    sends = active[0]
    waits = sends & np.asarray(fixed.micro_batches > 1)
    stages = waits & np.concatenate([active, [sends, sends]])
    point = Point(Allocation(active, active, sends, sends), Maxima(waits, waits, always))
    entries = Maxima(stages, stages, sends)
    constraints = sends, always, entries, active & capped
    return tuple(np.asarray(ravel_pytree(tree)[0]) for tree in (point, constraints))


def _minimise(
    problem: RoundProblem, fixed: FixedPartition, start: Decision, capped: bool
) -> Allocation:
    """One run of SLSQP in the variables that the partition uses."""
    variables, constraints = used_entries(fixed, capped)
    zero = _template(fixed)
    upper = zero._replace(maxima=jax.tree.map(lambda leaf: leaf + _RANGE, zero.maxima))
    upper = np.asarray(ravel_pytree(upper)[0])[variables]
    lower = np.full_like(upper, -_RANGE)
    first = np.asarray(point_of(fixed, start))[variables]
    entries = np.ix_(constraints, variables)

    def full(x):
        flat = np.zeros(variables.size)
        flat[variables] = x
        return flat

    @functools.lru_cache(maxsize=1)  # SciPy asks for values and slopes one by one
    def at(x_bytes):
        flat = full(np.frombuffer(x_bytes))
        slopes, values = jax.device_get(derivatives(problem, fixed, flat))
        objective = float(values.objective), slopes.objective[variables]
        return objective, (values.constraints[constraints], slopes.constraints[entries])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # steps a little over the limits are clipped
        found = optimize.minimize(
            lambda x: at(x.tobytes())[0],
            np.clip(first, lower, upper),
            jac=True,
            bounds=optimize.Bounds(lower, upper),
            constraints={
                "type": "ineq",
                "fun": lambda x: at(x.tobytes())[1][0],
                "jac": lambda x: at(x.tobytes())[1][1],
            },
            method="SLSQP",
            options=_OPTIONS,
        )
    return ravel_pytree(zero)[1](jnp.asarray(full(found.x))).logs


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
