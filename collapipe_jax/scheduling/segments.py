"""Segments and micro-batches of every cluster worth a closer look, the others standing still.

With shares and powers given, a cluster's segments face costs linear in the blocks of each
device, a bottleneck, and hops that depend on who is active. So candidates are made of
every active set x number of micro-batches x ceiling on the bottleneck, each filled with
the cheapest blocks first. Shares follow the set by a rule; powers are tried at some
levels. All with lanes last.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.cost.divergence import excess_inverse_survival, present_weight
from collapipe_jax.cost.memory import block_capacity
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.network.channel import downlink_sinr, uplink_sinr
from collapipe_jax.scheduling.chain_price import (
    Resources,
    Surroundings,
    add_up,
    largest,
    message_loss,
    bit_time_s,
)
from collapipe_jax.scheduling.chains import at_next_active, from_previous_active, gain_to_next
from collapipe_jax.scheduling.feasibility import can_run

_ALL_SUBSETS_UP_TO = 5
_CEILINGS = (1.0, 1.2, 1.6, 2.5, np.inf)
_FILLED_SETS = 10
"""Sets that are filled with blocks, for each number of micro-batches: the best by their
price with blocks split at will."""
_LEVELS = (1.0, 0.3, 0.1, 0.03, 0.01)
"""Powers to try, over the largest."""


class Layouts(NamedTuple):
    """Candidates of every cluster, best first.

    Attributes:
      segments: ``[J, K, N, ...]``.
      micro_batches: ``[J, N, ...]``.
      log_share, log_power: estimates to start from, ``[J, P, N, ...]``; powers over
        their maxima.
      price: estimated, infinite where there is none, ``[J, N, ...]``.
    """

    segments: Array
    micro_batches: Array
    log_share: Array
    log_power: Array
    price: Array


def fill_segments(unit_price: Array, capacity: Array, active: Array, blocks: int) -> Array:
    """Cheapest segments of a cluster when every block costs the same on a device.

    Every active device gets one block, and the rest goes to the cheapest devices first:
    optimal, since units of one device are alike.

    Args:
      unit_price: ``[K, ...]``.
      capacity: ``[K, ...]``.
      active: ``[K, ...]``.
      blocks: ``L``.

    Returns:
      ``[K, ...]``, whole numbers; zeros where the active devices cannot hold the blocks,
      or are more than there are blocks.
    """
    return fill_in_order(_cheaper(unit_price), capacity, active, blocks)


def _cheaper(unit_price: Array) -> Array:
    """1 where the second device is filled before the first, ``[K, K, ...]``."""
    order = jnp.arange(unit_price.shape[0])
    first = (order[None] < order[:, None]).reshape(-1, len(order), *[1] * (unit_price.ndim - 1))
    mine, other = unit_price[:, None], unit_price[None]
    return ((other < mine) | ((other == mine) & first)).astype(unit_price.dtype)


def fill_in_order(cheaper: Array, capacity: Array, active: Array, blocks: int) -> Array:
    """:func:`fill_segments` with the order of the devices worked out.

    Args:
      cheaper: 1 where the second device comes before the first, ``[K, K, ...]``.
      capacity, active, blocks: as there.
    """
    room = jnp.where(active, capacity - 1.0, 0.0)
    rest = blocks - add_up(active.astype(room.dtype))
    before = sum(cheaper[:, k] * room[k] for k in range(room.shape[0]))
    filled = jnp.clip(rest - before, 0.0, room) + active
    short = add_up(jnp.where(active & (capacity < 1.0), 1.0, 0.0))
    enough = (rest >= 0) & (add_up(room) >= rest) & (short == 0)
    return jnp.where(enough, filled, 0.0)


def candidate_sets(preference: Array) -> Array:
    """Sets of active devices worth trying.

    All subsets of few devices; of many, those that take the best devices first, by each
    of several orders of preference.

    Args:
      preference: the smaller the better, ``[orders, K, N, ...]``.

    Returns:
      ``[sets, K, N, ...]``, boolean, none empty.
    """
    devices = preference.shape[1]
    shape = preference.shape[1:]
    if devices <= _ALL_SUBSETS_UP_TO:
        subsets = np.array(list(itertools.product((False, True), repeat=devices))[1:])
        subsets = subsets.reshape(*subsets.shape, *[1] * (len(shape) - 1))
        return jnp.broadcast_to(subsets, (subsets.shape[0], *shape))
    rank = jnp.argsort(jnp.argsort(preference, axis=1), axis=1)
    sizes = jnp.arange(1, devices + 1).reshape(1, -1, *[1] * len(shape))
    return (rank[:, None] < sizes).reshape(-1, *shape)


class _Uplinks(NamedTuple):
    """Base station's links at the tentative shares and powers, ``[N, R]`` each."""

    up_bit_s: Array
    down_bit_s: Array
    up_hazard: Array
    down_hazard: Array


class _Sets(NamedTuple):
    """Active sets, and their messages at every power level, all hops with equal shares.

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


class _Nodes(NamedTuple):
    """What a node pays for, ``[P, N, R]``, or ``[levels, P, N, R]`` where power matters."""

    full_w: Array
    price_per_j: Array
    price_per_w: Array
    collect_s: Array
    distribute_s: Array


def propose_layouts(
    problem: RoundProblem, tentative: Resources, around: Surroundings, count: int
) -> Layouts:
    """The most promising layouts of every cluster.

    Args:
      problem: with lanes ``[R]``.
      tentative: D2E shares and powers.
      around: what a cluster sees of the others.
      count: ``J``.
    """
    choices = problem.workload.micro_batch_choices
    nodes = _price_nodes(problem, around)
    speed = jnp.swapaxes(problem.compute.flops_per_s, 0, 1)
    members = candidate_sets(jnp.stack([1.0 / speed[1:], nodes.collect_s[0, 1:]]))
    sets = _price_sets(problem, around, nodes, members)
    uplinks = _price_uplinks(problem, tentative)
    runs = jax.vmap(can_run, in_axes=-1, out_axes=-1)(problem)

    def of_choice(micro_batches):
        return _fill_sets(problem, around, runs, sets, nodes, uplinks, micro_batches)

    found = jax.lax.map(of_choice, choices)
    found = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)
    ranked = -jnp.moveaxis(found.price, 0, -1)
    index = jnp.moveaxis(jax.lax.top_k(ranked, count)[1], -1, 0)

    def take(leaf):
        wide = index.reshape(count, *[1] * (leaf.ndim - index.ndim), *index.shape[1:])
        return jnp.take_along_axis(leaf, wide, axis=0)

    return jax.tree.map(take, found)


def _price_nodes(problem, around) -> _Nodes:
    """Moves go over the whole band, so whoever is active."""
    radio, work, control = problem.radio, problem.workload, problem.control
    gain = jnp.moveaxis(radio.d2d_gain, 0, 2)
    noise_w = radio.d2d_bandwidth_hz * radio.node_noise_w_per_hz + around.heard_w
    full_w = jnp.swapaxes(radio.d2d_power_max_w, 0, 1)

    def seconds(power_w, gain):
        return work.block_param_bits * bit_time_s(
            radio, radio.d2d_bandwidth_hz, power_w * gain
        )

    to_control_unit, from_control_unit = gain[:, 0] / noise_w[0], gain[0] / noise_w
    return _Nodes(
        full_w,
        jnp.swapaxes(control.energy_queue / control.energy_budget_j, 0, 1),
        around.price_per_w,
        jnp.stack([seconds(level * full_w, to_control_unit) for level in _LEVELS]),
        jnp.stack([seconds(level * full_w[0], from_control_unit) for level in _LEVELS]),
    )


def _price_uplinks(problem, tentative) -> _Uplinks:
    radio = problem.radio
    gain = radio.d2e_gain[:, 0]
    share = tentative.d2e_share
    up_sinr = uplink_sinr(radio, tentative.d2e_power, gain, share)
    down_sinr = downlink_sinr(radio, gain)
    share_hz = share * radio.d2e_bandwidth_hz
    return _Uplinks(
        bit_time_s(radio, share_hz, up_sinr),
        bit_time_s(radio, share_hz, down_sinr),
        message_loss(radio, up_sinr).hazard,
        message_loss(radio, down_sinr).hazard,
    )


def _price_sets(problem, around, nodes: _Nodes, members) -> _Sets:
    radio = problem.radio
    active = jnp.concatenate([jnp.ones_like(members[:, :1]), members], axis=1)
    active = jnp.swapaxes(active, 0, 1)
    gain = jnp.moveaxis(radio.d2d_gain, 0, 2)
    noise_w = radio.d2d_bandwidth_hz * radio.node_noise_w_per_hz + around.heard_w
    full = nodes.full_w[:, None] * gain / noise_w[None]  # sender, receiver
    pull = jnp.stack(
        [gain_to_next(full, active), gain_to_next(jnp.swapaxes(full, 0, 1), active)]
    )
    senders = add_up(active.astype(pull.dtype))
    share_hz = radio.d2d_bandwidth_hz / senders

    def at(level):
        sinr = level * pull * senders
        bit_s = bit_time_s(radio, share_hz, sinr)
        hazard = message_loss(radio, sinr).hazard
        return tuple(
            jnp.where(active, both[0], 0.0) + from_previous_active(both[1], active)
            for both in (bit_s, hazard)
        )

    air_s, hazard = zip(*(at(level) for level in _LEVELS), strict=True)
    return _Sets(active, pull, jnp.stack(air_s), jnp.stack(hazard))


def _fill_sets(problem, around, runs, sets: _Sets, nodes: _Nodes, uplinks, micro_batches) -> Layouts:
    """Best segments of every set for one number of micro-batches ``[R]``."""
    work, compute, learning = problem.workload, problem.compute, problem.learning
    radio, blocks = problem.radio, problem.workload.blocks
    active = sets.active
    members = active[1:]
    speed = jnp.swapaxes(compute.flops_per_s, 0, 1)
    samples = work.batch / micro_batches
    steps = work.local_steps
    bits = samples * work.activation_bits
    pauses = steps * (micro_batches - 1.0)
    price_per_s = problem.control.v / problem.control.reference_latency_s
    middle = 0.5 * (price_per_s + around.price_per_s)

    # Compute.
    unit_s = samples * work.block_flops / speed[1:] + compute.block_overhead_s  # [K, N, R]
    embed_s = samples * work.embed_flops / speed[0] + compute.block_overhead_s
    server_share = compute.es_flops_per_s / speed.shape[1]
    decoder_s = samples * work.decoder_flops / server_share + compute.block_overhead_s
    rate = jnp.where(members, 1.0 / unit_s[:, None], 0.0)
    balanced_s = blocks / add_up(rate)
    balanced = rate * balanced_s

    # Losses.
    weight = present_weight(learning.cluster_weight, runs)
    survival_price = (
        problem.control.divergence_queue
        * weight**2
        / problem.control.divergence_target
        * (
            learning.gradient_variance / work.batch
            + 2.0 * learning.gradient_heterogeneity / micro_batches
        )
    )
    up_bits = samples * (work.activation_bits + work.target_bits)
    transport = radio.transport_block_bits
    fixed_hazard = (bits * uplinks.down_hazard + up_bits * uplinks.up_hazard) / transport

    # A power for every node of every set, shares being equal.
    hops = add_up(active.astype(bits.dtype))
    hop_share = 0.5 / hops  # of the bottleneck, as long as it is not known
    second = middle * (steps * bits * (1.0 + (micro_batches - 1.0) * hop_share))
    joule_bits = steps * work.batch * work.activation_bits
    hazard_price = survival_price * bits / transport * jnp.exp(jnp.minimum(fixed_hazard, 3.0) + 1.0)
    carried = jnp.concatenate([jnp.zeros_like(balanced[:1]), balanced])
    control_unit = (jnp.arange(active.shape[0]) == 0).reshape(-1, 1, 1, 1)
    level = jnp.array(_LEVELS).reshape(-1, 1, 1, 1)
    watt_price = level * nodes.full_w * nodes.price_per_j  # [levels, P, N, R]
    cost = (second + (watt_price * joule_bits)[:, :, None]) * sets.air_s
    cost = cost + hazard_price * sets.hazard
    cost = cost + (level * nodes.full_w * nodes.price_per_w)[:, :, None]
    collect = (middle + watt_price) * nodes.collect_s
    distribute = (middle + watt_price[:, :1]) * nodes.distribute_s
    cost = cost + carried * collect[:, :, None]
    spread = add_up(jnp.moveaxis(carried * distribute[:, :, None], 1, 0))
    cost = cost + jnp.where(control_unit, spread[:, None], 0.0)
    best_power, _ = _least(
        jnp.broadcast_to(level[..., None], (len(_LEVELS), *active.shape)), cost
    )

    # Shares, and the messages with both.
    ratio = jnp.stack([best_power, at_next_active(best_power, active)])
    full_sinr = ratio * sets.pull
    equal = bit_time_s(radio, radio.d2d_bandwidth_hz / hops, full_sinr * hops)
    equal = equal[0] + equal[1]
    mean_s = bits * add_up(jnp.where(active, equal, 0.0)) / hops * 0.5
    rule = jnp.where((mean_s > balanced_s) & (micro_batches > 1.0), 1.0, 0.5)
    want = jnp.where(active, jnp.exp(rule * jnp.log(equal)), 0.0)
    share = jnp.where(active, want / add_up(want), 1.0)
    sinr = full_sinr / share
    bit_s = jnp.where(active, bit_time_s(radio, share * radio.d2d_bandwidth_hz, sinr), 0.0)
    lost = message_loss(radio, sinr).hazard
    set_hazard = add_up(jnp.where(active, lost[0] + lost[1], 0.0))
    power_w = best_power * nodes.full_w[:, None]
    watt_price = jnp.where(active, power_w * nodes.price_per_j[:, None], 0.0)
    air_price = joule_bits * add_up(
        watt_price * bit_s[0] + at_next_active(watt_price, active) * bit_s[1]
    )
    heard_price = add_up(jnp.where(active, power_w * nodes.price_per_w[:, None], 0.0))

    # Moves of a block at these powers, its share of the compute, its energy.
    efficient = _moves_at(best_power, nodes)
    move_s = efficient[0][1:] + efficient[1][1:]
    move_price = watt_price[1:] * efficient[0][1:] + watt_price[0] * efficient[1][1:]
    block_s = (steps * (1.0 + work.backward_ratio) * unit_s)[:, None] + move_s
    flops = steps * work.batch * work.block_flops * (1.0 + work.backward_ratio)
    joules = flops * jnp.swapaxes(compute.joules_per_flop, 0, 1)[1:]
    block_price = (nodes.price_per_j[1:] * joules)[:, None] + move_price

    up_s = up_bits * uplinks.up_bit_s + compute.link_overhead_s
    down_s = bits * uplinks.down_bit_s + compute.link_overhead_s
    model_bits = blocks * work.block_param_bits + work.embedding_param_bits
    fixed_s = steps * ((1.0 + work.backward_ratio) * embed_s + decoder_s + up_s + down_s)
    fixed_s = fixed_s + model_bits * (uplinks.up_bit_s + uplinks.down_bit_s)
    hop_s = bits * add_up(bit_s[0] + bit_s[1]) + 2.0 * hops * compute.link_overhead_s
    fixed_s = fixed_s + steps * hop_s
    overhead_s = compute.link_overhead_s
    forward_s = jnp.maximum(jnp.maximum(embed_s, decoder_s), up_s)
    forward_s = jnp.maximum(forward_s, bits * largest(bit_s[0]) + overhead_s)
    backward_s = jnp.maximum(work.backward_ratio * embed_s, down_s)
    backward_s = jnp.maximum(backward_s, bits * largest(bit_s[1]) + overhead_s)
    hazard = bits / transport * set_hazard + fixed_hazard
    fixed_price = air_price + heard_price + survival_price * excess_inverse_survival(hazard)

    capacity = jnp.swapaxes(block_capacity(work, compute.memory_bytes, micro_batches), 0, 1)
    capacity = capacity.astype(unit_s.dtype)

    def price_of(linked, segments, slowest_s):
        longest_s = jnp.maximum(linked.forward_s, slowest_s)
        longest_s = longest_s + jnp.maximum(linked.backward_s, work.backward_ratio * slowest_s)
        latency_s = linked.fixed_s + add_up(segments * linked.block_s) + pauses * longest_s
        late_s = jnp.maximum(latency_s, around.round_s)
        price = around.price_per_s * latency_s + (price_per_s - around.price_per_s) * late_s
        price = price + linked.fixed_price + add_up(segments * linked.block_price)
        # A hopeless link must still win against not fitting at all.
        return jnp.minimum(jnp.nan_to_num(price, nan=jnp.inf), 1e37)

    linked = _Linked(
        members.astype(unit_s.dtype), share, best_power, balanced_s, fixed_s, fixed_price,
        forward_s, backward_s, block_s, block_price,
    )  # fmt: skip
    room = add_up(linked.member * capacity[:, None])
    relaxed = price_of(linked, balanced, balanced_s)
    relaxed = jnp.where((room >= blocks) & (hops - 1.0 <= blocks), relaxed, jnp.inf)
    count = min(_FILLED_SETS, relaxed.shape[0])
    index = jax.lax.top_k(-jnp.moveaxis(relaxed, 0, -1), count)[1]
    index = jnp.moveaxis(index, -1, 0)
    linked = jax.tree.map(lambda leaf: _take_sets(leaf, index), linked)

    unit_price = middle * linked.block_s + linked.block_price
    cheaper = _cheaper(unit_price)
    active_members = linked.member > 0
    ceiling = jnp.array(_CEILINGS).reshape(-1, 1, 1, 1)
    limits_s = jnp.concatenate(
        [linked.balanced_s * ceiling, jnp.maximum(linked.forward_s, linked.balanced_s)[None]]
    )

    def fill(best, limit_s):
        limit = jnp.floor(jnp.maximum(limit_s / unit_s[:, None], 1.0) + 1e-4)
        limit = jnp.minimum(limit, capacity[:, None])
        segments = fill_in_order(cheaper, limit, active_members, blocks)
        price = price_of(linked, segments, largest(segments * unit_s[:, None]))
        price = jnp.where(add_up(segments) == blocks, price, jnp.inf)
        wins = price < best[1]
        return (jnp.where(wins, segments, best[0]), jnp.where(wins, price, best[1])), None

    nothing = jnp.zeros_like(linked.member), jnp.full_like(linked.fixed_s, jnp.inf)
    (segments, price), _ = jax.lax.scan(fill, nothing, limits_s)
    return Layouts(
        jnp.swapaxes(segments, 0, 1),
        jnp.broadcast_to(micro_batches, price.shape),
        jnp.swapaxes(jnp.log(linked.share), 0, 1),
        jnp.swapaxes(jnp.log(linked.power), 0, 1),
        price,
    )


class _Linked(NamedTuple):
    """Sets with shares and powers, for one number of micro-batches.

    Attributes:
      member: 1 on active devices, ``[K, sets, N, R]``.
      share: of the D2D band, ``[P, sets, N, R]``.
      power: over its maximum, likewise.
      balanced_s: time of every device if blocks could be split, ``[sets, N, R]``.
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


def _take_sets(leaf, index):
    """Sets ``index [F, N, R]`` of a leaf ``[..., sets, N, R]``."""
    index = jnp.broadcast_to(index, (*leaf.shape[:-3], *index.shape))
    return jnp.take_along_axis(leaf, index, axis=-3)


def _least(values, cost):
    """Values of least cost along the first axis, and this cost.

    Args:
      values: ``[C, ..., *shape]``.
      cost: ``[C, *shape]``.
    """
    best, least = values[0], cost[0]
    for index in range(1, cost.shape[0]):
        wins = cost[index] < least
        best = jnp.where(wins, values[index], best)
        least = jnp.where(wins, cost[index], least)
    return best, least


def _moves_at(power, nodes: _Nodes):
    """Times to collect and to distribute a block at each node's level, ``[P, sets, N, R]``."""
    collect_s = jnp.broadcast_to(nodes.collect_s[0][:, None], power.shape)
    distribute_s = jnp.broadcast_to(nodes.distribute_s[0][:, None], power.shape)
    for index, level in enumerate(_LEVELS[1:], start=1):
        collect_s = jnp.where(power == level, nodes.collect_s[index][:, None], collect_s)
        distribute_s = jnp.where(power[0] == level, nodes.distribute_s[index][:, None], distribute_s)
    return collect_s, distribute_s
