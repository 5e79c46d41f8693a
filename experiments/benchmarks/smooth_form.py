"""The continuous part of (P2) as a smooth program, for solvers that know nothing of it.

Segments and micro-batches are fixed. The variables are logarithms of shares and powers,
and one more for every maximum or minimum in the price, so that no kink is left: the
efficiency of each message (below its SINR's and below the ceiling), the longest stage of
each flow, and the latency of the round. In these variables the program is convex
(docs/system-model.md, section 5). Everything else is the package's own cost.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from collapipe_jax.cost.decision import Decision, Hops, active_nodes, is_present
from collapipe_jax.cost.divergence import cluster_divergence, round_divergence
from collapipe_jax.cost.energy import node_energy_j
from collapipe_jax.cost.latency import (
    StageTimes,
    backward_flow_s,
    forward_flow_s,
    latency_parts,
    stage_times,
)
from collapipe_jax.cost.links import Links, message_links, micro_batch_hazard
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round_cost import drift_plus_penalty

_LEAST_LOG = -30.0
_LOG_TIME_RANGE = 30.0


class Messages(NamedTuple):
    """A value for every kind of message.

    Attributes:
      forward, backward: of a hop, ``[N, K + 1]``.
      collect, distribute: parameters from and to a device, ``[N, K]``.
      uplink: ``[N]``.
    """

    forward: Array
    backward: Array
    collect: Array
    distribute: Array
    uplink: Array


class Variables(NamedTuple):
    """Logarithms; entries that the layout does not use are 0.

    Attributes:
      d2d_share, d2e_share: ``[N, K + 1]`` and ``[N]``.
      d2d_power, d2e_power: over their maxima, ``[N, K + 1]`` and ``[N]``.
      efficiency: bit/s/Hz.
      longest_s: longest stage of the forward and of the backward flow, ``[N]`` each.
      latency_s: of the round.
    """

    d2d_share: Array
    d2d_power: Array
    d2e_share: Array
    d2e_power: Array
    efficiency: Messages
    longest_s: Hops
    latency_s: Array


class Constraints(NamedTuple):
    """Left sides of constraints of the form ``g >= 0``.

    Attributes:
      d2d_band, d2e_band: what is left of a band, ``[N]`` and scalar.
      efficiency: log of what the SINR allows over what is claimed.
      longest_s: log of the longest stage over each message, the hops and then the D2E
        message, ``[N, K + 2]`` each.
      latency_s: log of the round's latency over each cluster's, ``[N]``.
      energy_j: log of each node's budget over what it spends, ``[N, K + 1]``; a cap, where
        one is asked for.
    """

    d2d_band: Array
    d2e_band: Array
    efficiency: Messages
    longest_s: Hops
    latency_s: Array
    energy_j: Array


class Program(NamedTuple):
    """Objective and constraints at a point.

    Attributes:
      objective: log of (P2).
      constraints: all of them, flat.
    """

    objective: Array
    constraints: Array


def program(problem: RoundProblem, decision: Decision, flat: Array, smooth: bool = True) -> Program:
    """Objective and constraints.

    Args:
      problem: one round of one network.
      decision: its segments and micro-batches are used.
      flat: :class:`Variables`, raveled.
      smooth: whether efficiencies are variables; False takes those of the links, with a
        kink where one reaches the ceiling, for a third of the size.
    """
    variables = _unravel(problem)(flat)
    point = _point(problem, decision, variables)
    links = message_links(problem, point)
    if smooth:
        links = _claimed_links(problem, point, links, variables.efficiency)
    stages = stage_times(problem, point, links)
    parts = latency_parts(problem, point, links, stages)
    pauses = point.micro_batches - 1
    iteration_s = sum(
        jnp.sum(flow, axis=1) + pauses * jnp.exp(longest_s)
        for flow, longest_s in zip(
            (forward_flow_s(stages), backward_flow_s(stages)), variables.longest_s, strict=True
        )
    )
    parts = parts._replace(iterations_s=problem.workload.local_steps * iteration_s)
    energy_j = node_energy_j(problem, point, links, parts)
    active = active_nodes(point.segments)
    constraints = Constraints(
        d2d_band=1.0 - jnp.sum(point.d2d_share, axis=1),
        d2e_band=1.0 - jnp.sum(point.d2e_share),
        efficiency=_efficiency_left(problem, point, links),
        longest_s=_longest_left(point, stages, variables.longest_s),
        latency_s=variables.latency_s - _log_where(is_present(point.segments), sum(parts)),
        energy_j=_log_where(active, problem.control.energy_budget_j) - _log_where(active, energy_j),
    )
    objective = _objective(problem, point, links, energy_j, jnp.exp(variables.latency_s))
    # Its logarithm is convex too, and has slopes of one size on any link.
    return Program(jnp.log(objective), ravel_pytree(constraints)[0])


@partial(jax.jit, static_argnames="smooth")
def evaluate(
    problem: RoundProblem, decision: Decision, flat: Array, smooth: bool = True
) -> tuple[Program, Program]:
    """Derivatives by every variable, and values, of :func:`program`."""

    def values(flat):
        out = program(problem, decision, flat, smooth)
        return out, out

    return jax.jacrev(values, has_aux=True)(flat)


@partial(jax.jit, static_argnames="smooth")
def hessian(
    problem: RoundProblem,
    decision: Decision,
    flat: Array,
    multipliers: Array,
    smooth: bool = True,
) -> Array:
    """Second derivatives of objective and constraints, weighed by ``multipliers``.

    Args:
      problem, decision, flat, smooth: as in :func:`program`.
      multipliers: of the objective first, then of all constraints.
    """

    def value(flat):
        out = program(problem, decision, flat, smooth)
        return multipliers[0] * out.objective + multipliers[1:] @ out.constraints

    return jax.hessian(value)(flat)


def used_entries(
    decision: Decision, smooth: bool = True, capped: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Masks of the variables and of the constraints that a layout uses, flat.

    Args:
      decision: the layout.
      smooth: as in :func:`program`.
      capped: whether nodes' budgets are caps.
    """
    active = active_nodes(decision.segments)
    devices, present = active[:, 1:], active[:, 0]
    waits = present & (decision.micro_batches > 1)
    messages = Messages(active, active, devices, devices, present)
    messages = jax.tree.map(lambda mask: mask & smooth, messages)
    variables = Variables(
        active, active, present, present, messages, Hops(waits, waits), jnp.array(True)
    )
    stages = waits[:, None] & jnp.concatenate([active, present[:, None]], axis=1)
    constraints = Constraints(
        present, jnp.array(True), messages, Hops(stages, stages), present, active & capped
    )
    return np.asarray(ravel_pytree(variables)[0]), np.asarray(ravel_pytree(constraints)[0])


def bounds(problem: RoundProblem, decision: Decision) -> tuple[Array, Array]:
    """Least and largest value of every variable, flat."""
    stages = stage_times(problem, decision, free_links(problem, decision))
    present = is_present(decision.segments)
    least_s = [
        _log_where(present, jnp.max(flow, axis=1))
        for flow in (forward_flow_s(stages), backward_flow_s(stages))
    ]
    template = _template(problem)
    highest = jnp.log(problem.radio.max_spectral_efficiency)
    lower = jax.tree.map(lambda leaf: leaf + _LEAST_LOG, template)
    upper = jax.tree.map(jnp.zeros_like, template)
    lower = lower._replace(longest_s=Hops(*least_s))
    upper = upper._replace(
        efficiency=jax.tree.map(lambda leaf: leaf + highest, upper.efficiency),
        longest_s=Hops(*(least + _LOG_TIME_RANGE for least in least_s)),
        latency_s=upper.latency_s + _LOG_TIME_RANGE,
    )
    return ravel_pytree(lower)[0], ravel_pytree(upper)[0]


def variables_of(problem: RoundProblem, decision: Decision) -> Array:
    """The point that stands for a decision, its maxima tight, flat."""
    active, present = active_nodes(decision.segments), is_present(decision.segments)
    radio = problem.radio
    links = message_links(problem, decision)
    stages = stage_times(problem, decision, links)
    rates = _rates(links)
    bands = _band_hz(problem, decision)
    used = Messages(active, active, active[:, 1:], active[:, 1:], present)
    latency_s = sum(latency_parts(problem, decision, links, stages))
    variables = Variables(
        d2d_share=_log_where(active, decision.d2d_share),
        d2d_power=_log_where(active, _ratio(decision.d2d_power_w, radio.d2d_power_max_w)),
        d2e_share=_log_where(present, decision.d2e_share),
        d2e_power=_log_where(present, _ratio(decision.d2e_power_w, radio.d2e_power_max_w)),
        efficiency=Messages(
            *(
                _log_where(mask, rate / band)
                for mask, rate, band in zip(used, rates, bands, strict=True)
            )
        ),
        longest_s=Hops(
            *(
                _log_where(present, jnp.max(flow, axis=1))
                for flow in (forward_flow_s(stages), backward_flow_s(stages))
            )
        ),
        latency_s=jnp.log(jnp.max(latency_s)),
    )
    return ravel_pytree(variables)[0]


def decision_of(problem: RoundProblem, decision: Decision, flat: Array) -> Decision:
    """The decision that a point stands for, brought inside the limits.

    Args:
      problem: one round of one network.
      decision: its segments and micro-batches are kept.
      flat: :class:`Variables`, raveled; bounds and constraints may be missed by a little.
    """
    variables = _unravel(problem)(flat)
    point = _point(
        problem,
        decision,
        variables._replace(
            d2d_power=jnp.minimum(variables.d2d_power, 0.0),
            d2e_power=jnp.minimum(variables.d2e_power, 0.0),
        ),
    )
    d2d_total = jnp.sum(point.d2d_share, axis=1, keepdims=True)
    return point.replace(
        d2d_share=point.d2d_share / jnp.maximum(d2d_total, 1.0),
        d2e_share=point.d2e_share / jnp.maximum(jnp.sum(point.d2e_share), 1.0),
    )


def _template(problem: RoundProblem) -> Variables:
    clusters, devices = problem.clusters, problem.devices
    nodes, device, cluster = (
        jnp.zeros(shape) for shape in ((clusters, devices + 1), (clusters, devices), (clusters,))
    )
    messages = Messages(nodes, nodes, device, device, cluster)
    return Variables(
        nodes, nodes, cluster, cluster, messages, Hops(cluster, cluster), jnp.zeros(())
    )


def _unravel(problem: RoundProblem):
    return ravel_pytree(_template(problem))[1]


def _point(problem: RoundProblem, decision: Decision, variables: Variables) -> Decision:
    """Shares and powers as they are claimed, 0 where idle."""
    active, present = active_nodes(decision.segments), is_present(decision.segments)
    radio = problem.radio
    return decision.replace(
        d2d_share=jnp.where(active, jnp.exp(variables.d2d_share), 0.0),
        d2d_power_w=jnp.where(active, radio.d2d_power_max_w * jnp.exp(variables.d2d_power), 0.0),
        d2e_share=jnp.where(present, jnp.exp(variables.d2e_share), 0.0),
        d2e_power_w=jnp.where(present, radio.d2e_power_max_w * jnp.exp(variables.d2e_power), 0.0),
    )


def _band_hz(problem: RoundProblem, point: Decision) -> Messages:
    """Bandwidth of every message; the whole band where nothing is sent."""
    radio = problem.radio
    hop = jnp.where(active_nodes(point.segments), point.d2d_share, 1.0) * radio.d2d_bandwidth_hz
    whole = jnp.ones_like(hop[:, 1:]) * radio.d2d_bandwidth_hz
    present = is_present(point.segments)
    uplink = jnp.where(present, point.d2e_share, 1.0) * radio.d2e_bandwidth_hz
    return Messages(hop, hop, whole, whole, uplink)


def _rates(links: Links) -> Messages:
    return Messages(
        *links.hop_rate_bps,
        links.collect_rate_bps,
        links.distribute_rate_bps,
        links.uplink_rate_bps,
    )


def _with_rates(links: Links, rates: Messages) -> Links:
    return links._replace(
        hop_rate_bps=Hops(rates.forward, rates.backward),
        uplink_rate_bps=rates.uplink,
        collect_rate_bps=rates.collect,
        distribute_rate_bps=rates.distribute,
    )


def _claimed_links(
    problem: RoundProblem, point: Decision, links: Links, efficiency: Messages
) -> Links:
    """Links whose rates are the variables' claim."""
    bands = _band_hz(problem, point)
    rates = Messages(*(band * jnp.exp(log) for band, log in zip(bands, efficiency, strict=True)))
    return _with_rates(links, rates)


def free_links(problem: RoundProblem, decision: Decision) -> Links:
    """Links on which no message takes time, so that all else can be told apart."""
    links = message_links(problem, decision)
    rates = jax.tree.map(lambda rate: jnp.full_like(rate, jnp.inf), _rates(links))
    links = _with_rates(links, rates)
    return links._replace(downlink_rate_bps=jnp.full_like(links.downlink_rate_bps, jnp.inf))


def _efficiency_left(problem: RoundProblem, point: Decision, claimed: Links) -> Messages:
    """Log of the rates that the SINRs allow, the ceiling aside, over the claimed ones."""
    radio = problem.radio.replace(max_spectral_efficiency=jnp.inf)
    allowed = _rates(message_links(problem.replace(radio=radio), point))
    active = active_nodes(point.segments)
    used = Messages(active, active, active[:, 1:], active[:, 1:], active[:, 0])
    return Messages(
        *(
            _log_where(mask, rate) - _log_where(mask, claim)
            for mask, rate, claim in zip(used, allowed, _rates(claimed), strict=True)
        )
    )


def _longest_left(point: Decision, stages: StageTimes, longest_s: Hops) -> Hops:
    """Log of the longest stages over each of the messages."""
    present = is_present(point.segments)[:, None]
    used = jnp.concatenate([active_nodes(point.segments), present], axis=1)
    messages = (
        jnp.concatenate([stages.hop_s.forward, stages.uplink_s[:, None]], axis=1),
        jnp.concatenate([stages.hop_s.backward, stages.downlink_s[:, None]], axis=1),
    )
    return Hops(
        *(
            longest[:, None] - _log_where(used, message)
            for longest, message in zip(longest_s, messages, strict=True)
        )
    )


def _objective(problem: RoundProblem, point: Decision, links: Links, energy_j, latency_s: Array):
    """(P2) with the latency that is claimed."""
    hazard = micro_batch_hazard(problem, point, links)
    batch = problem.workload.batch
    cluster = cluster_divergence(hazard, point.micro_batches, batch, problem.learning)
    divergence = round_divergence(cluster, is_present(point.segments), problem.learning)
    return drift_plus_penalty(problem, latency_s, energy_j, divergence)


def _ratio(power_w: Array, limit_w: Array) -> Array:
    return power_w / jnp.where(limit_w > 0, limit_w, 1.0)


def _log_where(used: Array, values: Array) -> Array:
    """Logarithm of the used values, 0 elsewhere, with slopes that stay finite."""
    return jnp.where(used, jnp.log(jnp.where(used, values, 1.0)), 0.0)
