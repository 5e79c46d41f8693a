"""Links of a round at given shares and powers: interference, SINRs, times of a bit, losses."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Num

from collapipe_jax.core.batch_axis import fusion_barrier, is_small_batch, sum_nodes
from collapipe_jax.edge.cost.chain import Messages, at_gateway, at_next, at_others
from collapipe_jax.edge.cost.decision import (
    Allocation,
    Broadcast,
    CrossGain,
    PerCluster,
    PerMove,
    PerNode,
)
from collapipe_jax.edge.cost.fixed_partition import FixedPartition
from collapipe_jax.edge.cost.maximum import Maximum, MaximumRule
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.network.channel import (
    d2d_sinr,
    fastest_part,
    hazard_and_elasticity,
    spectral_efficiency,
    transport_block_hazard,
    unlimited_efficiency,
    uplink_sinr,
    with_attempts,
)


class Links(NamedTuple):
    """Quality of all links."""

    sinr: Messages
    bit_hz_s: Messages  # time of a bit on a hertz, without the ceiling of modulation
    hazard: PerCluster  # of a micro-batch's whole trip
    hazard_fall: Messages  # of that per unit of a SINR's logarithm; hops and the uplink
    move_part: PerMove | None = None  # of the band, where reliable links narrow it; else 1


class BitTimes(NamedTuple):
    """Time on air of a bit of every message."""

    hop: Maximum
    move: Maximum
    uplink: Maximum
    downlink_s: PerCluster


def interference_w(cross_gain: CrossGain, d2d_power_w: PerNode) -> PerNode:
    """Interference at every node from the active nodes of other clusters, whole D2D band.

    Gains lead from sender to receiver, activity included. Source: docs/system-model.md (1).
    """
    if is_small_batch(cross_gain):
        return jnp.sum(d2d_power_w[:, :, None, None] * cross_gain, axis=(0, 1))
    nodes, clusters = cross_gain.shape[:2]
    senders = [(i, n) for i in range(nodes) for n in range(clusters)]
    return fusion_barrier(sum(d2d_power_w[i, n] * cross_gain[i, n] for i, n in senders))


def received_interference_w(fixed: FixedPartition, allocation: Allocation) -> PerNode:
    """Interference at every node at powers in watts."""
    return interference_w(fixed.cross_gain, active_power_w(fixed, allocation))


def active_power_w(fixed: FixedPartition, allocation: Allocation) -> PerNode:
    """D2D powers, 0 of nodes that send nothing."""
    return jnp.where(fixed.chain.senders, allocation.d2d_power, 0.0)


def round_links(
    fixed: FixedPartition, allocation: Allocation, received_w: PerNode | None = None
) -> Links:
    """Quality of all links at given shares and powers in watts.

    Interference received at every node is by default that of the allocation itself.
    """
    if received_w is None:
        received_w = received_interference_w(fixed, allocation)
    return links_at(fixed, link_sinrs(fixed, allocation, received_w))


def links_at(fixed: FixedPartition, sinr: Messages) -> Links:
    """Quality of all links at given SINRs; without hazard for a cluster that sits out.

    Source: docs/system-model.md (7).
    """
    has_hop, hop_blocks, move_part = fixed.chain.hops, fixed.hop_blocks, None
    if fixed.radio.retransmissions == "reliable":
        move_part = fastest_part(fixed.radio, sinr.move)
        sinr = sinr._replace(move=sinr.move / move_part)
    bit_hz_s = Messages(*(1.0 / unlimited_efficiency(x, fixed.radio) for x in sinr))
    hop, hop_fall = hazard_and_elasticity(fixed.radio, sinr.hop)
    uplink, uplink_fall = hazard_and_elasticity(fixed.radio, sinr.uplink)
    hops = sum_nodes(jnp.where(has_hop, hop[0] + hop[1], 0.0))
    hazard = hop_blocks * hops + fixed.uplink_blocks * uplink + fixed.downlink_hazard
    fall = Messages(
        hop=jnp.where(has_hop, hop_blocks * hop_fall, 0.0),
        move=jnp.zeros(()),
        uplink=fixed.uplink_blocks * uplink_fall,
    )
    hazard, fall = fusion_barrier((hazard, fall))
    return Links(sinr, bit_hz_s, hazard, fall, move_part)


def link_sinrs(fixed: FixedPartition, allocation: Allocation, received_w: PerNode) -> Messages:
    """SINR of every message at the interference received, of parameters on the whole D2D band."""
    radio, chain, gateway = fixed.radio, fixed.chain, fixed.chain.gateway
    power_w = jnp.where(chain.senders, allocation.d2d_power, 1.0)
    d2e_power_w = jnp.where(chain.members[0], allocation.d2e_power, 1.0)

    def pair(power_w, gain, share, received_w):
        both = zip(power_w, gain, received_w, strict=True)
        return jnp.stack([d2d_sinr(radio, power, to, share, at) for power, to, at in both])

    return Messages(
        hop=pair(
            (power_w, at_next(power_w, chain)),
            fixed.hop_gain,
            allocation.d2d_share,
            (at_next(received_w, chain), received_w),
        ),
        move=pair(
            (at_others(power_w, gateway), at_gateway(power_w, gateway)),
            fixed.move_gain,
            jnp.ones(()),
            (at_gateway(received_w, gateway), at_others(received_w, gateway)),
        ),
        uplink=uplink_sinr(radio, d2e_power_w, fixed.uplink_gain, allocation.d2e_share),
    )


def d2e_hazard(
    problem: RoundProblem, samples: Num[Array, "..."], up_sinr: Broadcast, down_sinr: Broadcast
) -> Broadcast:
    """Hazard of a micro-batch of some samples on its uplink and its downlink. Shapes broadcast."""
    work, radio = problem.workload, problem.radio
    uplink = work.uplink_bits * transport_block_hazard(radio, up_sinr)
    downlink = work.activation_bits * transport_block_hazard(radio, down_sinr)
    return samples / radio.transport_block_bits * (uplink + downlink)


def link_bit_times(
    fixed: FixedPartition, allocation: Allocation, links: Links, maximum: MaximumRule
) -> BitTimes:
    """Time on air of a bit of every message, the longer by its SINR and by the ceiling.

    Attempts count unless they are free.
    """
    radio = fixed.radio
    d2d_s = 1.0 / radio.d2d_bandwidth_hz
    hop_s = d2d_s / allocation.d2d_share
    uplink_s = 1.0 / radio.d2e_bandwidth_hz / allocation.d2e_share
    ceiling = 1.0 / radio.max_spectral_efficiency

    def bit_time(name, sinr, bit_hz_s, hz_s):
        once = maximum.pair(name, hz_s * bit_hz_s, hz_s * ceiling)
        return once._replace(value=with_attempts(radio, sinr, once.value))

    move_s = d2d_s if links.move_part is None else d2d_s / links.move_part
    sinr, bit_hz_s, down = links.sinr, links.bit_hz_s, fixed.downlink_sinr
    return BitTimes(
        hop=bit_time("hop", sinr.hop, bit_hz_s.hop, hop_s),
        move=bit_time("move", sinr.move, bit_hz_s.move, move_s),
        uplink=bit_time("uplink", sinr.uplink, bit_hz_s.uplink, uplink_s),
        downlink_s=with_attempts(radio, down, uplink_s / spectral_efficiency(down, radio)),
    )
