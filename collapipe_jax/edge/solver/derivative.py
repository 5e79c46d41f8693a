"""Slope and curvature of the smooth objective, written out.

This is the derivative of :func:`.cost.evaluate.round_terms` under power means, by the
chain rule from times on air and SINRs to logarithms of shares and powers. A larger share
shortens a message's time and lowers its SINR; a larger power raises SINRs and energy.
Written out it is faster than automatic differentiation, and the curvature comes from the same
terms.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.core.batch_axis import fusion_barrier, sum_nodes
from collapipe_jax.edge.cost.chain import (
    Messages,
    at_next,
    from_previous,
    sum_by_receiver,
    sum_by_sender,
)
from collapipe_jax.edge.cost.convergence import excess_inverse_survival, inverse_survival_slope
from collapipe_jax.edge.cost.decision import Allocation, PerCluster, PerNode
from collapipe_jax.edge.cost.evaluate import RoundTerms, receiving_cost
from collapipe_jax.edge.cost.fixed_partition import FixedPartition
from collapipe_jax.edge.cost.latency import d2d_stage_s, message_time_s
from collapipe_jax.edge.cost.link_quality import interference_w
from collapipe_jax.edge.network.channel import efficiency_elasticity, threshold_over
from collapipe_jax.edge.solver.smooth_maximum import mean_slope


class Marginals(NamedTuple):
    """What the objective charges at a point."""

    cost_per_s: PerCluster  # of a cluster's latency
    latency_part: PerCluster  # of a cluster in the maximum of the latencies
    sender_cost_per_j: Messages  # of energy, by message
    objective: Array  # smooth, ``[...]`` or by cluster


class TimeSlopes(NamedTuple):
    """Slopes of the smooth objective by the logarithms of times on air."""

    energy: Messages  # through energy alone
    stage: Messages  # through the longest stages alone, hops and the uplink
    total: Messages  # through energy and latency
    downlink: PerCluster  # of the downlink
    downlink_stage: PerCluster  # of the downlink, through the longest stage alone
    received: Messages  # through energy of receivers alone, part of the total


class SinrSlopes(NamedTuple):
    """Falls of the smooth objective by the logarithms of SINRs."""

    efficiency: Messages  # elasticity of the spectral efficiency without a ceiling
    time: Messages  # elasticity of the smooth time; 0 at the ceiling
    hazard: Messages  # fall of a micro-batch's hazard, hops and the uplink
    cost_per_hazard: PerCluster
    total: Messages  # of the objective, through times and losses


def time_slopes(fixed: FixedPartition, terms: RoundTerms, marginals: Marginals) -> TimeSlopes:
    """Slopes by times on air: in sequence, as the longest stage, and in energy."""
    air, flows, nodes = terms.air, terms.flows, fixed.active.shape[0]
    per_s = marginals.cost_per_s
    step_cost = fixed.local_steps * per_s
    wait_cost = step_cost * (fixed.micro_batches - 1.0)

    # (11): every further micro-batch waits for the longest stage of its flow.
    def stage_slopes(longest, hop_s, link_s):
        hop_stage_s = d2d_stage_s(fixed, message_time_s(hop_s, fixed.hop_overhead_s))
        link_stage_s = message_time_s(link_s, fixed.d2e_overhead_s)
        stage_s = jnp.concatenate([hop_stage_s, link_stage_s[None]])
        return wait_cost * mean_slope(longest.value, longest.part[: nodes + 1], stage_s)

    forward = stage_slopes(flows.forward, air.hop_s[0], air.uplink_s)
    backward = stage_slopes(flows.backward, air.hop_s[1], air.downlink_s)
    stage = Messages(
        hop=air.hop_s
        * jnp.stack([_by_hop(fixed, forward[:nodes]), _by_hop(fixed, backward[:nodes])]),
        move=jnp.zeros(()),
        uplink=air.uplink_s * forward[nodes],
    )
    downlink_stage = air.downlink_s * backward[nodes]
    # All that a second on air costs: in sequence, in the longest stage, and in energy.
    energy = jax.tree.map(jnp.multiply, marginals.sender_cost_per_j, terms.message_j)
    total = Messages(
        hop=air.hop_s * step_cost + energy.hop + stage.hop,
        move=air.move_s * per_s + energy.move,
        uplink=air.uplink_s * step_cost + air.model_uplink_s * per_s + energy.uplink + stage.uplink,
    )
    downlink = air.downlink_s * step_cost + air.model_downlink_s * per_s + downlink_stage
    received = receiving_cost(fixed, terms.received_s)
    downlink = downlink + received.uplink
    total = total._replace(hop=total.hop + received.hop, move=total.move + received.move)
    return fusion_barrier(TimeSlopes(energy, stage, total, downlink, downlink_stage, received))


def _by_hop(fixed: FixedPartition, by_stage: PerNode) -> PerNode:
    """Numbers of D2D stages, summed over the stages that a hop is part of."""
    if fixed.radio.duplex == "full":
        return by_stage
    return by_stage + at_next(by_stage, fixed.chain)


def _hop_stiffness(fixed: FixedPartition, stiffness: Array, part: Array) -> PerNode:
    """Stiffness of a flow's D2D stages by hop: of two stages of a hop the mean by their parts."""
    nodes = fixed.active.shape[0]
    stiffness = stiffness[:nodes]
    if fixed.radio.duplex == "full":
        return stiffness
    part = part[:nodes]
    total = _by_hop(fixed, part)
    return _by_hop(fixed, part * stiffness) / jnp.where(total > 0, total, 1.0)


def sinr_slopes(fixed: FixedPartition, terms: RoundTerms, times: TimeSlopes) -> SinrSlopes:
    """Slopes by SINRs: shorter times and fewer losses."""
    efficiency, time = sinr_elasticities(fixed, terms)
    hazard = terms.links.hazard_fall
    excess = excess_inverse_survival(terms.links.hazard)
    per_hazard = _loss_cost_per_excess(fixed) * inverse_survival_slope(excess)
    total = Messages(
        hop=time.hop * times.total.hop + per_hazard * hazard.hop,
        move=time.move * times.total.move,
        uplink=time.uplink * times.total.uplink + per_hazard * hazard.uplink,
    )
    return SinrSlopes(efficiency, time, hazard, per_hazard, fusion_barrier(total))


def sinr_elasticities(fixed: FixedPartition, terms: RoundTerms) -> tuple[Messages, Messages]:
    """Elasticities by a SINR: of the efficiency, and of the smooth time as a fall."""
    links = terms.links
    elasticity = functools.partial(efficiency_elasticity, radio=fixed.radio)
    efficiency = jax.tree.map(elasticity, links.sinr, links.bit_hz_s)
    times = terms.bit_time
    below_ceiling = Messages(times.hop.part, times.move.part, times.uplink.part)
    time = jax.tree.map(jnp.multiply, below_ceiling, efficiency)
    if links.move_part is not None:
        attempts = jax.tree.map(functools.partial(threshold_over, fixed.radio), links.sinr)
        time = jax.tree.map(jnp.add, time, attempts)
        # A narrower band keeps the SINR, so that a time falls as its band grows.
        time = time._replace(move=jnp.where(links.move_part < 1.0, 1.0, time.move))
    return efficiency, time


def _loss_cost_per_excess(fixed: FixedPartition) -> PerCluster:
    """Cost of a cluster's losses per unit of the excess inverse survival."""
    return fixed.costs.divergence * fixed.divergence.per_excess


def interference_cost_per_w(
    fixed: FixedPartition, sinrs: SinrSlopes, received_w: PerNode
) -> PerNode:
    """Cost of a watt of every node on other clusters, by what its receivers hear already."""
    noise_w = fixed.radio.d2d_bandwidth_hz * fixed.radio.node_noise_w_per_hz + received_w
    heard = sum_by_receiver(sinrs.total.hop, sinrs.total.move, fixed.chain)
    return interference_w(fixed.cross_gain_to, heard / noise_w)


def slope(
    fixed: FixedPartition,
    times: TimeSlopes,
    sinrs: SinrSlopes,
    interference_cost: PerNode,
    bandwidth_cost: PerCluster,
) -> Allocation:
    """Slope by the logarithms of shares and powers, 0 where idle."""
    chain, used = fixed.chain, fixed.chain.used
    time, sinr, energy = times.total, sinrs.total, times.energy
    d2d_share = sinr.hop[0] + sinr.hop[1] - (time.hop[0] + time.hop[1])
    d2d_power = sum_by_sender(energy.hop - sinr.hop, energy.move - sinr.move, chain)
    d2e_share = sinr.uplink - time.uplink - times.downlink + bandwidth_cost
    return Allocation(
        d2d_share=jnp.where(used.d2d_share, d2d_share, 0.0),
        d2d_power=jnp.where(used.d2d_power, d2d_power + interference_cost, 0.0),
        d2e_share=jnp.where(used.d2e_share, d2e_share, 0.0),
        d2e_power=jnp.where(used.d2e_power, energy.uplink - sinr.uplink, 0.0),
    )


def curvature(
    fixed: FixedPartition,
    terms: RoundTerms,
    marginals: Marginals,
    times: TimeSlopes,
    sinrs: SinrSlopes,
    interference_cost: PerNode,
    temperature: float,
) -> Allocation:
    """Diagonal preconditioner: how fast the slope changes along each variable; no bound.

    docs/dssra.md says which second derivatives it takes.
    """
    chain, sharpness = fixed.chain, 1.0 / temperature
    energy, is_reliable = times.energy, fixed.radio.retransmissions == "reliable"
    time, down_time = _time_curvatures(fixed, terms, times, sharpness)
    loss = _loss_curvatures(fixed, terms, marginals, times, sinrs)
    ceiling = _ceiling_curvatures(fixed, terms, times, sinrs, sharpness)
    hop_time, hop_loss, hop_ceiling = fusion_barrier((time.hop, loss.hop, ceiling.hop))
    share = hop_time * _steepness(sinrs.time.hop) ** 2 if is_reliable else hop_time
    share = sum_nodes(share + hop_ceiling + hop_loss)
    hop = sinrs.time.hop**2 * hop_time + hop_ceiling + hop_loss + energy.hop
    move = (sinrs.time.move + ceiling.move) * times.total.move + energy.move
    hop, move = fusion_barrier((hop, move))
    uplink = sinrs.time.uplink**2 * time.uplink + ceiling.uplink + loss.uplink + energy.uplink

    # The maximum of the latencies curves with the square of a variable's part in it.
    latency_cost = marginals.cost_per_s * terms.cluster_latency_s
    spread = sharpness * (1.0 - marginals.latency_part)
    spread = spread / jnp.where(latency_cost > 0, latency_cost, 1.0)
    hop_part = times.total.hop - (energy.hop + times.received.hop)
    up_part, up_time = times.total.uplink - energy.uplink, time.uplink
    down_part = times.downlink - times.received.uplink
    power_part = sinrs.time.hop * hop_part
    power_part = power_part[0] + from_previous(power_part[1], chain)
    if is_reliable:
        steep = _steepness(sinrs.time.uplink)
        hop_part, up_part = hop_part * _steepness(sinrs.time.hop), up_part * steep
        up_time = up_time * steep**2
    return Allocation(
        d2d_share=share + spread * sum_nodes(hop_part) ** 2,
        d2d_power=sum_by_sender(hop, move, chain) + interference_cost + spread * power_part**2,
        d2e_share=up_time + loss.uplink + down_time + spread * (up_part + down_part) ** 2,
        d2e_power=uplink + spread * (sinrs.time.uplink * up_part) ** 2,
    )


def _steepness(elasticity: Array) -> Array:
    """Size of a time's elasticity to a share, at least 1.

    A wider band shortens a message by itself, and lengthens it by the elasticity to its SINR.
    Attempts may make that more than 2.
    """
    return jnp.maximum(jnp.abs(elasticity - 1.0), 1.0)


def _time_curvatures(
    fixed: FixedPartition, terms: RoundTerms, times: TimeSlopes, sharpness: float
) -> tuple[Messages, PerCluster]:
    """Curvature by the logarithms of times on air, moves left out, and by the downlink's.

    A bottleneck adds the sharpness of its mean.
    """
    nodes, total, stage = fixed.active.shape[0], times.total, times.stage
    flows = terms.flows.forward, terms.flows.backward
    forward, backward = (sharpness * (1.0 - flow.part) for flow in flows)
    hop = jnp.stack(
        [
            _hop_stiffness(fixed, stiffness, flow.part)
            for stiffness, flow in zip((forward, backward), flows, strict=True)
        ]
    )
    time = Messages(
        hop=total.hop + stage.hop * hop,
        move=jnp.zeros(()),
        uplink=total.uplink + stage.uplink * forward[nodes],
    )
    return time, times.downlink + times.downlink_stage * backward[nodes]


def _loss_curvatures(
    fixed: FixedPartition,
    terms: RoundTerms,
    marginals: Marginals,
    times: TimeSlopes,
    sinrs: SinrSlopes,
) -> Messages:
    """Curvature of losses by the logarithms of SINRs, moves left out.

    Where losses dominate, steps follow the logarithm of the cost, which is less curved. Reliable
    links lose nothing: attempts lengthen a time by ``e^z``, whose slope changes by ``z``.
    """
    excess = excess_inverse_survival(terms.links.hazard)
    damping = 1.0 - _loss_cost_per_excess(fixed) * excess / marginals.objective
    damping = jnp.clip(damping, 0.0, 1.0)

    def loss(fall, time, sinr):
        if fixed.radio.retransmissions == "reliable":
            return time * threshold_over(fixed.radio, sinr)
        return sinrs.cost_per_hazard * fall * (fixed.radio.harq_attempts + damping * fall)

    fall, time, sinr = sinrs.hazard, times.total, terms.links.sinr
    return Messages(
        hop=loss(fall.hop, time.hop, sinr.hop),
        move=jnp.zeros(()),
        uplink=loss(fall.uplink, time.uplink, sinr.uplink),
    )


def _ceiling_curvatures(
    fixed: FixedPartition,
    terms: RoundTerms,
    times: TimeSlopes,
    sinrs: SinrSlopes,
    sharpness: float,
) -> Messages:
    """Curvature of the smooth ceiling of the spectral efficiency, that of moves over their time.

    Attempts on a move are part of the latter.
    """

    def ceiling(part, elasticity):
        return part * (1.0 - part) * elasticity**2 * sharpness

    parts, efficiency = terms.bit_time, sinrs.efficiency
    move = ceiling(parts.move.part, efficiency.move)
    if fixed.radio.retransmissions == "reliable":
        steep = sinrs.time.move
        attempts = threshold_over(fixed.radio, terms.links.sinr.move)
        move = move + attempts + steep * (steep - 1.0)
    return Messages(
        hop=ceiling(parts.hop.part, efficiency.hop) * times.total.hop,
        move=move,
        uplink=ceiling(parts.uplink.part, efficiency.uplink) * times.total.uplink,
    )
