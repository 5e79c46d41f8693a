"""All messages of a round: their SINRs, rates and losses."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.cost.decision import Decision, Hops, active_nodes, next_active
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.network.channel import (
    d2d_rate_bps,
    d2d_sinr,
    d2e_rate_bps,
    downlink_sinr,
    interference_w,
    transport_block_hazard,
    uplink_sinr,
)


class Links(NamedTuple):
    """SINRs and rates of all messages of a round.

    Attributes:
      hop_sinr, hop_rate_bps: activations and gradients between nodes, ``[N, K + 1]``.
      uplink_sinr, uplink_rate_bps: control unit to base station, ``[N]``.
      downlink_sinr, downlink_rate_bps: base station to control unit, ``[N]``.
      collect_rate_bps, distribute_rate_bps: parameters from and to a device, on the
        whole band, ``[N, K]``.
    """

    hop_sinr: Hops
    hop_rate_bps: Hops
    uplink_sinr: Array
    uplink_rate_bps: Array
    downlink_sinr: Array
    downlink_rate_bps: Array
    collect_rate_bps: Array
    distribute_rate_bps: Array


def message_links(
    problem: RoundProblem, decision: Decision, interference: Array | None = None
) -> Links:
    """SINRs and rates of all messages, docs/system-model.md (1)-(5).

    Idle nodes are given the whole band, so that their unused entries stay finite.

    Args:
      problem: one round of one network.
      decision: who is active, with which shares and powers.
      interference: at every node in watts, ``[N, K + 1]``; None computes it by (1). A
        solver passes its own to look at clusters one by one.
    """
    radio = problem.radio
    active = active_nodes(decision.segments)
    following = next_active(active)
    if interference is None:
        interference = interference_w(radio, active, decision.d2d_power_w)
    power_w = decision.d2d_power_w
    share = jnp.where(active, decision.d2d_share, 1.0)
    forward_gain, backward_gain = hop_gains(radio.d2d_gain, following)
    sinr = Hops(
        _safe_sinr(radio, power_w, forward_gain, share, _pick(interference, following)),
        _safe_sinr(radio, _pick(power_w, following), backward_gain, share, interference),
    )
    whole = jnp.ones_like(power_w[:, 1:])
    collect = d2d_sinr(radio, power_w[:, 1:], radio.d2d_gain[:, 1:, 0], whole, interference[:, :1])
    distribute = d2d_sinr(
        radio, power_w[:, :1], radio.d2d_gain[:, 0, 1:], whole, interference[:, 1:]
    )
    cu_gain = radio.d2e_gain[:, 0]
    up_share = decision.d2e_share
    up = _divide_safely(uplink_sinr(radio, decision.d2e_power_w, cu_gain, 1.0), up_share)
    down = downlink_sinr(radio, cu_gain)
    return Links(
        hop_sinr=sinr,
        hop_rate_bps=Hops(*(d2d_rate_bps(radio, x, share) for x in sinr)),
        uplink_sinr=up,
        uplink_rate_bps=d2e_rate_bps(radio, up, up_share),
        downlink_sinr=down,
        downlink_rate_bps=d2e_rate_bps(radio, down, up_share),
        collect_rate_bps=d2d_rate_bps(radio, collect, whole),
        distribute_rate_bps=d2d_rate_bps(radio, distribute, whole),
    )


def hop_gains(d2d_gain: Array, following: Array) -> Hops:
    """Gains of every hop's two messages: ``g[n, i, next]`` and ``g[n, next, i]``.

    Args:
      d2d_gain: ``[N, K + 1, K + 1]`` (sender, receiver).
      following: node where each hop ends, ``[N, K + 1]``.
    """
    index = following[:, :, None]
    forward = jnp.take_along_axis(d2d_gain, index, axis=2)[..., 0]
    backward = jnp.take_along_axis(jnp.swapaxes(d2d_gain, 1, 2), index, axis=2)[..., 0]
    return Hops(forward, backward)


def _pick(values, following):
    """Value at the node where each hop ends. ``[N, K + 1]``."""
    return jnp.take_along_axis(values, following, axis=1)


def _divide_safely(value, share):
    """``value / share``, 0 where the share is."""
    return jnp.where(share > 0, value / jnp.where(share > 0, share, 1.0), 0.0)


def _safe_sinr(radio, power_w, gain, share, interference):
    """SINR of (3), and 0 where there is no share: no band, no message."""
    return _divide_safely(d2d_sinr(radio, power_w, gain, 1.0, interference), share)


def message_time_s(bits, rate_bps):
    """``bits / rate``; infinite at rate 0."""
    sends = rate_bps > 0
    return jnp.where(sends, bits / jnp.where(sends, rate_bps, 1.0), jnp.inf)


def micro_batch_hazard(problem: RoundProblem, decision: Decision, links: Links) -> Array:
    """Hazard ``Lambda_n`` of a micro-batch's whole trip, ``[N]``.

    Source: docs/system-model.md (7). 0 for a cluster that sits out.
    """
    work, radio = problem.workload, problem.radio
    active = active_nodes(decision.segments)
    hops = sum(
        jnp.sum(jnp.where(active, transport_block_hazard(radio, sinr), 0.0), axis=1)
        for sinr in links.hop_sinr
    )
    down = transport_block_hazard(radio, links.downlink_sinr)
    # Infinite where a cluster has no share; masked before the product, for its slope's sake.
    up = jnp.where(active[:, 0], transport_block_hazard(radio, links.uplink_sinr), 0.0)
    samples = work.batch / decision.micro_batches
    activation_blocks = samples * work.activation_bits / radio.transport_block_bits
    uplink_bits = samples * (work.activation_bits + work.target_bits)
    hazard = activation_blocks * (hops + down) + uplink_bits / radio.transport_block_bits * up
    return jnp.where(active[:, 0], hazard, 0.0)
