"""Variables of the smooth program of :mod:`smooth_form`, and the decisions they stand for.

Logarithms of shares and powers, and one more for every maximum or minimum in the price.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from collapipe_jax.cost.decision import Decision, Hops, active_nodes, participates
from collapipe_jax.cost.latency import (
    backward_flow_s,
    forward_flow_s,
    latency_parts,
    stage_times,
)
from collapipe_jax.cost.links import Links, message_links
from collapipe_jax.cost.problem import RoundProblem

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


def bounds(problem: RoundProblem, decision: Decision) -> tuple[Array, Array]:
    """Least and largest value of every variable, flat."""
    stages = stage_times(problem, decision, free_links(problem, decision))
    present = participates(decision.segments)
    least_s = [
        log_where(present, jnp.max(flow, axis=1))
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
    active, present = active_nodes(decision.segments), participates(decision.segments)
    radio = problem.radio
    links = message_links(problem, decision)
    stages = stage_times(problem, decision, links)
    rates = rates_of(links)
    bands = band_hz(problem, decision)
    used = Messages(active, active, active[:, 1:], active[:, 1:], present)
    latency_s = sum(latency_parts(problem, decision, links, stages))
    variables = Variables(
        d2d_share=log_where(active, decision.d2d_share),
        d2d_power=log_where(active, _ratio(decision.d2d_power_w, radio.d2d_power_max_w)),
        d2e_share=log_where(present, decision.d2e_share),
        d2e_power=log_where(present, _ratio(decision.d2e_power_w, radio.d2e_power_max_w)),
        efficiency=Messages(
            *(
                log_where(mask, rate / band)
                for mask, rate, band in zip(used, rates, bands, strict=True)
            )
        ),
        longest_s=Hops(
            *(
                log_where(present, jnp.max(flow, axis=1))
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
    variables = unravel(problem)(flat)
    point = point_of(
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


def unravel(problem: RoundProblem):
    """The function that makes :class:`Variables` of a flat array."""
    return ravel_pytree(_template(problem))[1]


def point_of(problem: RoundProblem, decision: Decision, variables: Variables) -> Decision:
    """Shares and powers as they are claimed, 0 where idle."""
    active, present = active_nodes(decision.segments), participates(decision.segments)
    radio = problem.radio
    return decision.replace(
        d2d_share=jnp.where(active, jnp.exp(variables.d2d_share), 0.0),
        d2d_power_w=jnp.where(active, radio.d2d_power_max_w * jnp.exp(variables.d2d_power), 0.0),
        d2e_share=jnp.where(present, jnp.exp(variables.d2e_share), 0.0),
        d2e_power_w=jnp.where(present, radio.d2e_power_max_w * jnp.exp(variables.d2e_power), 0.0),
    )


def band_hz(problem: RoundProblem, point: Decision) -> Messages:
    """Bandwidth of every message; the whole band where nothing is sent."""
    radio = problem.radio
    hop = jnp.where(active_nodes(point.segments), point.d2d_share, 1.0) * radio.d2d_bandwidth_hz
    whole = jnp.ones_like(hop[:, 1:]) * radio.d2d_bandwidth_hz
    present = participates(point.segments)
    uplink = jnp.where(present, point.d2e_share, 1.0) * radio.d2e_bandwidth_hz
    return Messages(hop, hop, whole, whole, uplink)


def rates_of(links: Links) -> Messages:
    """Rates of all messages, in bit/s."""
    return Messages(
        *links.hop_rate_bps,
        links.collect_rate_bps,
        links.distribute_rate_bps,
        links.uplink_rate_bps,
    )


def with_rates(links: Links, rates: Messages) -> Links:
    """Links with other rates."""
    return links._replace(
        hop_rate_bps=Hops(rates.forward, rates.backward),
        uplink_rate_bps=rates.uplink,
        collect_rate_bps=rates.collect,
        distribute_rate_bps=rates.distribute,
    )


def free_links(problem: RoundProblem, decision: Decision) -> Links:
    """Links on which no message takes time, so that all else can be told apart."""
    links = message_links(problem, decision)
    rates = jax.tree.map(lambda rate: jnp.full_like(rate, jnp.inf), rates_of(links))
    links = with_rates(links, rates)
    return links._replace(downlink_rate_bps=jnp.full_like(links.downlink_rate_bps, jnp.inf))


def _ratio(power_w: Array, limit_w: Array) -> Array:
    return power_w / jnp.where(limit_w > 0, limit_w, 1.0)


def log_where(used: Array, values: Array) -> Array:
    """Logarithm of the used values, 0 elsewhere, with slopes that stay finite."""
    return jnp.where(used, jnp.log(jnp.where(used, values, 1.0)), 0.0)
