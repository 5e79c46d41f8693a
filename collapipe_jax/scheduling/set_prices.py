"""Active sets of a cluster with powers and shares that suit them, priced but for the blocks.

A node's power matters to the messages that it sends, whatever the other powers of its
cluster are. So with equal shares every node of every set has a power of its own to choose
from a few, and shares follow from the times that come out.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.cost.divergence import excess_inverse_survival
from collapipe_jax.cost.energy import computing_energy_j
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.network.channel import downlink_sinr, uplink_sinr
from collapipe_jax.scheduling.chains import (
    at_next_active,
    compute_times,
    divergence_prices,
    from_previous_active,
    gain_to_next,
)
from collapipe_jax.scheduling.feasibility import can_run
from collapipe_jax.scheduling.messages import bit_time_s, message_loss, sinr_at_hazard
from collapipe_jax.scheduling.point import Resources, Surroundings
from collapipe_jax.scheduling.power_mean import add_up, largest

_LEVELS = (1.0, 0.25, 0.06, 0.015, 0.001)
"""Powers to choose from, over the largest."""
_BOTTLENECK_PART = 0.5
"""How much of the bottleneck the hops are taken to be, as long as it is not known."""
_EXPECTED_HAZARD = 1.0
_LARGEST_EXPECTED_HAZARD = 4.0
"""Hazard at which losses are priced while powers and shares are chosen, and its limit."""
_EXPECTED_GAIN = 0.6
"""Of spectral efficiency by the SINR, both in logarithms, where losses begin to matter."""
_HAZARD_TO_AIM_AT = (1e-4, 10.0)
_LEAST_PRICE = 1e-30


class Nodes(NamedTuple):
    """What a node pays.

    Attributes:
      full_w: most power, ``[P, N, R]``.
      price_per_j: of its energy, likewise.
      price_per_w: of its interference, likewise.
      collect_s, distribute_s: time to move a block from and to it, by level,
        ``[levels, P, N, R]``.
    """

    full_w: Array
    price_per_j: Array
    price_per_w: Array
    collect_s: Array
    distribute_s: Array


class Uplinks(NamedTuple):
    """Base station's links at given shares and powers, ``[N, R]`` each.

    Attributes:
      up_bit_s, down_bit_s: time on air of a bit.
      up_hazard, down_hazard: of a transport block.
    """

    up_bit_s: Array
    down_bit_s: Array
    up_hazard: Array
    down_hazard: Array


class Sets(NamedTuple):
    """Active sets, and the messages of their nodes at every power, shares being equal.

    Attributes:
      active: ``[P, sets, N, R]``.
      pull: SINR of both messages of a hop on the whole band at full power,
        ``[2, P, sets, N, R]``.
      air_s: seconds on air for a bit of the messages that a node sends, by level,
        ``[levels, P, sets, N, R]``.
      hazard: of a transport block of each of them, summed, likewise.
    """

    active: Array
    pull: Array
    air_s: Array
    hazard: Array


class Micro(NamedTuple):
    """What follows from a number of micro-batches.

    Attributes:
      batches: the number, ``[R]``.
      bits, up_bits: of a micro-batch on a hop and on the uplink, ``[R]``.
      pauses: for the longest stage in a round, ``[R]``.
      unit_s: of a block's forward pass on a device, ``[K, N, R]``.
      embed_s, decoder_s: ``[N, R]``.
      price_per_s: of the round's latency, ``[R]``.
      middle_price_per_s: between that and the cluster's part of it, ``[N, R]``.
      survival_price: of the inverse probability to survive, ``[N, R]``.
      fixed_hazard: of the base station's links, ``[N, R]``.
    """

    batches: Array
    bits: Array
    up_bits: Array
    pauses: Array
    unit_s: Array
    embed_s: Array
    decoder_s: Array
    price_per_s: Array
    middle_price_per_s: Array
    survival_price: Array
    fixed_hazard: Array


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


def price_nodes(problem: RoundProblem, around: Surroundings) -> Nodes:
    """Prices of nodes. Moves go over the whole band, so whoever is active."""
    radio, control = problem.radio, problem.control
    gain = jnp.moveaxis(radio.d2d_gain, 0, 2)
    noise_w = radio.d2d_bandwidth_hz * radio.node_noise_w_per_hz + around.heard_w
    full_w = jnp.swapaxes(radio.d2d_power_max_w, 0, 1)

    def block_s(sinr):
        bit_s = bit_time_s(radio, radio.d2d_bandwidth_hz, sinr)
        return problem.workload.block_param_bits * bit_s

    to_control_unit, from_control_unit = gain[:, 0] / noise_w[0], gain[0] / noise_w
    return Nodes(
        full_w,
        jnp.swapaxes(control.energy_queue / control.energy_budget_j, 0, 1),
        around.price_per_w,
        jnp.stack([block_s(level * full_w * to_control_unit) for level in _LEVELS]),
        jnp.stack([block_s(level * full_w[0] * from_control_unit) for level in _LEVELS]),
    )


def price_uplinks(problem: RoundProblem, tentative: Resources) -> Uplinks:
    """Base station's links at tentative shares and powers."""
    radio = problem.radio
    gain, share = radio.d2e_gain[:, 0], tentative.d2e_share
    up_sinr = uplink_sinr(radio, tentative.d2e_power, gain, share)
    down_sinr = downlink_sinr(radio, gain)
    share_hz = share * radio.d2e_bandwidth_hz
    return Uplinks(
        bit_time_s(radio, share_hz, up_sinr),
        bit_time_s(radio, share_hz, down_sinr),
        message_loss(radio, up_sinr).hazard,
        message_loss(radio, down_sinr).hazard,
    )


def price_sets(problem: RoundProblem, around: Surroundings, nodes: Nodes, members: Array) -> Sets:
    """Messages of every set at every power, shares being equal.

    Args:
      problem: with lanes.
      around: what is heard.
      nodes: most powers.
      members: active devices, ``[sets, K, N, R]``.
    """
    radio = problem.radio
    active = jnp.concatenate([jnp.ones_like(members[:, :1]), members], axis=1)
    active = jnp.swapaxes(active, 0, 1)
    gain = jnp.moveaxis(radio.d2d_gain, 0, 2)
    noise_w = radio.d2d_bandwidth_hz * radio.node_noise_w_per_hz + around.heard_w
    full = nodes.full_w[:, None] * gain / noise_w[None]  # sender, receiver
    pull = jnp.stack([gain_to_next(full, active), gain_to_next(jnp.swapaxes(full, 0, 1), active)])
    senders = add_up(active.astype(pull.dtype))
    share_hz = radio.d2d_bandwidth_hz / senders

    def sent(both):
        return jnp.where(active, both[0], 0.0) + from_previous_active(both[1], active)

    sinrs = [level * pull * senders for level in _LEVELS]
    return Sets(
        active,
        pull,
        jnp.stack([sent(bit_time_s(radio, share_hz, sinr)) for sinr in sinrs]),
        jnp.stack([sent(message_loss(radio, sinr).hazard) for sinr in sinrs]),
    )


def micro_batch_sizes(
    problem: RoundProblem, around: Surroundings, uplinks: Uplinks, micro_batches: Array
) -> Micro:
    """What follows from a number of micro-batches ``[R]``."""
    work, control = problem.workload, problem.control
    samples = work.batch / micro_batches
    bits = samples * work.activation_bits
    up_bits = samples * (work.activation_bits + work.target_bits)
    runs = jax.vmap(can_run, in_axes=-1, out_axes=-1)(problem)
    divergence = divergence_prices(problem, runs, micro_batches)
    times = compute_times(problem, samples)
    price_per_s = control.v / control.reference_latency_s
    hazard = bits * uplinks.down_hazard + up_bits * uplinks.up_hazard
    return Micro(
        batches=micro_batches,
        bits=bits,
        up_bits=up_bits,
        pauses=work.local_steps * (micro_batches - 1.0),
        unit_s=times.block_s,
        embed_s=times.embed_s,
        decoder_s=times.decoder_s,
        price_per_s=price_per_s,
        middle_price_per_s=0.5 * (price_per_s + around.price_per_s),
        survival_price=divergence.sampling + divergence.erasure,
        fixed_hazard=hazard / problem.radio.transport_block_bits,
    )


def link_sets(
    problem: RoundProblem, nodes: Nodes, sets: Sets, uplinks: Uplinks, micro: Micro
) -> LinkedSets:
    """Powers and shares of every set, and its prices at them."""
    work, compute, radio = problem.workload, problem.compute, problem.radio
    active, steps = sets.active, work.local_steps
    member = active[1:].astype(micro.unit_s.dtype)
    balanced_s = work.blocks / add_up(member / micro.unit_s[:, None])
    power = _choose_powers(problem, nodes, sets, micro, balanced_s)
    full_sinr = jnp.stack([power, at_next_active(power, active)]) * sets.pull
    share = _choose_shares(problem, active, full_sinr, micro, balanced_s)
    share = _narrow_shares(problem, active, full_sinr, micro, share)
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
    joules_per_flop = jnp.swapaxes(compute.joules_per_flop, 0, 1)
    joules = computing_energy_j(work, work.block_flops, joules_per_flop[1:])
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
        block_price=(nodes.price_per_j[1:] * joules)[:, None] + move_price,
    )


def _choose_powers(problem, nodes: Nodes, sets: Sets, micro: Micro, balanced_s) -> Array:
    """The cheapest power of every node of every set, over its maximum, shares being equal.

    Blocks, moved by their devices and handed out by the control unit, are taken as split
    at will.
    """
    work, middle = problem.workload, micro.middle_price_per_s
    blocks = sets.active[1:] / micro.unit_s[:, None] * balanced_s
    blocks = jnp.concatenate([jnp.zeros_like(blocks[:1]), blocks])
    per_bit_s = _price_per_bit_s(problem, micro, sets.active)
    per_hazard = _price_per_hazard(problem, micro)
    level = jnp.array(_LEVELS).reshape(-1, 1, 1, 1)
    paid = level * nodes.full_w * nodes.price_per_j  # [levels, P, N, R]
    sent_bits = work.local_steps * work.batch * work.activation_bits
    price = (per_bit_s + (paid * sent_bits)[:, :, None]) * sets.air_s + per_hazard * sets.hazard
    price = price + (level * nodes.full_w * nodes.price_per_w)[:, :, None]
    collect = (middle + paid) * nodes.collect_s
    distribute = (middle + paid[:, :1]) * nodes.distribute_s
    held = blocks > 0
    price = price + jnp.where(held, blocks * collect[:, :, None], 0.0)
    handed_out = jnp.where(held, blocks * distribute[:, :, None], 0.0)
    handed_out = add_up(jnp.moveaxis(handed_out, 1, 0))
    control_unit = (jnp.arange(blocks.shape[0]) == 0).reshape(-1, 1, 1, 1)
    price = price + jnp.where(control_unit, handed_out[:, None], 0.0)
    best, least = jnp.full_like(price[0], _LEVELS[0]), price[0]
    for index, power in enumerate(_LEVELS[1:], start=1):
        best = jnp.where(price[index] < least, power, best)
        least = jnp.minimum(price[index], least)
    return best


def _choose_shares(problem, active, full_sinr, micro: Micro, balanced_s) -> Array:
    """Shares of the hops by their times at equal ones.

    In proportion to the times, which makes them equal, where hops are the bottleneck; to
    their roots, which makes the sum least, where devices are.
    """
    band_hz = problem.radio.d2d_bandwidth_hz
    hops = add_up(active.astype(full_sinr.dtype))
    equal_s = bit_time_s(problem.radio, band_hz / hops, full_sinr * hops)
    equal_s = equal_s[0] + equal_s[1]
    mean_s = 0.5 * micro.bits * add_up(jnp.where(active, equal_s, 0.0)) / hops
    power = jnp.where((mean_s > balanced_s) & (micro.batches > 1.0), 1.0, 0.5)
    wanted = jnp.where(active, jnp.exp(power * jnp.log(equal_s)), 0.0)
    return jnp.where(active, wanted / add_up(wanted), 1.0)


def _narrow_shares(problem, active, full_sinr, micro: Micro, share) -> Array:
    """Shares narrowed where losses cost more than time (docs/dssra.md, layouts of a cluster)."""
    radio = problem.radio
    bit_s = bit_time_s(radio, share * radio.d2d_bandwidth_hz, full_sinr / share)
    of_time = (bit_s[0] + bit_s[1]) * _price_per_bit_s(problem, micro, active)
    of_hazard = jnp.maximum(_price_per_hazard(problem, micro), _LEAST_PRICE)
    hazard = (1.0 - _EXPECTED_GAIN) * of_time / (radio.harq_attempts * of_hazard)
    wanted = sinr_at_hazard(radio, jnp.clip(hazard, *_HAZARD_TO_AIM_AT))
    return jnp.where(active, jnp.minimum(share, jnp.min(full_sinr, axis=0) / wanted), 1.0)


def _price_per_bit_s(problem, micro: Micro, active) -> Array:
    """Price of a second longer for a bit of a hop's messages, ``[sets, N, R]``."""
    hops = add_up(active.astype(micro.bits.dtype))
    pauses = (micro.batches - 1.0) * _BOTTLENECK_PART / hops
    steps = problem.workload.local_steps
    return micro.middle_price_per_s * steps * micro.bits * (1.0 + pauses)


def _price_per_hazard(problem, micro: Micro) -> Array:
    """Price of a transport block's hazard on a hop at the loss expected, ``[N, R]``."""
    expected = jnp.minimum(micro.fixed_hazard + _EXPECTED_HAZARD, _LARGEST_EXPECTED_HAZARD)
    blocks = micro.bits / problem.radio.transport_block_bits
    return micro.survival_price * jnp.exp(expected) * blocks


def _moves_at(power, nodes: Nodes) -> tuple[Array, Array]:
    """Times to collect and to distribute a block at chosen powers, ``[P, sets, N, R]``."""
    collect_s = jnp.broadcast_to(nodes.collect_s[0][:, None], power.shape)
    distribute_s = jnp.broadcast_to(nodes.distribute_s[0][:, None], power.shape)
    for index, level in enumerate(_LEVELS[1:], start=1):
        collect_s = jnp.where(power == level, nodes.collect_s[index][:, None], collect_s)
        from_index = nodes.distribute_s[index][:, None]
        distribute_s = jnp.where(power[0] == level, from_index, distribute_s)
    return collect_s, distribute_s
