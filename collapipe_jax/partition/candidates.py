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

from collapipe_jax.allocation.smooth_maximum import add_up, largest
from collapipe_jax.allocation.variables import Resources, Surroundings
from collapipe_jax.batching import computed_once
from collapipe_jax.cost.memory import block_capacity
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.switching import price_of_moves
from collapipe_jax.partition.linked_sets import LinkedSets, link_sets
from collapipe_jax.partition.powered_sets import PoweredSets, power_sets
from collapipe_jax.partition.set_prices import (
    Micro,
    micro_batch_sizes,
    price_nodes,
    price_sets,
    price_uplinks,
)

_ALL_SUBSETS_UP_TO = 5
_LINKED_SETS = 12
"""Sets that get shares and blocks, for each number of micro-batches: the best by their price
with equal shares and blocks split at will."""
_CEILINGS = (1.0, 1.2, 1.6, 2.5, np.inf)
"""Ceilings on a device's time, over the time of all if blocks could be split at will."""


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
    room = computed_once(jnp.where(active, capacity - 1.0, 0.0))
    rest = blocks - add_up(active.astype(room.dtype))
    before = sum(cheaper[:, k] * room[k] for k in range(room.shape[0]))
    filled = jnp.clip(rest - before, 0.0, room) + active
    short = add_up(jnp.where(active & (capacity < 1.0), 1.0, 0.0))
    enough = (rest >= 0) & (add_up(room) >= rest) & (short == 0)
    return computed_once(jnp.where(enough, filled, 0.0))


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


def propose_layouts(
    problem: RoundProblem, tentative: Resources, around: Surroundings, count: int
) -> Layouts:
    """The most promising layouts of every cluster.

    Args:
      problem: with lanes ``[R]``.
      tentative: D2E shares and powers.
      around: what a cluster sees of the others.
      count: ``J``, or as many as there are.

    Returns:
      At most one layout for an active set and a number of micro-batches.
    """
    nodes = price_nodes(problem, around)
    speed = jnp.swapaxes(problem.compute.flops_per_s, 0, 1)
    members = candidate_sets(jnp.stack([1.0 / speed[1:], nodes.collect_s[0, 1:]]))
    sets = price_sets(problem, around, nodes, members)
    uplinks = price_uplinks(problem, tentative)

    def of_choice(micro_batches):
        micro = micro_batch_sizes(problem, around, uplinks, micro_batches)
        capacity = block_capacity(problem.workload, problem.compute.memory_bytes, micro_batches)
        capacity = jnp.swapaxes(capacity, 0, 1).astype(micro.unit_s.dtype)[:, None]
        promising = _most_promising(problem, power_sets(problem, nodes, sets, micro), capacity)
        linked = link_sets(problem, nodes, promising, uplinks, micro)
        return _fill(problem, around, linked, micro, capacity)

    found = jax.lax.map(of_choice, problem.workload.micro_batch_choices)
    found = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)
    index = _first(found.price, min(count, found.price.shape[0]))

    def take(leaf):
        wide = index.reshape(index.shape[0], *[1] * (leaf.ndim - index.ndim), *index.shape[1:])
        return jnp.take_along_axis(leaf, wide, axis=0)

    return jax.tree.map(take, found)


def _first(price: Array, count: int) -> Array:
    """Indices of the least prices along the first axis. ``[S, N, R] -> [count, N, R]``."""
    ranked = jax.lax.top_k(-jnp.moveaxis(price, 0, -1), count)[1]
    return jnp.moveaxis(ranked, -1, 0)


def _most_promising(problem, sets: PoweredSets, capacity) -> PoweredSets:
    """The sets that are cheapest by the estimate and can hold the blocks."""
    blocks = problem.workload.blocks
    member = sets.active[1:].astype(capacity.dtype)
    fits = (add_up(member * capacity) >= blocks) & (add_up(member) <= blocks)
    price = jnp.where(fits, jnp.nan_to_num(sets.price, nan=jnp.inf), jnp.inf)
    index = _first(price, min(_LINKED_SETS, price.shape[0]))

    def take(leaf):
        wide = jnp.broadcast_to(index, (*leaf.shape[:-3], *index.shape))
        return jnp.take_along_axis(leaf, wide, axis=-3)

    return jax.tree.map(take, sets)


def _fill(problem, around, linked: LinkedSets, micro: Micro, capacity) -> Layouts:
    """Cheapest segments of sets under several ceilings."""
    blocks = problem.workload.blocks
    unit_price = micro.middle_price_per_s * linked.block_s + linked.block_price
    cheaper = _cheaper(computed_once(unit_price))
    active = linked.member > 0

    def fill(best, limit_s):
        limit = jnp.floor(jnp.maximum(limit_s / micro.unit_s[:, None], 1.0) + 1e-4)
        segments = fill_in_order(cheaper, jnp.minimum(limit, capacity), active, blocks)
        price = _price_filled(problem, around, micro, linked, segments)
        price = jnp.where(add_up(segments) == blocks, price, jnp.inf)
        wins = price < best[1]
        return (jnp.where(wins, segments, best[0]), jnp.where(wins, price, best[1])), None

    ceiling = jnp.array(_CEILINGS).reshape(-1, 1, 1, 1)
    # Up to the longest stage that is there anyway, a device's time costs nothing more.
    free_s = jnp.maximum(linked.forward_s, linked.balanced_s)
    limits_s = jnp.concatenate([linked.balanced_s * ceiling, free_s[None]])
    nothing = jnp.zeros_like(linked.member), jnp.full_like(linked.fixed_s, jnp.inf)
    (segments, price), _ = jax.lax.scan(fill, nothing, limits_s)
    return Layouts(
        segments=jnp.swapaxes(segments, 0, 1),
        micro_batches=jnp.broadcast_to(micro.batches, price.shape),
        log_share=jnp.swapaxes(jnp.log(linked.share), 0, 1),
        log_power=jnp.swapaxes(jnp.log(linked.power), 0, 1),
        price=price,
    )


def _price_filled(problem, around, micro: Micro, linked: LinkedSets, segments) -> Array:
    """Price of segments, whole or not, ``[sets, N, R]``."""
    ratio = problem.workload.backward_ratio
    slowest_s = largest(segments * micro.unit_s[:, None])
    longest_s = jnp.maximum(linked.forward_s, slowest_s)
    longest_s = longest_s + jnp.maximum(linked.backward_s, ratio * slowest_s)
    held = segments > 0  # a dead link costs nothing to whom has no block
    block_s = add_up(jnp.where(held, segments * linked.block_s, 0.0))
    block_price = add_up(jnp.where(held, segments * linked.block_price, 0.0))
    latency_s = linked.fixed_s + block_s + micro.pauses * longest_s
    late_s = jnp.maximum(latency_s, around.round_s)
    price = around.price_per_s * latency_s
    price = price + (micro.price_per_s - around.price_per_s) * late_s
    price = price + linked.fixed_price + block_price
    price = price + price_of_moves(problem.switching, segments, problem.workload.blocks)
    # A hopeless link must still win against not fitting at all.
    return computed_once(jnp.minimum(jnp.nan_to_num(price, nan=jnp.inf), 1e37))
