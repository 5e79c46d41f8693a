"""Active sets with powers and shares: all that is left to price is where blocks go."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.allocation.smooth_maximum import add_up, largest
from collapipe_jax.cost.chains import at_next_active
from collapipe_jax.cost.divergence import excess_inverse_survival
from collapipe_jax.cost.messages import bit_time_s, message_loss
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.partition.powered_sets import PoweredSets
from collapipe_jax.partition.set_prices import LEVELS, Micro, Nodes, Uplinks
from collapipe_jax.partition.set_resources import choose_shares, narrow_shares


class LinkedSets(NamedTuple):
    """Sets with powers and shares, for one number of micro-batches.

    Attributes:
      member: 1 on active devices, ``[K, sets, N, R]``.
      share: of the D2D band, ``[P, sets, N, R]``.
      power: over its maximum, likewise.
      balanced_s: time of every device if blocks could be split at will, ``[sets, N, R]``.
      fixed_s, fixed_price: latency and price that blocks do not change, likewise.
      forward_s, backward_s: longest stages but for the devices, likewise.
      block_s, block_price: of a block on a device, ``[K, sets, N, R]``.
    """

    member: Array
    share: Array
    power: Array
    balanced_s: Array
    fixed_s: Array
    fixed_price: Array
    forward_s: Array
    backward_s: Array
    block_s: Array
    block_price: Array


def link_sets(
    problem: RoundProblem, nodes: Nodes, sets: PoweredSets, uplinks: Uplinks, micro: Micro
) -> LinkedSets:
    """Shares of sets, and their prices at these.

    Args:
      problem: with lanes.
      nodes, uplinks, micro: prices.
      sets: with powers.
    """
    work, compute, radio = problem.workload, problem.compute, problem.radio
    active, power, balanced_s = sets.active, sets.power, sets.balanced_s
    member, steps = active[1:].astype(micro.unit_s.dtype), work.local_steps
    full_sinr = jnp.stack([power, at_next_active(power, active)]) * sets.pull
    share = choose_shares(problem, active, full_sinr, micro, balanced_s)
    share = narrow_shares(problem, active, full_sinr, micro, share)
    sinr = full_sinr / share
    bit_s = jnp.where(active, bit_time_s(radio, share * radio.d2d_bandwidth_hz, sinr), 0.0)
    lost = message_loss(radio, sinr).hazard
    lost = add_up(jnp.where(active, lost[0] + lost[1], 0.0))

    power_w = jnp.where(active, power * nodes.full_w[:, None], 0.0)
    paid = power_w * nodes.price_per_j[:, None]
    on_air = add_up(paid * bit_s[0] + at_next_active(paid, active) * bit_s[1])
    heard = add_up(power_w * nodes.price_per_w[:, None])
    hazard = micro.bits / radio.transport_block_bits * lost + micro.fixed_hazard
    lost_price = micro.survival_price * excess_inverse_survival(hazard)

    collect_s, distribute_s = _moves_at(power, nodes)
    pass_s = steps * (1.0 + work.backward_ratio) * micro.unit_s
    move_price = paid[1:] * collect_s[1:] + paid[0] * distribute_s[1:]

    overhead_s = compute.link_overhead_s
    hops = add_up(member) + 1.0
    up_s = micro.up_bits * uplinks.up_bit_s + overhead_s
    down_s = micro.bits * uplinks.down_bit_s + overhead_s
    embed_s, decoder_s = micro.embed_s, micro.decoder_s
    hop_s = micro.bits * add_up(bit_s[0] + bit_s[1]) + 2.0 * hops * overhead_s
    step_s = (1.0 + work.backward_ratio) * embed_s + decoder_s + up_s + down_s + hop_s
    model_bits = work.blocks * work.block_param_bits + work.embedding_param_bits
    forward_s = jnp.maximum(jnp.maximum(embed_s, decoder_s), up_s)
    backward_s = jnp.maximum(work.backward_ratio * embed_s, down_s)
    return LinkedSets(
        member=member,
        share=share,
        power=power,
        balanced_s=balanced_s,
        fixed_s=steps * step_s + model_bits * (uplinks.up_bit_s + uplinks.down_bit_s),
        fixed_price=steps * work.batch * work.activation_bits * on_air + heard + lost_price,
        forward_s=jnp.maximum(forward_s, micro.bits * largest(bit_s[0]) + overhead_s),
        backward_s=jnp.maximum(backward_s, micro.bits * largest(bit_s[1]) + overhead_s),
        block_s=pass_s[:, None] + collect_s[1:] + distribute_s[1:],
        block_price=nodes.block_price[:, None] + move_price,
    )


def _moves_at(power, nodes: Nodes) -> tuple[Array, Array]:
    """Times to collect and to distribute a block at chosen powers, ``[P, sets, N, R]``."""
    collect_s = jnp.broadcast_to(nodes.collect_s[0][:, None], power.shape)
    distribute_s = jnp.broadcast_to(nodes.distribute_s[0][:, None], power.shape)
    for index, level in enumerate(LEVELS[1:], start=1):
        collect_s = jnp.where(power == level, nodes.collect_s[index][:, None], collect_s)
        from_index = nodes.distribute_s[index][:, None]
        distribute_s = jnp.where(power[0] == level, from_index, distribute_s)
    return collect_s, distribute_s
