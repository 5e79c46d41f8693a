"""Shares and powers for given segments and micro-batches, with a certificate.

For a fixed layout (P2) has one optimum, found here by :mod:`descent` and certified by a
lower bound.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.allocation.chain_price import price_point
from collapipe_jax.allocation.projected_gradient import Descent, certify, descend
from collapipe_jax.allocation.variables import (
    Multipliers,
    PricedPoint,
    Resources,
    Surroundings,
    first_multipliers,
)
from collapipe_jax.batching import on_lanes
from collapipe_jax.cost.chains import Chains, chains
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round import price

OPTIMAL, STEP_LIMIT, NO_CLUSTER, BROKEN = range(4)
"""Why the solver stopped: within tolerance of the bound; out of steps; no cluster can run;
a message that cannot be sent makes every price infinite."""

TOLERANCE = 1e-3
"""Of the objective over its lower bound, relative, to call a point optimal."""


class Tuned(NamedTuple):
    """Shares and powers, and how good they are.

    Attributes:
      decision: what to do.
      objective: (P2).
      lower_bound: of (P2) over shares and powers, with these segments and micro-batches.
      residual: of the KKT conditions, relative to the objective.
      status: one of :data:`OPTIMAL`, ...
    """

    decision: Decision
    objective: Array
    lower_bound: Array
    residual: Array
    status: Array


def tune_resources(problem: RoundProblem, decision: Decision, steps: int = 200) -> Tuned:
    """Best shares and powers with segments and micro-batches as they are.

    Args:
      problem: one round of one network.
      decision: where to start; a share or power that is 0 where it is used starts small.
      steps: gradient steps (fixes the length of the loop).

    Returns:
      A decision that is feasible if the start was and never has a larger objective.
    """
    tune = on_lanes(functools.partial(tune_layout, steps=steps))
    tuned = tune(*jax.lax.stop_gradient((problem, decision)))
    kept = price(problem, decision).objective
    better = tuned.objective < kept
    chosen = jax.tree.map(lambda new, old: jnp.where(better, new, old), tuned.decision, decision)
    return tuned._replace(decision=chosen, objective=jnp.minimum(tuned.objective, kept))


def tune_layout(problem: RoundProblem, decision: Decision, steps: int) -> Tuned:
    """:func:`tune_resources` with lanes, the best point met and not the start."""
    chain = chains(problem, decision.segments, decision.micro_batches)
    start = to_logs(problem, chain, decision)
    descent = tune_chains(problem, chain, start, first_multipliers(chain), steps, with_price=True)
    return with_certificate(problem, chain, decision, descent.logs, descent.priced)


def price_logs(
    problem: RoundProblem,
    chain: Chains,
    logs: Resources,
    multipliers: Multipliers,
    around: Surroundings | None = None,
) -> PricedPoint:
    """:func:`price_point` of logarithms of shares, and of powers over their maxima."""
    return price_point(problem, chain, to_resources(problem, logs), multipliers, around)


def tune_chains(
    problem: RoundProblem,
    chain: Chains,
    logs: Resources,
    multipliers: Multipliers,
    steps: int | Array,
    with_price: bool = False,
) -> Descent:
    """Descent of all clusters together, interference following the powers; with lanes."""
    pricer = functools.partial(price_logs, problem, chain)
    return descend(pricer, chain.active, logs, multipliers, steps, with_price=with_price)


def tune_clusters(
    problem: RoundProblem,
    chain: Chains,
    logs: Resources,
    around: Surroundings,
    steps: int,
    with_price: bool = False,
) -> Descent:
    """Descent of every cluster by itself, the others standing still; with lanes."""
    multipliers = first_multipliers(chain)
    # Of its own latency and the round's.
    multipliers = multipliers._replace(cluster=jnp.full((2, *multipliers.cluster.shape), 0.5))
    pricer = functools.partial(price_logs, problem, chain, around=around)
    return descend(
        pricer, chain.active, logs, multipliers, steps, joint=False, with_price=with_price
    )


def with_certificate(problem, chain, layout, logs, priced) -> Tuned:
    """A priced point as an answer; with lanes."""
    certificate = certify(priced, logs, chain.active)
    objective = priced.objective
    close = objective - certificate.lower_bound <= TOLERANCE * objective
    status = jnp.where(close, OPTIMAL, STEP_LIMIT)
    status = jnp.where(jnp.isfinite(objective), status, BROKEN)
    status = jnp.where(jnp.any(chain.active[0], axis=0), status, NO_CLUSTER)
    return Tuned(
        to_decision(layout, chain, to_resources(problem, logs)),
        objective,
        certificate.lower_bound,
        certificate.residual,
        status,
    )


def to_resources(problem: RoundProblem, logs: Resources) -> Resources:
    """Shares and powers of logarithms; with lanes."""
    radio = problem.radio
    return Resources(
        jnp.exp(logs.d2d_share),
        jnp.swapaxes(radio.d2d_power_max_w, 0, 1) * jnp.exp(logs.d2d_power),
        jnp.exp(logs.d2e_share),
        radio.d2e_power_max_w * jnp.exp(logs.d2e_power),
    )


def to_logs(problem: RoundProblem, chain: Chains, decision: Decision) -> Resources:
    """Logarithms of a decision's shares, and of its powers over their maxima; with lanes."""
    radio, present = problem.radio, chain.active[0]

    def log(value, used):
        return jnp.where(used, jnp.log(jnp.maximum(value, 1e-30)), 0.0)

    def ratio(power_w, limit_w):
        return power_w / jnp.where(limit_w > 0, limit_w, 1.0)

    d2d_ratio = ratio(decision.d2d_power_w, radio.d2d_power_max_w)
    return Resources(
        log(jnp.swapaxes(decision.d2d_share, 0, 1), chain.active),
        log(jnp.swapaxes(d2d_ratio, 0, 1), chain.active),
        log(decision.d2e_share, present),
        log(ratio(decision.d2e_power_w, radio.d2e_power_max_w), present),
    )


def to_decision(layout: Decision, chain: Chains, resources: Resources) -> Decision:
    """A layout's decision with these shares and powers, 0 where idle; with lanes."""
    present = chain.active[0]
    return layout.replace(
        d2d_share=jnp.swapaxes(jnp.where(chain.active, resources.d2d_share, 0.0), 0, 1),
        d2d_power_w=jnp.swapaxes(jnp.where(chain.active, resources.d2d_power, 0.0), 0, 1),
        d2e_share=jnp.where(present, resources.d2e_share, 0.0),
        d2e_power_w=jnp.where(present, resources.d2e_power, 0.0),
    )
