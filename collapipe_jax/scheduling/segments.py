"""Segments of every cluster for given shares and powers, by candidates.

A cluster's segments face costs linear in the blocks of each device, a bottleneck, and
hops that depend on which devices are active. So candidates are made for every active set
x number of micro-batches x ceiling on the bottleneck, each filled greedily. A set with one
block on each device is priced by the same functions that price any decision; the rest
follows from it in proportion.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.cost.decision import Decision, active_nodes
from collapipe_jax.cost.divergence import cluster_divergence, present_weight
from collapipe_jax.cost.energy import node_energy_j
from collapipe_jax.cost.latency import backward_flow_s, forward_flow_s, latency_parts, stage_times
from collapipe_jax.cost.links import Links, message_links, message_time_s, micro_batch_hazard
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.network.channel import interference_w
from collapipe_jax.scheduling.feasibility import can_run, usable_blocks

_ALL_SUBSETS_UP_TO = 5
_CEILINGS = (1.0, 1.15, 1.4, 2.0, 4.0, np.inf)


class LatencyPrice(NamedTuple):
    """What a cluster's latency is worth to it.

    Attributes:
      per_s: price of a second of its latency, ``[N]``.
      floor_s: latency below which a second is worth nothing, ``[N]``: that of the others
        where only the slowest cluster counts, 0 where the price says it all.
    """

    per_s: Array
    floor_s: Array


def fill_segments(unit_price: Array, capacity: Array, active: Array, blocks: int) -> Array:
    """Cheapest segments of a cluster when every block costs the same on a device.

    Every active device gets one block, and the rest goes to the cheapest devices first:
    optimal, since units of one device are alike.

    Args:
      unit_price: ``[K]``.
      capacity: integers, ``[K]``.
      active: ``[K]``.
      blocks: ``L``.

    Returns:
      Integers, ``[K]``; zeros where the active devices cannot hold the blocks, or are more
      than there are blocks.
    """
    order = jnp.arange(active.shape[0])
    price, other = unit_price[:, None], unit_price[None, :]
    other_first = (other < price) | ((other == price) & (order[None, :] < order[:, None]))
    room = jnp.where(active, capacity - 1, 0)
    room_before = jnp.sum(jnp.where(other_first, room[None, :], 0), axis=1)
    rest = blocks - jnp.sum(active)
    filled = jnp.clip(rest - room_before, 0, room) + active
    possible = jnp.all((capacity >= 1) | ~active) & (rest >= 0) & (jnp.sum(room) >= rest)
    return jnp.where(possible, filled, 0).astype(jnp.int32)


def candidate_sets(preference: Array) -> Array:
    """Sets of active devices worth trying.

    All subsets of few devices; of many, those that take the best devices first, by each
    of several orders of preference.

    Args:
      preference: the smaller the better, ``[orders, N, K]``.

    Returns:
      ``[sets, N, K]``, boolean, none empty.
    """
    _, clusters, devices = preference.shape
    if devices <= _ALL_SUBSETS_UP_TO:
        subsets = np.array(list(itertools.product((False, True), repeat=devices))[1:])
        return jnp.broadcast_to(subsets[:, None], (len(subsets), clusters, devices))
    rank = jnp.argsort(jnp.argsort(preference, axis=-1), axis=-1)
    sizes = jnp.arange(1, devices + 1)
    return (rank[:, None] < sizes[None, :, None, None]).reshape(-1, clusters, devices)


class _BlockMove(NamedTuple):
    """Times to move one block from and to a device, ``[N, K]`` each."""

    collect: Array
    distribute: Array


def propose_segments(problem: RoundProblem, tentative: Decision, price: LatencyPrice) -> Decision:
    """Best segments and micro-batches of every cluster, the other clusters left alone.

    Args:
      problem: one round of one network.
      tentative: who interferes now; a D2D share and a power for every node that may be
        active, idle ones included, or they would never come back.
      price: of latency, per cluster.

    Returns:
      A decision whose shares are the tentative ones, renormalised over active nodes. A
      cluster that can hold the encoder never sits out.
    """
    heard = interference_w(problem.radio, active_nodes(tentative.segments), tentative.d2d_power_w)
    move_s = _block_move_s(problem, tentative, heard)
    sets = candidate_sets(jnp.stack([1 / problem.compute.flops_per_s[:, 1:], sum(move_s)]))
    priced = jax.vmap(lambda active: _price_set(problem, tentative, heard, active))(sets)

    def best_of_choice(micro_batches):
        return _best_candidate(problem, tentative, price, move_s, sets, priced, micro_batches)

    cost, segments = jax.lax.map(best_of_choice, problem.workload.micro_batch_choices)
    choice = jnp.argmin(cost, axis=0)
    segments = jnp.take_along_axis(segments, choice[None, :, None], axis=0)[0]
    segments = jnp.where(can_run(problem)[:, None], segments, 0)
    counts = problem.workload.micro_batch_choices[choice].astype(jnp.int32)
    return _share_out(tentative, segments).replace(micro_batches=counts)


class _PricedSet(NamedTuple):
    """A set of active devices with one block each, as far as micro-batches do not matter.

    Attributes:
      member: the decision; it has one micro-batch.
      links: of the decision.
      energy: price of its energy, ``[N]``.
      hazard: of the whole batch as one message, ``[N]``.
    """

    member: Decision
    links: Links
    energy: Array
    hazard: Array


def _price_set(problem, tentative, heard, active) -> _PricedSet:
    member = _share_out(tentative, active)
    member = member.replace(micro_batches=jnp.ones(problem.clusters, jnp.int32))
    links = message_links(problem, member, heard)
    parts = latency_parts(problem, member, links, stage_times(problem, member, links))
    energy = _debt_per_j(problem) * node_energy_j(problem, member, links, parts)
    hazard = micro_batch_hazard(problem, member, links)
    return _PricedSet(member, links, jnp.sum(energy, axis=1), hazard)


def _best_candidate(problem, tentative, price, move_s, sets, priced, micro_batches):
    """Least cost ``[N]`` and segments ``[N, K]`` for one number of micro-batches.

    With a set's links given, blocks beyond the first of each device add to latency and
    energy in proportion, but for the bottleneck.
    """
    work = problem.workload
    unit_s = work.batch / micro_batches * work.block_flops / problem.compute.flops_per_s[:, 1:]
    unit_s = unit_s + problem.compute.block_overhead_s
    block_s = work.local_steps * (1.0 + work.backward_ratio) * unit_s + sum(move_s)
    block_energy = _block_energy(problem, tentative, move_s)
    unit_price = price.per_s[:, None] * block_s + block_energy
    capacity = usable_blocks(problem, micro_batches)
    fill = jax.vmap(lambda *cluster: fill_segments(*cluster, work.blocks))

    def evaluate(active, one):
        speed = jnp.sum(jnp.where(active, 1.0 / unit_s, 0.0), axis=1, keepdims=True)
        balanced_s = work.blocks / speed
        flow = _flow_of_ones(problem, one, micro_batches)
        other_cost = one.energy + _divergence_price(problem, one, micro_batches)

        def at_ceiling(ceiling):
            limit = jnp.floor(jnp.maximum(ceiling * balanced_s / unit_s, 1.0) + 1e-4)
            limit = jnp.minimum(limit, capacity).astype(jnp.int32)
            segments = fill(unit_price, limit, active)
            more = segments - active

            def added(per_block):
                return jnp.sum(jnp.where(more > 0, more * per_block, 0.0), axis=1)

            slower_s = _slower_pause_s(problem, flow, jnp.max(segments * unit_s, axis=1))
            pauses = work.local_steps * (micro_batches - 1)
            latency_s = flow.latency_s + pauses * slower_s + added(block_s)
            cost = price.per_s * jnp.maximum(latency_s, price.floor_s)
            cost = cost + added(block_energy) + other_cost
            fits = jnp.sum(segments, axis=1) == work.blocks
            # A hopeless link must still win against not fitting at all.
            cost = jnp.minimum(jnp.nan_to_num(cost, nan=jnp.inf), 1e37)
            return jnp.where(fits, cost, jnp.inf), segments

        return jax.vmap(at_ceiling)(jnp.array(_CEILINGS))

    cost, segments = jax.vmap(evaluate)(sets, priced)
    cost = cost.reshape(-1, problem.clusters)
    segments = segments.reshape(-1, problem.clusters, problem.devices)
    best = jnp.argmin(cost, axis=0)
    return jnp.min(cost, axis=0), jnp.take_along_axis(segments, best[None, :, None], axis=0)[0]


class _Flow(NamedTuple):
    """Latency and the slowest stages of either flow, ``[N]`` each."""

    latency_s: Array
    forward_s: Array
    backward_s: Array


def _flow_of_ones(problem: RoundProblem, one: _PricedSet, micro_batches: Array) -> _Flow:
    """Flow of a set with one block on each device."""
    decision = one.member.replace(micro_batches=jnp.full(problem.clusters, micro_batches))
    stages = stage_times(problem, decision, one.links)
    return _Flow(
        sum(latency_parts(problem, decision, one.links, stages)),
        jnp.max(forward_flow_s(stages), axis=1),
        jnp.max(backward_flow_s(stages), axis=1),
    )


def _slower_pause_s(problem: RoundProblem, flow: _Flow, slowest_s: Array) -> Array:
    """What a slowest device of this forward time adds to a pause of both flows, ``[N]``."""
    forward_s = jnp.maximum(slowest_s - flow.forward_s, 0.0)
    slowest_back_s = problem.workload.backward_ratio * slowest_s
    return forward_s + jnp.maximum(slowest_back_s - flow.backward_s, 0.0)


def _divergence_price(problem: RoundProblem, one: _PricedSet, micro_batches: Array) -> Array:
    """Price of every cluster's part of the divergence, ``[N]``."""
    learning, control = problem.learning, problem.control
    hazard = one.hazard / micro_batches
    variance = cluster_divergence(hazard, micro_batches, problem.workload.batch, learning)
    weight = present_weight(learning.cluster_weight, can_run(problem))
    return control.divergence_queue * weight**2 * variance / control.divergence_target


def _debt_per_j(problem: RoundProblem) -> Array:
    """Price of a joule on every node, ``[N, K + 1]``."""
    return problem.control.energy_queue / problem.control.energy_budget_j


def _block_energy(problem: RoundProblem, tentative: Decision, move_s: _BlockMove) -> Array:
    """Price of the energy of one more block on each device, ``[N, K]``."""
    work, debt, power_w = problem.workload, _debt_per_j(problem), tentative.d2d_power_w
    flops = work.local_steps * work.batch * work.block_flops * (1.0 + work.backward_ratio)
    device_j = flops * problem.compute.joules_per_flop[:, 1:] + power_w[:, 1:] * move_s.collect
    return debt[:, 1:] * device_j + debt[:, :1] * power_w[:, :1] * move_s.distribute


def _block_move_s(problem: RoundProblem, tentative: Decision, heard: Array) -> _BlockMove:
    """Times to move one block; on the whole band, so whoever is active."""
    links = message_links(problem, tentative, heard)
    bits = problem.workload.block_param_bits
    return _BlockMove(
        collect=message_time_s(bits, links.collect_rate_bps),
        distribute=message_time_s(bits, links.distribute_rate_bps),
    )


def _share_out(tentative: Decision, segments: Array) -> Decision:
    """The tentative decision with other segments, shares renormalised over active nodes."""
    active = active_nodes(segments)
    share = jnp.where(active, tentative.d2d_share, 0.0)
    total = jnp.sum(share, axis=1, keepdims=True)
    share = jnp.where(total > 0, share / jnp.where(total > 0, total, 1.0), 0.0)
    return tentative.replace(segments=segments.astype(jnp.int32), d2d_share=share)
