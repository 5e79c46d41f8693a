"""Shares and powers for given segments: projected gradient in their logarithms.

For fixed segments and micro-batches (P2) is jointly convex in the logarithms of shares
and powers, interference included (docs/system-model.md, section 5). Maxima are smoothed
by a temperature that falls, and the best point is told by the true objective.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.scipy.special import logsumexp

from collapipe_jax.cost.decision import Decision, active_nodes, is_present
from collapipe_jax.cost.divergence import cluster_divergence, round_divergence
from collapipe_jax.cost.energy import node_energy_j
from collapipe_jax.cost.latency import backward_flow_s, forward_flow_s, latency_parts, stage_times
from collapipe_jax.cost.links import message_links, micro_batch_hazard
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round import drift_plus_penalty, price

_LEAST_LOG_POWER = -14.0
_FIRST_STEP, _LAST_STEP = 0.3, 0.01
_FIRST_TEMPERATURE, _LAST_TEMPERATURE = 0.1, 0.002


class LogResources(NamedTuple):
    """The variables.

    Attributes:
      d2d_share, d2e_share: logarithms of shares, ``[N, K + 1]`` and ``[N]``; of meaning on
        active nodes and present clusters.
      d2d_power, d2e_power: logarithms of powers over their maximum, likewise.
    """

    d2d_share: Array
    d2d_power: Array
    d2e_share: Array
    d2e_power: Array


class _Best(NamedTuple):
    decision: Decision
    objective: Array


def tune_resources(problem: RoundProblem, decision: Decision, steps: int) -> Decision:
    """Improve shares and powers, with segments and micro-batches as they are.

    Args:
      problem: one round of one network.
      decision: where to start; its shares and powers must be positive where used.
      steps: gradient steps (fixes the length of the loop).

    Returns:
      A decision that is feasible if the start was, and never has a larger objective.
    """
    fraction = jnp.arange(steps) / max(steps - 1, 1)
    step_size = _FIRST_STEP * (_LAST_STEP / _FIRST_STEP) ** fraction
    temperature = _FIRST_TEMPERATURE * (_LAST_TEMPERATURE / _FIRST_TEMPERATURE) ** fraction
    descent = optax.scale_by_adam(b1=0.8, b2=0.95)

    def loss(variables, sharpness):
        return smooth_objective(problem, to_decision(problem, decision, variables), sharpness)

    def step(carry, schedule):
        variables, memory, best = carry
        size, sharpness = schedule
        slope = jax.grad(loss)(variables, sharpness)
        slope = jax.tree.map(lambda g: jnp.where(jnp.isfinite(g), g, 0.0), slope)
        direction, memory = descent.update(slope, memory)
        moved = jax.tree.map(lambda x, d: x - size * d, variables, direction)
        variables = project(moved, decision.segments)
        best = _better(problem, best, to_decision(problem, decision, variables))
        return (variables, memory, best), None

    start = project(from_decision(problem, decision), decision.segments)
    best = _Best(decision, price(problem, decision).objective)
    carry = (start, descent.init(start), best)
    (_, _, best), _ = jax.lax.scan(step, carry, (step_size, temperature))
    return best.decision


def _better(problem: RoundProblem, best: _Best, decision: Decision) -> _Best:
    objective = price(problem, decision).objective
    wins = objective < best.objective
    return jax.tree.map(
        lambda new, old: jnp.where(wins, new, old), _Best(decision, objective), best
    )


def project(variables: LogResources, segments: Array) -> LogResources:
    """Bring variables back to the simplices and boxes.

    Dividing the shares of a row by their sum moves their logarithms along the row alone;
    using up the whole band costs nothing, since no objective grows with a share.

    Args:
      variables: any finite numbers.
      segments: who is active, ``[N, K]``.
    """
    active, present = active_nodes(segments), is_present(segments)

    def normalise(log_share, used, axis):
        masked = jnp.where(used, log_share, -jnp.inf)
        total = logsumexp(masked, axis=axis, keepdims=True)
        total = jnp.where(jnp.isfinite(total), total, 0.0)
        return jnp.where(used, log_share - total, 0.0)

    return LogResources(
        d2d_share=normalise(variables.d2d_share, active, 1),
        d2d_power=jnp.clip(variables.d2d_power, _LEAST_LOG_POWER, 0.0),
        d2e_share=normalise(variables.d2e_share, present, 0),
        d2e_power=jnp.clip(variables.d2e_power, _LEAST_LOG_POWER, 0.0),
    )


def to_decision(problem: RoundProblem, base: Decision, variables: LogResources) -> Decision:
    """The decision that the variables stand for, with the segments of ``base``."""
    active, present = active_nodes(base.segments), is_present(base.segments)
    radio = problem.radio
    return Decision(
        segments=base.segments,
        micro_batches=base.micro_batches,
        d2d_share=jnp.where(active, jnp.exp(variables.d2d_share), 0.0),
        d2d_power_w=jnp.where(active, radio.d2d_power_max_w * jnp.exp(variables.d2d_power), 0.0),
        d2e_share=jnp.where(present, jnp.exp(variables.d2e_share), 0.0),
        d2e_power_w=jnp.where(present, radio.d2e_power_max_w * jnp.exp(variables.d2e_power), 0.0),
    )


def from_decision(problem: RoundProblem, decision: Decision) -> LogResources:
    """Variables of a decision; 0 where it uses nothing."""

    def log_or_zero(value):
        return jnp.where(value > 0, jnp.log(jnp.where(value > 0, value, 1.0)), 0.0)

    def log_ratio(power_w, limit_w):
        used = (power_w > 0) & (limit_w > 0)
        return log_or_zero(jnp.where(used, power_w / jnp.where(used, limit_w, 1.0), 0.0))

    return LogResources(
        d2d_share=log_or_zero(decision.d2d_share),
        d2d_power=log_ratio(decision.d2d_power_w, problem.radio.d2d_power_max_w),
        d2e_share=log_or_zero(decision.d2e_share),
        d2e_power=log_ratio(decision.d2e_power_w, problem.radio.d2e_power_max_w),
    )


def smooth_objective(problem: RoundProblem, decision: Decision, temperature: Array) -> Array:
    """(P2) with its maxima smoothed, so that every near-maximal stage has a slope.

    Args:
      problem: one round of one network.
      decision: shares and powers positive where used.
      temperature: of the maxima, relative to their size; 0.01 is sharp.
    """
    present = is_present(decision.segments)
    links = message_links(problem, decision)
    stages = stage_times(problem, decision, links)
    parts = latency_parts(problem, decision, links, stages)
    pauses = decision.micro_batches - 1
    iteration_s = sum(
        jnp.sum(flow, axis=1) + pauses * _smooth_maximum(flow, temperature)
        for flow in (forward_flow_s(stages), backward_flow_s(stages))
    )
    smoothed = parts._replace(iterations_s=problem.workload.local_steps * iteration_s)
    latency_s = _smooth_maximum(jnp.where(present, sum(smoothed), 0.0), temperature)
    hazard = micro_batch_hazard(problem, decision, links)
    work = problem.workload
    cluster = cluster_divergence(hazard, decision.micro_batches, work.batch, problem.learning)
    return drift_plus_penalty(
        problem,
        latency_s,
        node_energy_j(problem, decision, links, parts),
        round_divergence(cluster, present, problem.learning),
    )


def _smooth_maximum(values: Array, temperature: Array) -> Array:
    """Log-sum-exp over the last axis at a temperature relative to the maximum."""
    top = jax.lax.stop_gradient(jnp.max(values, axis=-1, keepdims=True))
    scale = temperature * jnp.where(top > 0, top, 1.0)
    return (top + scale * logsumexp((values - top) / scale, axis=-1, keepdims=True))[..., 0]
