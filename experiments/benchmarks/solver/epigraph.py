"""The continuous part of (P2) as a smooth convex program, for solvers of other people.

The partition is fixed. Variables are logarithms of shares and powers, and one more for every
maximum of a round: a rule for :func:`.round_terms` puts it in the place of the maximum and
turns the entries into constraints. All else is the package's own cost, and derivatives are
by automatic differentiation.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from collapipe_jax.allocation.variables import to_allocation, to_logs
from collapipe_jax.cost.decision import Allocation, Decision, make_decision
from collapipe_jax.cost.energy import node_energy_j
from collapipe_jax.cost.fixed_partition import FixedPartition, fix_partition
from collapipe_jax.cost.maximum import Maximum, hard_max
from collapipe_jax.cost.objective import drift_plus_penalty
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round_terms import round_terms

_RANGE = 30.0  # of logarithms


class Maxima(NamedTuple):
    """One number for every maximum; as variables, their logarithms.

    Attributes:
      hop, move, uplink: time of a bit over that at the ceiling of modulation, ``[2, P, N]``,
        ``[2, K, N]`` and ``[N]``.
      forward, backward: longest stage of either flow, ``[N]``.
      latency: of the round.
    """

    hop: Array
    move: Array
    uplink: Array
    forward: Array
    backward: Array
    latency: Array


class Point(NamedTuple):
    """Logarithms of shares, of powers over their maxima, and of maxima; 0 where unused."""

    logs: Allocation
    maxima: Maxima


class Constraints(NamedTuple):
    """Left sides of constraints of the form ``g >= 0``.

    Attributes:
      d2d_band, d2e_band: remaining part of a band, ``[N]`` and scalar.
      maxima: logarithm of a maximum over each of its entries.
      energy: logarithm of a node's budget over its energy, ``[P, N]``; of use with caps.
    """

    d2d_band: Array
    d2e_band: Array
    maxima: Maxima
    energy: Array


class Program(NamedTuple):
    """Logarithm of the objective, and constraints, flat."""

    objective: Array
    constraints: Array


class _Epigraph:
    """Maxima as variables. The logarithms over their entries are collected in ``slack``."""

    def __init__(self, maxima: Maxima, smooth: bool):
        self.maxima, self.smooth, self.slack = maxima, smooth, {}

    def pair(self, name: str, first: Array, second: Array) -> Maximum:
        log = getattr(self.maxima, name)
        self.slack[name] = log - jnp.log(first / second)  # that over the second is a bound
        exact = hard_max.pair(name, first, second)
        return Maximum(second * jnp.exp(log), None) if self.smooth else exact

    def over(self, name: str, values: Array) -> Maximum:
        log = getattr(self.maxima, name)
        self.slack[name] = log - _log(values)
        return Maximum(jnp.exp(log), None)


class _Tight:
    """Maxima as they are, whose logarithms are collected."""

    def __init__(self):
        self.log = {}

    def pair(self, name: str, first: Array, second: Array) -> Maximum:
        maximum = hard_max.pair(name, first, second)
        self.log[name] = jnp.log(maximum.value / second)
        return maximum

    def over(self, name: str, values: Array) -> Maximum:
        maximum = hard_max.over(name, values)
        self.log[name] = _log(maximum.value)
        return maximum


def _log(values: Array) -> Array:
    """Logarithm, 0 of what is 0, with finite slopes."""
    return jnp.where(values > 0, jnp.log(jnp.where(values > 0, values, 1.0)), 0.0)


def _template(fixed: FixedPartition) -> Point:
    node, hop = jnp.zeros(fixed.active.shape), jnp.zeros((2, *fixed.active.shape))
    cluster = node[0]
    maxima = Maxima(hop, hop[:, 1:], cluster, cluster, cluster, jnp.zeros(()))
    return Point(Allocation(node, node, cluster, cluster), maxima)


def unravel(fixed: FixedPartition, flat: Array) -> Point:
    """A flat array as a point."""
    return ravel_pytree(_template(fixed))[1](flat)


@jax.jit
def fix(problem: RoundProblem, decision: Decision) -> FixedPartition:
    """The partition of a decision, its allocation aside."""
    with jax.numpy_rank_promotion("allow"):
        return fix_partition(problem, decision.segments, decision.micro_batches)


def program(
    problem: RoundProblem, fixed: FixedPartition, flat: Array, smooth: bool = True
) -> Program:
    """Objective and constraints at a point.

    Args:
      problem: one round of one network.
      fixed: its partition.
      flat: a :class:`Point`, raveled.
      smooth: whether times of a bit are variables. False leaves the kinks at the ceiling of
        modulation in, for a third of the size.
    """
    with jax.numpy_rank_promotion("allow"):
        point = unravel(fixed, flat)
        rule = _Epigraph(point.maxima, smooth)
        allocation = to_allocation(problem, point.logs)
        terms = round_terms(fixed, allocation, rule)
        log_latency = point.maxima.latency
        rule.slack["latency"] = log_latency - _log(terms.cluster_latency_s)
        latency_s = jnp.exp(log_latency)
        objective = drift_plus_penalty(fixed.costs, latency_s, terms.cluster_cost)
        budget_j = jnp.swapaxes(problem.control.energy_budget_j, 0, 1)
        d2d_share = jnp.where(fixed.active, allocation.d2d_share, 0.0)
        d2e_share = jnp.where(fixed.active[0], allocation.d2e_share, 0.0)
        constraints = Constraints(
            d2d_band=1.0 - jnp.sum(d2d_share, axis=0),
            d2e_band=1.0 - jnp.sum(d2e_share),
            maxima=Maxima(**rule.slack),
            energy=_log(budget_j) - _log(node_energy_j(fixed, terms.message_j)),
        )
    # The logarithm is convex too, and has slopes of one size on any link.
    return Program(jnp.log(objective), ravel_pytree(constraints)[0])


@functools.partial(jax.jit, static_argnames="smooth")
def derivatives(
    problem: RoundProblem, fixed: FixedPartition, flat: Array, smooth: bool = True
) -> tuple[Program, Program]:
    """Derivatives of :func:`program` by every variable, and values."""

    def values(flat):
        out = program(problem, fixed, flat, smooth)
        return out, out

    return jax.jacrev(values, has_aux=True)(flat)


@functools.partial(jax.jit, static_argnames="smooth")
def hessian(
    problem: RoundProblem,
    fixed: FixedPartition,
    flat: Array,
    multipliers: Array,
    smooth: bool = True,
) -> Array:
    """Second derivatives of objective and constraints, in this order, times multipliers."""

    def value(flat):
        out = program(problem, fixed, flat, smooth)
        return multipliers[0] * out.objective + multipliers[1:] @ out.constraints

    return jax.hessian(value)(flat)


def used_entries(
    fixed: FixedPartition, smooth: bool = True, capped: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Masks of the variables and of the constraints that a partition uses, flat.

    Args:
      fixed: the partition.
      smooth: as in :func:`program`.
      capped: whether budgets are caps.
    """
    active, participates = fixed.active, fixed.active[0]
    waits = participates & (fixed.micro_batches > 1)
    hop = jnp.stack([active, active]) & smooth
    maxima = Maxima(hop, hop[:, 1:], hop[0, 0], waits, waits, jnp.array(True))
    stages = waits & jnp.concatenate([active, participates[None], participates[None]])
    entries = maxima._replace(forward=stages, backward=stages, latency=participates)
    point = Point(Allocation(active, active, participates, participates), maxima)
    constraints = Constraints(participates, jnp.array(True), entries, active & capped)
    return tuple(np.asarray(ravel_pytree(tree)[0]) for tree in (point, constraints))


@jax.jit
def point_of(problem: RoundProblem, fixed: FixedPartition, decision: Decision) -> Array:
    """The :class:`Point` of a decision, its maxima tight, flat."""
    with jax.numpy_rank_promotion("allow"):
        logs = to_logs(problem, fixed.active, decision)
        rule = _Tight()
        terms = round_terms(fixed, to_allocation(problem, logs), rule)
    latency = jnp.log(jnp.max(terms.cluster_latency_s))
    return ravel_pytree(Point(logs, Maxima(**rule.log, latency=latency)))[0]


def bounds(fixed: FixedPartition) -> tuple[np.ndarray, np.ndarray]:
    """Least and largest value of every variable, flat."""
    point = _template(fixed)
    at_ceiling = {name: getattr(point.maxima, name) for name in ("hop", "move", "uplink")}
    lower = jax.tree.map(lambda leaf: leaf - _RANGE, point)
    lower = lower._replace(maxima=lower.maxima._replace(**at_ceiling))
    upper = point._replace(maxima=jax.tree.map(lambda leaf: leaf + _RANGE, point.maxima))
    return tuple(np.asarray(ravel_pytree(tree)[0]) for tree in (lower, upper))


@jax.jit
def decision_at(
    problem: RoundProblem, fixed: FixedPartition, decision: Decision, logs: Allocation
) -> Decision:
    """The decision at a point that may leave the limits by a little, brought inside.

    Args:
      problem: one round of one network.
      fixed: its partition.
      decision: with this partition.
      logs: logarithms of shares, and of powers over their maxima.
    """
    inside = jax.tree.map(lambda leaf: jnp.minimum(leaf, 0.0), logs)
    with jax.numpy_rank_promotion("allow"):
        found = make_decision(
            decision.segments,
            decision.micro_batches,
            to_allocation(problem, inside),
            fixed.active,
        )
    d2d_total = jnp.sum(found.d2d_share, axis=1, keepdims=True)
    return found.replace(
        d2d_share=found.d2d_share / jnp.maximum(d2d_total, 1.0),
        d2e_share=found.d2e_share / jnp.maximum(jnp.sum(found.d2e_share), 1.0),
    )
