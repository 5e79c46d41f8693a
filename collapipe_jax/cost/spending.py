"""What a layout spends in time and energy when the time of a bit on every link is known."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.allocation.smooth_maximum import add_up
from collapipe_jax.allocation.variables import Resources
from collapipe_jax.cost.chains import Chains, at_next_active


class AirPrice(NamedTuple):
    """Price of a second on air by sender: hops ``[2, P, N, ...]``, moves likewise, uplink."""

    hop: Array
    move: Array
    up: Array


def price_of_air(point: Resources, chains: Chains) -> AirPrice:
    """Prices at a point."""
    own = point.d2d_power * chains.price_per_w_s
    return AirPrice(
        jnp.stack([own, at_next_active(own, chains.active)]),
        jnp.stack([own, jnp.broadcast_to(own[0], own.shape)]),
        point.d2e_power * chains.price_per_w_s[0],
    )


class Spent(NamedTuple):
    """Times and energies at given times of a bit.

    Attributes:
      hop_s, air_price: of a micro-batch, and of its energy over the round,
        ``[2, P, N, ...]``.
      move_s, move_price: of parameters, ``[2, P, N, ...]``.
      up_s, down_s, model_up_s, model_down_s, up_price: ``[N, ...]``.
      forward_s, backward_s: stages of the flows, ``[P + 2, N, ...]``.
      fixed_s: latency without pauses for the longest stage, ``[N, ...]``.
      energy_price: ``[N, ...]``.
    """

    hop_s: Array
    air_price: Array
    move_s: Array
    move_price: Array
    up_s: Array
    down_s: Array
    model_up_s: Array
    model_down_s: Array
    up_price: Array
    forward_s: Array
    backward_s: Array
    fixed_s: Array
    energy_price: Array


def spend(chains: Chains, paid: AirPrice, hop_bit_s, move_bit_s, up_bit_s, down_bit_s) -> Spent:
    """Times and energies of a round, docs/system-model.md (9)-(16).

    Args:
      chains: of the layout.
      paid: prices of air.
      hop_bit_s, move_bit_s: time of a bit, ``[2, P, N, ...]`` each.
      up_bit_s, down_bit_s: likewise, ``[N, ...]``.
    """
    active, present = chains.active, chains.active[0]
    overhead_s = jnp.where(present, chains.overhead_s, 0.0)
    hop_s = hop_bit_s * chains.hop_bits
    stage_s = hop_s + jnp.where(active, overhead_s, 0.0)
    up_s, down_s = up_bit_s * chains.uplink_bits, down_bit_s * chains.downlink_bits
    longest = chains.longest_fixed_s

    def stages(hops, link_s, fixed_s):
        return jnp.concatenate([hops, (link_s + overhead_s)[None], fixed_s[None]])

    move_s = move_bit_s * chains.move_bits
    model_up_s, model_down_s = up_bit_s * chains.model_bits, down_bit_s * chains.model_bits
    step_s = add_up(stage_s[0] + stage_s[1]) + up_s + down_s + 2.0 * overhead_s
    step_s = step_s + chains.fixed_s.forward + chains.fixed_s.backward
    steps = chains.local_steps * chains.micro_batches
    air_price = paid.hop * hop_s * steps
    move_price = paid.move * move_s
    up_price = paid.up * (steps * up_s + model_up_s)
    return Spent(
        hop_s,
        air_price,
        move_s,
        move_price,
        up_s,
        down_s,
        model_up_s,
        model_down_s,
        up_price,
        forward_s=stages(stage_s[0], up_s, longest.forward),
        backward_s=stages(stage_s[1], down_s, longest.backward),
        fixed_s=chains.local_steps * step_s
        + add_up(move_s[0] + move_s[1])
        + model_up_s
        + model_down_s,
        energy_price=add_up(add_up(air_price + move_price)) + up_price,
    )
