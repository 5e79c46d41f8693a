"""What the smooth price of a point is made of: messages, latencies and losses.

Everything is kept twice where a maximum is made smooth: as it is, and smooth.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.allocation.smooth_maximum import Maximum, add_up, largest, power_mean
from collapipe_jax.allocation.variables import Multipliers, Resources, Surroundings
from collapipe_jax.batching import computed_once
from collapipe_jax.cost.chains import Chains, at_next_active
from collapipe_jax.cost.divergence import excess_inverse_survival
from collapipe_jax.cost.messages import MessageLoss, MessageTime, message_loss, message_time
from collapipe_jax.cost.spending import Spent

_LARGEST_EXCESS = 5.184705528587072e21
"""e^50 - 1, from where the inverse survival goes on along its tangent."""


class Messages(NamedTuple):
    """Messages at a point; both of a hop stacked, and parameters in both directions.

    Attributes:
      hop, move, up: times of a bit, ``[2, P, N, ...]`` twice and ``[N, ...]``.
      down_bit_s: ``[N, ...]``.
      hop_loss, up_loss: of a transport block, ``[2, P, N, ...]`` and ``[N, ...]``.
    """

    hop: MessageTime
    move: MessageTime
    up: MessageTime
    down_bit_s: Array
    hop_loss: MessageLoss
    up_loss: MessageLoss


def send(
    radio,
    chains: Chains,
    point: Resources,
    multipliers: Multipliers,
    noise_w: Array,
    temperature: float,
) -> Messages:
    """Messages at shares and powers.

    Args:
      radio: with lanes.
      chains: of the layout.
      point: shares, and powers in watts.
      multipliers: those of the messages count.
      noise_w: with interference, at every node over the whole D2D band, ``[P, N, ...]``.
      temperature: of the means.
    """
    share, power_w = point.d2d_share, point.d2d_power
    hop_sinr = hop_pull(chains, power_w, noise_w) / share
    move_sinr = jnp.stack(
        [
            power_w * (chains.collect_gain / noise_w[0]),
            power_w[0] * (chains.distribute_gain / noise_w),
        ]
    )
    up_sinr = point.d2e_power * chains.uplink_gain / point.d2e_share
    up_hz = point.d2e_share * chains.d2e_hz
    return Messages(
        hop=message_time(radio, share * chains.d2d_hz, hop_sinr, multipliers.hop, temperature),
        move=message_time(radio, chains.d2d_hz, move_sinr, multipliers.move, temperature),
        up=message_time(radio, up_hz, up_sinr, multipliers.up, temperature),
        down_bit_s=1.0 / (up_hz * chains.downlink_efficiency),
        hop_loss=message_loss(radio, hop_sinr),
        up_loss=message_loss(radio, up_sinr),
    )


def hop_pull(chains: Chains, power_w: Array, noise_w: Array) -> Array:
    """SINR of both messages of every hop if it had the whole band, ``[2, P, N, ...]``.

    Args:
      chains: of the layout.
      power_w: ``[P, N, ...]``.
      noise_w: with interference, likewise.
    """
    active = chains.active
    return jnp.stack(
        [
            power_w * (chains.gain.forward / at_next_active(noise_w, active)),
            at_next_active(power_w, active) * (chains.gain.backward / noise_w),
        ]
    )


class Latency(NamedTuple):
    """Latencies of the clusters and what they cost.

    Attributes:
      true_s, smooth_s: of the clusters, ``[N, ...]``.
      forward, backward: the longest stages of either flow.
      longest: the longest of all clusters; of a cluster by itself, of it and the round.
      part: of a cluster in that maximum, ``[N, ...]``.
      price_per_s: of a cluster's latency, ``[N, ...]``.
      true_price, smooth_price: of all latency, ``[...]``, or by cluster.
    """

    true_s: Array
    smooth_s: Array
    forward: Maximum
    backward: Maximum
    longest: Maximum
    part: Array
    price_per_s: Array
    true_price: Array
    smooth_price: Array


def pauses(chains: Chains) -> Array:
    """How often a cluster waits for its longest stages in a round, ``[N, ...]``."""
    return chains.local_steps * (chains.micro_batches - 1.0)


def take_time(
    chains: Chains,
    true: Spent,
    smooth: Spent,
    multipliers: Multipliers,
    around: Surroundings | None,
    temperature: float,
) -> Latency:
    """Latencies of what is spent, docs/system-model.md (12).

    Args:
      chains: of the layout.
      true, smooth: with the times of messages as they are, and smooth.
      multipliers: of the stages and the clusters.
      around: where given, every cluster pays for itself.
      temperature: of the means.
    """
    forward = power_mean(smooth.forward_s, multipliers.forward, temperature)
    backward = power_mean(smooth.backward_s, multipliers.backward, temperature)
    true_longest_s = largest(true.forward_s) + largest(true.backward_s)
    true_s = true.fixed_s + pauses(chains) * true_longest_s
    smooth_s = smooth.fixed_s + pauses(chains) * (forward.smooth + backward.smooth)
    if around is None:
        longest = power_mean(smooth_s, multipliers.cluster, temperature)
        part = longest.part
        price_per_s = chains.price_per_s * longest.slope
        true_price = chains.price_per_s * largest(true_s)
        smooth_price = chains.price_per_s * longest.smooth
    else:
        both = jnp.stack([smooth_s, jnp.broadcast_to(around.round_s, smooth_s.shape)])
        longest = power_mean(both, multipliers.cluster, temperature)
        part = longest.part[0]
        own = around.price_per_s
        rest = chains.price_per_s - own
        price_per_s = own + rest * longest.slope[0]
        true_price = own * true_s + rest * jnp.maximum(true_s, around.round_s)
        smooth_price = own * smooth_s + rest * longest.smooth
    return Latency(
        true_s,
        smooth_s,
        forward,
        backward,
        longest,
        part,
        price_per_s,
        true_price,
        smooth_price,
    )


class Losses(NamedTuple):
    """Losses of the clusters and what they cost.

    Attributes:
      price: of all losses, ``[N, ...]``.
      price_per_hazard: of a cluster's, ``[N, ...]``.
      hop_fall, up_fall: of its hazard by the logarithm of a SINR, ``[2, P, N, ...]`` and
        ``[N, ...]``.
    """

    price: Array
    price_per_hazard: Array
    hop_fall: Array
    up_fall: Array


def lose(chains: Chains, sent: Messages) -> Losses:
    """Losses of messages, docs/system-model.md (7), (8) and (19)."""
    hop, up, active = sent.hop_loss, sent.up_loss, chains.active
    of_hops = add_up(jnp.where(active, hop.hazard[0] + hop.hazard[1], 0.0))
    hazard = (
        chains.hazard_per_hop * of_hops + chains.hazard_per_uplink * up.hazard + chains.fixed_hazard
    )
    excess = excess_inverse_survival(hazard)
    of_present = jnp.where(active[0], chains.price_per_survival, 0.0)
    return computed_once(
        Losses(
            price=chains.price_per_survival * excess,
            price_per_hazard=of_present * (1.0 + jnp.minimum(excess, _LARGEST_EXCESS)),
            hop_fall=jnp.where(active, chains.hazard_per_hop * hop.fall, 0.0),
            up_fall=chains.hazard_per_uplink * up.fall,
        )
    )
