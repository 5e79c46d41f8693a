"""Shares and powers for given segments: gradient steps in their logarithms.

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
_LEAST_UNUSED_SHARE = 1e-5
_FIRST_STEP, _LAST_STEP = 0.8, 0.01
_FIRST_TEMPERATURE, _LAST_TEMPERATURE = 0.1, 0.002


class LogResources(NamedTuple):
    """The variables.

    A band need not be used up: a larger share makes a message faster, but thins its power
    out and loses more. So every band has one entry more, for its unused part.

    Attributes:
      d2d_share, d2e_share: logarithms of shares up to a constant of the band, the unused
        part last, ``[N, K + 2]`` and ``[N + 1]``; of meaning on active nodes and present
        clusters.
      d2d_power, d2e_power: logarithms of powers over their maximum, ``[N, K + 1]`` and
        ``[N]``, likewise.
    """

    d2d_share: Array
    d2d_power: Array
    d2e_share: Array
    d2e_power: Array


class _Best(NamedTuple):
    variables: LogResources
    objective: Array


def tune_resources(problem: RoundProblem, decision: Decision, steps: int) -> tuple[Decision, Array]:
    """Improve shares and powers, with segments and micro-batches as they are.

    Args:
      problem: one round of one network.
      decision: where to start; its shares and powers must be positive where used.
      steps: gradient steps (fixes the length of the loop).

    Returns:
      A decision that is feasible if the start was and never has a larger objective, and
      this objective.
    """
    fraction = jnp.arange(steps + 1) / max(steps, 1)
    step_size = _FIRST_STEP * (_LAST_STEP / _FIRST_STEP) ** fraction
    temperature = _FIRST_TEMPERATURE * (_LAST_TEMPERATURE / _FIRST_TEMPERATURE) ** fraction
    descent = optax.scale_by_adam(b1=0.8, b2=0.95)

    def objectives(variables, sharpness):
        point = to_decision(problem, decision, variables)
        smooth, true = _objectives(problem, point, sharpness)
        # Its logarithm has the same minimum, and slopes of one size on any link: a loss
        # may weigh e^50 on the first step and nothing on the next.
        return jnp.log(smooth), true

    def step(carry, schedule):
        variables, memory, best = carry
        size, sharpness = schedule
        (_, true), slope = jax.value_and_grad(objectives, has_aux=True)(variables, sharpness)
        best = _better(_Best(variables, true), best)
        slope = jax.tree.map(lambda g: jnp.where(jnp.isfinite(g), g, 0.0), slope)
        direction, memory = descent.update(slope, memory)
        moved = jax.tree.map(lambda x, d: x - size * d, variables, direction)
        return (project(moved, decision.segments), memory, best), None

    start = project(from_decision(problem, decision), decision.segments)
    carry = (start, descent.init(start), _Best(start, jnp.array(jnp.inf)))
    # A step looks at a point before it moves on, so the last move is not looked at.
    (_, _, best), _ = jax.lax.scan(step, carry, (step_size, temperature))
    tuned = to_decision(problem, decision, best.variables)
    kept = decision, price(problem, decision).objective
    worth = best.objective < kept[1]
    return jax.tree.map(lambda new, old: jnp.where(worth, new, old), (tuned, best.objective), kept)


def _better(new: _Best, old: _Best) -> _Best:
    wins = new.objective < old.objective
    return jax.tree.map(lambda one, other: jnp.where(wins, one, other), new, old)


def project(variables: LogResources, segments: Array) -> LogResources:
    """Bring variables back: shares of every band sum to 1, powers keep to their boxes.

    Args:
      variables: any finite numbers.
      segments: who is active, ``[N, K]``.

    Returns:
      Variables that stand for the same shares; 0 where nothing is used.
    """

    def normalise(log_share, used):
        total = logsumexp(jnp.where(used, log_share, -jnp.inf), axis=-1, keepdims=True)
        return jnp.where(used, log_share - total, 0.0)

    return LogResources(
        d2d_share=normalise(variables.d2d_share, _with_unused(active_nodes(segments))),
        d2d_power=jnp.clip(variables.d2d_power, _LEAST_LOG_POWER, 0.0),
        d2e_share=normalise(variables.d2e_share, _with_unused(is_present(segments))),
        d2e_power=jnp.clip(variables.d2e_power, _LEAST_LOG_POWER, 0.0),
    )


def to_decision(problem: RoundProblem, base: Decision, variables: LogResources) -> Decision:
    """The decision that the variables stand for, with the segments of ``base``.

    Its shares do not change where all variables of a band grow alike, so a gradient
    through them lies along the simplex.
    """
    active, present = active_nodes(base.segments), is_present(base.segments)
    radio = problem.radio

    def shares(log_share, used):
        masked = jnp.where(_with_unused(used), log_share, -jnp.inf)
        return jax.nn.softmax(masked, axis=-1)[..., :-1]

    return Decision(
        segments=base.segments,
        micro_batches=base.micro_batches,
        d2d_share=shares(variables.d2d_share, active),
        d2d_power_w=jnp.where(active, radio.d2d_power_max_w * jnp.exp(variables.d2d_power), 0.0),
        d2e_share=shares(variables.d2e_share, present),
        d2e_power_w=jnp.where(present, radio.d2e_power_max_w * jnp.exp(variables.d2e_power), 0.0),
    )


def from_decision(problem: RoundProblem, decision: Decision) -> LogResources:
    """Variables of a decision; 0 where it uses nothing.

    The unused part of a band is taken as at least 1e-5 of it, or no step would free any.
    """

    def log_or_zero(value):
        return jnp.where(value > 0, jnp.log(jnp.where(value > 0, value, 1.0)), 0.0)

    def log_share(share):
        unused = jnp.maximum(1.0 - jnp.sum(share, axis=-1, keepdims=True), _LEAST_UNUSED_SHARE)
        return log_or_zero(jnp.concatenate([share, unused], axis=-1))

    def log_ratio(power_w, limit_w):
        used = (power_w > 0) & (limit_w > 0)
        return log_or_zero(jnp.where(used, power_w / jnp.where(used, limit_w, 1.0), 0.0))

    return LogResources(
        d2d_share=log_share(decision.d2d_share),
        d2d_power=log_ratio(decision.d2d_power_w, problem.radio.d2d_power_max_w),
        d2e_share=log_share(decision.d2e_share),
        d2e_power=log_ratio(decision.d2e_power_w, problem.radio.d2e_power_max_w),
    )


def _with_unused(used: Array) -> Array:
    """A mask of shares, the unused part of the band added."""
    return jnp.concatenate([used, jnp.ones_like(used[..., :1])], axis=-1)


def smooth_objective(problem: RoundProblem, decision: Decision, temperature: Array) -> Array:
    """(P2) with its maxima smoothed, so that every near-maximal stage has a slope.

    Args:
      problem: one round of one network.
      decision: shares and powers positive where used.
      temperature: of the maxima, relative to their size; 0.01 is sharp.
    """
    return _objectives(problem, decision, temperature)[0]


def _objectives(
    problem: RoundProblem, decision: Decision, temperature: Array
) -> tuple[Array, Array]:
    """Objective with smoothed and with true maxima, from one look at the links."""
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
    energy_j = node_energy_j(problem, decision, links, parts)
    divergence = round_divergence(cluster, present, problem.learning)
    smooth = drift_plus_penalty(problem, latency_s, energy_j, divergence)
    return smooth, drift_plus_penalty(problem, jnp.max(sum(parts)), energy_j, divergence)


def _smooth_maximum(values: Array, temperature: Array) -> Array:
    """Norm of order ``1 / temperature`` over the last axis: at least the maximum.

    It scales with its values and is convex in their logarithms.
    """
    top = jax.lax.stop_gradient(jnp.max(values, axis=-1, keepdims=True))
    some = top > 0
    # The largest value cancels, with its slope, so it may be held constant.
    ratio = values / jnp.where(some, top, 1.0)
    total = jnp.sum(ratio ** (1.0 / temperature), axis=-1, keepdims=True)
    return (top * jnp.where(some, total, 1.0) ** temperature)[..., 0]
