"""Links of data-parallel clients: D2E links of senders, D2D links of replicas in a cluster.

Equations are those of docs/system-model.md, section 6.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from collapipe_jax.edge.cost.decision import ClientDecision
from collapipe_jax.edge.cost.fixed_partition import interference_gain
from collapipe_jax.edge.cost.link_quality import interference_w
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.network.channel import (
    Radio,
    bit_time_s,
    d2d_sinr,
    downlink_sinr,
    narrowed_bit_time_s,
    uplink_sinr,
)

PerSender = Float[Array, "N S"]


class ClientLinks(NamedTuple):
    """SINRs and times of a bit between senders and the base station."""

    uplink_sinr: PerSender
    uplink_bit_s: PerSender
    downlink_sinr: PerSender
    downlink_bit_s: PerSender
    parameter_bit_s: PerSender  # of parameters on the downlink


class ReplicaLinks(NamedTuple):
    """SINRs and times of a bit between a control unit and its devices, on the whole D2D band."""

    down_sinr: Float[Array, "N K"]
    down_bit_s: Float[Array, "N K"]
    up_sinr: Float[Array, "N K"]
    up_bit_s: Float[Array, "N K"]


def of_clients(per_node: Float[Array, "N J"], decision: ClientDecision) -> Float[Array, "N C"]:
    """Entries of the nodes that train."""
    return per_node[:, :1] if decision.tier == "control_units" else per_node[:, 1:]


def of_senders(per_node: Float[Array, "N J"], decision: ClientDecision) -> PerSender:
    """Entries of the nodes that talk to the base station."""
    return per_node[:, 1:] if decision.tier == "devices" else per_node[:, :1]


def sends(decision: ClientDecision) -> Bool[Array, "N S"]:
    """Senders that take part in the round."""
    trains = decision.samples > 0
    return jnp.any(trains, axis=1, keepdims=True) if decision.tier == "hierarchical" else trains


def client_links(problem: RoundProblem, decision: ClientDecision) -> ClientLinks:
    """D2E links of every sender with its own gain and share.

    One that is left out has the whole band, so that its unused entries stay finite.
    """
    radio, used = problem.radio, sends(decision)
    gain = of_senders(radio.d2e_gain, decision)
    share = jnp.where(used, decision.d2e_share, 1.0)
    band_hz = share * radio.d2e_bandwidth_hz
    up, down = uplink_sinr(radio, decision.d2e_power_w, gain, share), downlink_sinr(radio, gain)
    down_bit_s = bit_time_s(radio, band_hz, down)
    parameter_bit_s = down_bit_s
    if decision.broadcast:
        parameter_bit_s = jnp.full_like(down_bit_s, broadcast_bit_s(radio, down, used))
    return ClientLinks(up, bit_time_s(radio, band_hz, up), down, down_bit_s, parameter_bit_s)


def broadcast_bit_s(radio: Radio, sinr: PerSender, used: Bool[Array, "N S"]) -> Float[Array, ""]:
    """Time of a bit for all receivers on the whole D2E band, at the rate of the worst.

    Source: docs/system-model.md (21).
    """
    bit_s = bit_time_s(radio, radio.d2e_bandwidth_hz, sinr)
    return jnp.max(jnp.where(used, bit_s, 0.0))


def replica_links(problem: RoundProblem, decision: ClientDecision) -> ReplicaLinks:
    """D2D links of a hierarchical round: nodes that take part send at full power."""
    radio, trains = problem.radio, decision.samples > 0
    active = jnp.concatenate([sends(decision), trains], axis=1)
    power_w = jnp.where(active, radio.d2d_power_max_w, 0.0)
    received_w = interference_w(interference_gain(radio), power_w.T).T
    down = d2d_sinr(radio, power_w[:, :1], radio.d2d_gain[:, 0, 1:], 1.0, received_w[:, 1:])
    up = d2d_sinr(radio, power_w[:, 1:], radio.d2d_gain[:, 1:, 0], 1.0, received_w[:, :1])
    band_hz = radio.d2d_bandwidth_hz
    down_bit_s = narrowed_bit_time_s(radio, band_hz, down)
    return ReplicaLinks(down, down_bit_s, up, narrowed_bit_time_s(radio, band_hz, up))
