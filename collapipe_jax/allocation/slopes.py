"""Slopes and curvatures of the smooth price, by hand.

By the chain rule from times on air and SINRs to logarithms of shares and powers. A share
makes its message's time fall, and its SINR too; a power makes SINRs rise, and energy with
them.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.allocation.smooth_maximum import add_up
from collapipe_jax.allocation.variables import Resources
from collapipe_jax.batching import computed_once
from collapipe_jax.cost.chains import Chains, from_previous_active
from collapipe_jax.cost.spending import Spent
from collapipe_jax.cost.terms import Latency, Losses, Messages, pauses


class TimeSlopes(NamedTuple):
    """Slopes of the smooth price by the logarithms of times on air.

    Attributes:
      hop, move: ``[2, P, N, ...]``.
      up, down: ``[N, ...]``.
      hop_longest, up_longest, down_longest: their parts through the longest stages.
    """

    hop: Array
    move: Array
    up: Array
    down: Array
    hop_longest: Array
    up_longest: Array
    down_longest: Array


def slopes_by_time(chains: Chains, spent: Spent, latency: Latency) -> TimeSlopes:
    """Prices of longer times, through latency and through energy."""
    nodes = chains.active.shape[0]
    price_per_s = latency.price_per_s
    step_price = chains.local_steps * price_per_s
    pause_price = pauses(chains) * price_per_s
    longest = pause_price * jnp.stack([latency.forward.slope, latency.backward.slope])
    hop_longest = spent.hop_s * longest[:, :nodes]
    up_longest, down_longest = spent.up_s * longest[0, nodes], spent.down_s * longest[1, nodes]
    up_plain = spent.up_s * step_price + spent.model_up_s * price_per_s + spent.up_price
    down_plain = spent.down_s * step_price + spent.model_down_s * price_per_s
    return computed_once(
        TimeSlopes(
            hop=spent.hop_s * step_price + spent.air_price + hop_longest,
            move=spent.move_s * price_per_s + spent.move_price,
            up=up_plain + up_longest,
            down=down_plain + down_longest,
            hop_longest=hop_longest,
            up_longest=up_longest,
            down_longest=down_longest,
        )
    )


class Worths(NamedTuple):
    """Falls of the smooth price by the logarithms of SINRs.

    Attributes:
      hop, move: ``[2, P, N, ...]``.
      up: ``[N, ...]``.
    """

    hop: Array
    move: Array
    up: Array


def worths_of_sinr(sent: Messages, losses: Losses, times: TimeSlopes) -> Worths:
    """What better SINRs save, through shorter times and fewer losses."""
    return computed_once(
        Worths(
            hop=sent.hop.gain * times.hop + losses.price_per_hazard * losses.hop_fall,
            move=sent.move.gain * times.move,
            up=sent.up.gain * times.up + losses.price_per_hazard * losses.up_fall,
        )
    )


def by_sender(hop: Array, move: Array, active: Array) -> Array:
    """What belongs to messages, summed by their senders. ``[2, P, N, ...]`` to ``[P, ...]``."""
    of_node = hop[0] + from_previous_active(hop[1], active) + move[0]
    return of_node.at[0].add(add_up(move[1]))


def by_receiver(hop: Array, move: Array, active: Array) -> Array:
    """What belongs to messages, summed by their receivers. ``[2, P, N, ...]`` to ``[P, ...]``."""
    of_node = from_previous_active(hop[0], active) + hop[1] + move[1]
    return of_node.at[0].add(add_up(move[0]))


def slopes(
    chains: Chains, spent: Spent, times: TimeSlopes, worth: Worths, disturbs: Array, rent: Array
) -> Resources:
    """Slopes by the logarithms of shares and powers, 0 where idle.

    Args:
      chains: of the layout.
      spent, times, worth: at the point.
      disturbs: price of the interference that a node makes, ``[P, N, ...]``.
      rent: that a cluster pays for its share of the D2E band, ``[N, ...]``.
    """
    active, present = chains.active, chains.active[0]
    share = worth.hop[0] + worth.hop[1] - (times.hop[0] + times.hop[1])
    power = by_sender(spent.air_price - worth.hop, spent.move_price - worth.move, active)
    return Resources(
        d2d_share=jnp.where(active, share, 0.0),
        d2d_power=jnp.where(active, power + disturbs, 0.0),
        d2e_share=jnp.where(present, worth.up - times.up - times.down + rent, 0.0),
        d2e_power=jnp.where(present, spent.up_price - worth.up, 0.0),
    )


def curvatures(
    chains: Chains,
    sent: Messages,
    spent: Spent,
    latency: Latency,
    losses: Losses,
    times: TimeSlopes,
    disturbs: Array,
    smooth_price: Array,
    attempts: Array,
    temperature: float,
) -> Resources:
    """Estimates of how the slopes change, to scale steps with; no bounds.

    Of a bottleneck it grows with the sharpness of its mean, of a loss with its size.

    Args:
      chains: of the layout.
      sent, spent, latency, losses, times: at the point.
      disturbs: price of the interference that a node makes, ``[P, N, ...]``.
      smooth_price: ``[...]``, or by cluster.
      attempts: to send a transport block.
      temperature: of the means.
    """
    active, sharpness = chains.active, 1.0 / temperature
    nodes = active.shape[0]
    stiff = sharpness * (1.0 - jnp.stack([latency.forward.part, latency.backward.part]))
    hop_time = times.hop + times.hop_longest * stiff[:, :nodes]
    up_time = times.up + times.up_longest * stiff[0, nodes]
    down_time = times.down + times.down_longest * stiff[1, nodes]

    # Where losses are most of the price, steps go by its logarithm, which is much less bent.
    bend = jnp.clip(1.0 - losses.price / smooth_price, 0.0, 1.0)
    hop_lost = losses.price_per_hazard * losses.hop_fall * (attempts + bend * losses.hop_fall)
    up_lost = losses.price_per_hazard * losses.up_fall * (attempts + bend * losses.up_fall)

    hop_bend, up_bend = sent.hop.bend * times.hop, sent.up.bend * times.up
    hop_time, hop_lost, hop_bend = computed_once((hop_time, hop_lost, hop_bend))
    move = (sent.move.gain + sent.move.bend) * times.move + spent.move_price
    share = add_up(hop_time + hop_bend + hop_lost)
    hop_sinr = sent.hop.gain**2 * hop_time + hop_bend + hop_lost + spent.air_price
    up_sinr = sent.up.gain**2 * up_time + up_bend + up_lost

    # The round's latency bends with the square of a variable's part in it.
    of_latency = latency.price_per_s * latency.smooth_s
    spread = sharpness * (1.0 - latency.part) / jnp.where(of_latency > 0, of_latency, 1.0)
    hop_part, up_part = times.hop - spent.air_price, times.up - spent.up_price
    power_part = sent.hop.gain * hop_part
    power_part = power_part[0] + from_previous_active(power_part[1], active)
    return Resources(
        d2d_share=share + spread * add_up(hop_part) ** 2,
        d2d_power=by_sender(hop_sinr, move, active) + disturbs + spread * power_part**2,
        d2e_share=up_time + up_lost + down_time + spread * (up_part + times.down) ** 2,
        d2e_power=up_sinr + spent.up_price + spread * (sent.up.gain * up_part) ** 2,
    )
