"""Links of a round at given shares and powers: interference, SINRs, times of a bit, losses."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.batching import fusion_barrier, is_small_batch, sum_nodes
from collapipe_jax.cost.chain import Messages, at_next_active
from collapipe_jax.cost.decision import Allocation
from collapipe_jax.cost.fixed_partition import FixedPartition
from collapipe_jax.cost.maximum import Maximum, MaximumRule
from collapipe_jax.network.channel import (
    d2d_sinr,
    hazard_and_elasticity,
    spectral_efficiency,
    unlimited_efficiency,
    uplink_sinr,
)


class Links(NamedTuple):
    """Quality of all links.

    Attributes:
      sinr: of every message.
      bit_hz_s: time of a bit on a hertz, without the ceiling of modulation.
      hazard: of a micro-batch's whole trip, ``[N, ...]``.
      hazard_fall: of that hazard per unit of a SINR's logarithm; hops and the uplink.
    """

    sinr: Messages
    bit_hz_s: Messages
    hazard: Array
    hazard_fall: Messages


class BitTimes(NamedTuple):
    """Time on air of a bit.

    Attributes:
      hop: ``[2, P, N, ...]``.
      move: ``[2, K, N, ...]``.
      uplink: ``[N, ...]``.
      downlink_s: ``[N, ...]``.
    """

    hop: Maximum
    move: Maximum
    uplink: Maximum
    downlink_s: Array


def interference_w(cross_gain: Array, d2d_power_w: Array) -> Array:
    """Interference at every node from the active nodes of other clusters.

    Source: docs/system-model.md (1).

    Args:
      cross_gain: sender to receiver, activity included, 0 inside a cluster,
        ``[P, N, P, N, ...]``.
      d2d_power_w: 0 on idle nodes, ``[P, N, ...]``.

    Returns:
      ``[P, N, ...]``, over the whole D2D band.
    """
    if is_small_batch(cross_gain):
        return jnp.sum(d2d_power_w[:, :, None, None] * cross_gain, axis=(0, 1))
    nodes, clusters = cross_gain.shape[:2]
    senders = [(i, n) for i in range(nodes) for n in range(clusters)]
    return fusion_barrier(sum(d2d_power_w[i, n] * cross_gain[i, n] for i, n in senders))


def active_power_w(fixed: FixedPartition, allocation: Allocation) -> Array:
    """D2D powers, 0 on idle nodes, ``[P, N, ...]``."""
    return jnp.where(fixed.active, allocation.d2d_power, 0.0)


def round_links(
    fixed: FixedPartition, allocation: Allocation, received_w: Array | None = None
) -> Links:
    """Quality of all links at given shares and powers.

    Args:
      fixed: the partition.
      allocation: powers in watts.
      received_w: interference at every node, ``[P, N, ...]``; by default that of
        ``allocation``.
    """
    if received_w is None:
        received_w = interference_w(fixed.cross_gain, active_power_w(fixed, allocation))
    return links_at(fixed, link_sinrs(fixed, allocation, received_w))


def links_at(fixed: FixedPartition, sinr: Messages) -> Links:
    """Quality of all links at given SINRs."""
    bit_hz_s = Messages(*(1.0 / unlimited_efficiency(x, fixed.radio) for x in sinr))
    return Links(sinr, bit_hz_s, *micro_batch_hazard(fixed, sinr))


def link_sinrs(fixed: FixedPartition, allocation: Allocation, received_w: Array) -> Messages:
    """SINR of every message. Parameters take the whole D2D band.

    Args:
      fixed: the partition.
      allocation: powers in watts.
      received_w: interference at every node, ``[P, N, ...]``.
    """
    radio, active = fixed.radio, fixed.active
    power_w = jnp.where(active, allocation.d2d_power, 1.0)
    d2e_power_w = jnp.where(active[0], allocation.d2e_power, 1.0)

    def pair(power_w, gain, share, received_w):
        both = zip(power_w, gain, received_w, strict=True)
        return jnp.stack([d2d_sinr(radio, power, to, share, at) for power, to, at in both])

    return Messages(
        hop=pair(
            (power_w, at_next_active(power_w, active)),
            fixed.hop_gain,
            allocation.d2d_share,
            (at_next_active(received_w, active), received_w),
        ),
        move=pair(
            (power_w[1:], power_w[0]),
            fixed.move_gain,
            jnp.ones(()),
            (received_w[0], received_w[1:]),
        ),
        uplink=uplink_sinr(radio, d2e_power_w, fixed.uplink_gain, allocation.d2e_share),
    )


def link_bit_times(
    fixed: FixedPartition, allocation: Allocation, links: Links, maximum: MaximumRule
) -> BitTimes:
    """Time on air of a bit of every message.

    The ceiling of modulation makes it a maximum of two times.

    Args:
      fixed: the partition.
      allocation: shares of the bands.
      links: quality of the links.
      maximum: how maxima are taken.
    """
    radio = fixed.radio
    d2d_s = 1.0 / radio.d2d_bandwidth_hz
    hop_s, uplink_s = (
        d2d_s / allocation.d2d_share,
        1.0 / radio.d2e_bandwidth_hz / allocation.d2e_share,
    )
    ceiling = 1.0 / radio.max_spectral_efficiency

    def bit_time(name, bit_hz_s, hz_s):
        return maximum.pair(name, hz_s * bit_hz_s, hz_s * ceiling)

    return BitTimes(
        hop=bit_time("hop", links.bit_hz_s.hop, hop_s),
        move=bit_time("move", links.bit_hz_s.move, d2d_s),
        uplink=bit_time("uplink", links.bit_hz_s.uplink, uplink_s),
        downlink_s=uplink_s / spectral_efficiency(fixed.downlink_sinr, radio),
    )


def micro_batch_hazard(fixed: FixedPartition, sinr: Messages) -> tuple[Array, Messages]:
    """Hazard of a micro-batch's whole trip, and its falls by the SINRs.

    Source: docs/system-model.md (7).

    Args:
      fixed: the partition.
      sinr: of every message.

    Returns:
      ``[N, ...]``, 0 for a cluster that sits out; and per unit of a SINR's logarithm.
    """
    active, blocks = fixed.active, fixed.hop_blocks
    hop, hop_fall = hazard_and_elasticity(fixed.radio, sinr.hop)
    uplink, uplink_fall = hazard_and_elasticity(fixed.radio, sinr.uplink)
    hops = sum_nodes(jnp.where(active, hop[0] + hop[1], 0.0))
    hazard = blocks * hops + fixed.uplink_blocks * uplink + fixed.downlink_hazard
    fall = Messages(
        hop=jnp.where(active, blocks * hop_fall, 0.0),
        move=jnp.zeros(()),
        uplink=fixed.uplink_blocks * uplink_fall,
    )
    return fusion_barrier((hazard, fall))
