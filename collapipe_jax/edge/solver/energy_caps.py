"""Caps on the energy of nodes in a round, held by multipliers.

The logarithm of a node's energy on air is convex in the logarithms of shares and powers, so
a cap keeps the problem convex. It is treated like a maximum (:mod:`smooth_maximum`): with
``e = energy / cap`` and any ``w >= 0``,

    w T (e^(1/T) - 1)

is convex, at most 0 where the cap holds, and ``w e^(1/T)`` is a better multiplier. At a
fixed point a cap is met exactly or costs nothing.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.core.batch_axis import sum_nodes
from collapipe_jax.edge.cost.chain import Messages, at_gateway, at_next, sum_by_sender
from collapipe_jax.edge.cost.decision import Allocation, MicroBatches, PerCluster, PerNode, Segments
from collapipe_jax.edge.cost.evaluate import (
    RoundTerms,
    air_energy_j,
    message_energy_j,
    round_terms,
)
from collapipe_jax.edge.cost.fixed_partition import EnergyCaps, FixedPartition, fix_partition
from collapipe_jax.edge.cost.latency import air_times
from collapipe_jax.edge.cost.link_quality import BitTimes, link_sinrs, round_links
from collapipe_jax.edge.cost.maximum import Maximum
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.network.channel import with_least_attempts
from collapipe_jax.edge.solver.derivative import SinrSlopes, sinr_elasticities
from collapipe_jax.edge.solver.limits import LEAST_LOG_POWER, to_allocation
from collapipe_jax.edge.solver.smooth_maximum import TEMPERATURE, PowerMean, Weights

_STEEPEST = 0.1
"""Excess, as a logarithm, from where a penalty goes on along its tangent. A multiplier then
grows by a third in a step, slowly enough for powers to follow."""
_INITIAL_MULTIPLIER, _LEAST_MULTIPLIER = 0.1, 1e-4
"""Over the sum of the objective's weights."""
IN_REACH = 1.1
"""A cap can be kept that leaves a node this many times the least energy of its messages."""
_OUT_OF_REACH = 2.0
"""Where it cannot, the node may spend this many times that least. Nearer to it powers
vanish, and what is saved costs the whole round."""
_LEAST_J = 1e-15
_NEWTON_STEPS, _LARGEST_SHIFT, _LEAST_ELASTICITY = 6, 3.0, 1e-3


class CapPenalties(NamedTuple):
    """What caps add to the objective."""

    smooth: PerCluster  # of a cluster's nodes
    exact: Array  # the same of the caps that are exceeded, 0 or more
    cost_per_j: PerNode  # of a node's energy on air
    multiplier: PerNode  # better ones
    stiffness: PerNode  # second derivative by a node's energy


def fix_capped_partition(
    problem: RoundProblem, segments: Segments, micro_batches: MicroBatches
) -> FixedPartition:
    """A fixed partition whose nodes' budgets are caps of this round.

    Args:
      problem: with batch axes. A queue of energy that is not 0 is an estimate of what the
        node's budget is worth; the multiplier of its cap starts from there.
      segments, micro_batches: whole numbers.
    """
    control = problem.control
    queue, budget_j = problem.by_node.energy_queue, problem.by_node.energy_budget_j
    no_queue = problem.with_energy_queue(jnp.zeros_like(control.energy_queue))
    fixed = fix_partition(no_queue, segments, micro_batches)
    left_j, least_j = budget_j - fixed.constant_j, least_air_energy_j(fixed)
    room_j = jnp.where(left_j >= IN_REACH * least_j, left_j, _OUT_OF_REACH * least_j)
    room_j = jnp.where(fixed.active, jnp.maximum(room_j, _LEAST_J), 1.0)
    weight = control.v + control.divergence_queue
    initial = jnp.where(queue > 0, queue * room_j / budget_j, _INITIAL_MULTIPLIER * weight)
    return fixed.replace(caps=EnergyCaps(room_j, initial, _LEAST_MULTIPLIER * weight))


def least_air_energy_j(fixed: FixedPartition) -> PerNode:
    """Least energy of a node's messages, without interference; 0 where idle.

    That of :func:`.least_bit_energy_j`, whatever the shares.
    """
    radio, one = fixed.radio, jnp.ones_like(fixed.hop_bits)
    watt = Allocation(one, one, one[0], one[0])
    sinr = link_sinrs(fixed, watt, jnp.zeros_like(one))

    def time(sinr, band_hz):
        once_s = math.log(2.0) * radio.snr_gap / (band_hz * sinr)
        return Maximum(with_least_attempts(radio, once_s), None)

    bit_time = BitTimes(
        hop=time(sinr.hop, radio.d2d_bandwidth_hz),
        move=time(sinr.move, radio.d2d_bandwidth_hz),
        uplink=time(sinr.uplink, radio.d2e_bandwidth_hz),
        downlink_s=jnp.zeros_like(one[0]),
    )
    return air_energy_j(fixed, message_energy_j(fixed, watt, air_times(fixed, bit_time)))


def cap_penalties(
    fixed: FixedPartition, smooth: RoundTerms, multiplier: PerNode, temperature: float
) -> CapPenalties:
    """Penalties of the caps at a point."""
    assert fixed.caps is not None
    air_j = jnp.maximum(air_energy_j(fixed, smooth.message_j), _LEAST_J)
    penalty, slope = _penalty(_log_excess(fixed.caps, air_j), temperature)
    cost = multiplier * slope
    return CapPenalties(
        smooth=sum_nodes(multiplier * penalty),
        exact=sum_nodes(multiplier * jnp.maximum(penalty, 0.0)),
        cost_per_j=jnp.where(fixed.active, cost / air_j, 0.0),
        multiplier=jnp.maximum(cost, fixed.caps.least_multiplier),
        stiffness=cost / temperature / air_j**2,
    )


def _log_excess(caps: EnergyCaps, air_j: Array) -> Array:
    """Logarithm of energies on air over what caps leave for them; very low where idle."""
    return jnp.log(jnp.maximum(air_j, _LEAST_J) / caps.room_j)


def _penalty(excess: Array, temperature: float) -> tuple[Array, Array]:
    """Penalty of a cap for a multiplier of 1, and its slope."""
    bounded = jnp.minimum(excess, _STEEPEST)
    slope = jnp.exp(bounded / temperature)
    return temperature * (slope - 1.0) + slope * (excess - bounded), slope


def cap_curvature(
    fixed: FixedPartition, smooth: RoundTerms, sinrs: SinrSlopes, stiffness: PerNode
) -> Allocation:
    """Stiffness times squared slopes of energies, by shares and powers."""
    rising_j = _rising_energy(smooth.message_j, sinrs.time)
    d2d_j = sum_by_sender(rising_j.hop, rising_j.move, fixed.chain)
    of_next = at_next(stiffness, fixed.chain)
    by_share = stiffness * rising_j.hop[0] ** 2 + of_next * rising_j.hop[1] ** 2
    uplink = at_gateway(stiffness, fixed.chain.gateway) * rising_j.uplink**2
    return Allocation(
        d2d_share=jnp.where(fixed.chain.hops, by_share, 0.0),
        d2d_power=jnp.where(fixed.active, stiffness * d2d_j**2, 0.0),
        d2e_share=uplink,
        d2e_power=uplink,
    )


def _rising_energy(message_j: Messages, elasticity: Messages) -> Messages:
    """Slopes of messages' energies by the logarithm of their power."""
    return jax.tree.map(lambda e, j: (1.0 - e) * j, elasticity, message_j)


def air_energy_and_slope(
    fixed: FixedPartition, logs: Allocation, weights: Weights
) -> tuple[PerNode, PerNode]:
    """Energies of nodes on air, and their slopes by logarithms of all powers of the node."""
    allocation = to_allocation(fixed, logs)
    links = round_links(fixed, allocation)
    exact_j = round_terms(fixed, allocation, links=links).message_j
    smooth = round_terms(fixed, allocation, PowerMean(weights, TEMPERATURE), links)
    rising_j = _rising_energy(exact_j, sinr_elasticities(fixed, smooth)[1])
    return air_energy_j(fixed, exact_j), air_energy_j(fixed, rising_j)


def scale_powers_to_caps(fixed: FixedPartition, logs: Allocation, weights: Weights) -> Allocation:
    """Lower the powers of the nodes above their caps, all of a node by one factor.

    By Newton's method for all nodes at once: the logarithm of a node's energy is convex and
    increasing in that of the factor, and falls with the others' interference. Less power may need
    more attempts of reliable links: a node whose energy would rise keeps its powers.
    """
    caps = fixed.caps
    assert caps is not None

    def shifted(shift):
        of_gateway = at_gateway(shift, fixed.chain.gateway)
        return logs._replace(
            d2d_power=jnp.maximum(logs.d2d_power + shift, LEAST_LOG_POWER),
            d2e_power=jnp.maximum(logs.d2e_power + of_gateway, LEAST_LOG_POWER),
        )

    def newton(_, shift):
        air_j, slope_j = air_energy_and_slope(fixed, shifted(shift), weights)
        elasticity = jnp.maximum(slope_j / jnp.maximum(air_j, 1e-30), _LEAST_ELASTICITY)
        step = jnp.clip(_log_excess(caps, air_j) / elasticity, -_LARGEST_SHIFT, _LARGEST_SHIFT)
        return jnp.where(fixed.active, jnp.minimum(shift - step, 0.0), 0.0)

    start = jnp.zeros_like(caps.room_j)
    shift = jax.lax.fori_loop(0, _NEWTON_STEPS, newton, start)
    if fixed.radio.retransmissions == "reliable":
        before_j, _ = air_energy_and_slope(fixed, logs, weights)
        after_j, _ = air_energy_and_slope(fixed, shifted(shift), weights)
        shift = jnp.where(after_j < before_j, shift, 0.0)
    return shifted(shift)
