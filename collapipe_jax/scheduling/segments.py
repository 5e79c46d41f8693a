"""Segments of every cluster for given shares and powers, by candidates.

A cluster's segments face costs linear in the blocks of each device, a bottleneck, and
hops that depend on which devices are active. So candidates are made for every active set
x number of micro-batches x ceiling on the bottleneck, each filled greedily, and priced by
the same functions that price any decision.
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
from collapipe_jax.cost.latency import latency_parts, stage_times
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
    """Cheapest segments when every block costs the same on a device.

    Every active device gets one block, and the rest goes to the cheapest devices first:
    optimal, since units of one device are alike.

    Args:
      unit_price: ``[..., K]``.
      capacity: integers, ``[..., K]``.
      active: ``[..., K]``.
      blocks: ``L``.

    Returns:
      Integers, ``[..., K]``; a row of zeros where the active devices cannot hold the
      blocks, or are more than there are blocks.
    """
    order = jnp.arange(active.shape[-1])
    price, other = unit_price[..., :, None], unit_price[..., None, :]
    other_first = (other < price) | ((other == price) & (order[None, :] < order[:, None]))
    room = jnp.where(active, capacity - 1, 0)
    room_before = jnp.sum(jnp.where(other_first, room[..., None, :], 0), axis=-1)
    rest = blocks - jnp.sum(active, axis=-1, keepdims=True)
    filled = jnp.clip(rest - room_before, 0, room) + active
    possible = jnp.all((capacity >= 1) | ~active, axis=-1, keepdims=True)
    possible &= (rest >= 0) & (jnp.sum(room, axis=-1, keepdims=True) >= rest)
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
    radio = problem.radio
    heard = interference_w(radio, active_nodes(tentative.segments), tentative.d2d_power_w)
    every = jnp.ones_like(tentative.segments)
    links = message_links(problem, _share_out(tentative, every), heard)
    block_s = _block_time_s(problem, links)
    sets = candidate_sets(jnp.stack([1 / problem.compute.flops_per_s[:, 1:], block_s]))

    def best_of_choice(micro_batches):
        return _best_candidate(problem, tentative, price, heard, links, sets, micro_batches)

    cost, segments = jax.lax.map(best_of_choice, problem.workload.micro_batch_choices)
    choice = jnp.argmin(cost, axis=0)
    segments = jnp.take_along_axis(segments, choice[None, :, None], axis=0)[0]
    segments = jnp.where(can_run(problem)[:, None], segments, 0)
    counts = problem.workload.micro_batch_choices[choice].astype(jnp.int32)
    return _share_out(tentative, segments).replace(micro_batches=counts)


def _best_candidate(problem, tentative, price, heard, links, sets, micro_batches):
    """Least cost ``[N]`` and segments ``[N, K]`` for one number of micro-batches."""
    counts = jnp.full(problem.clusters, micro_batches)
    capacity = usable_blocks(problem, micro_batches)
    samples = problem.workload.batch / micro_batches
    unit_s = samples * problem.workload.block_flops / problem.compute.flops_per_s[:, 1:]
    unit_s = unit_s + problem.compute.block_overhead_s
    unit_price = _unit_price(problem, tentative, price, links, unit_s)

    def evaluate(active):
        speed = jnp.sum(jnp.where(active, 1.0 / unit_s, 0.0), axis=1, keepdims=True)
        balanced_s = problem.workload.blocks / speed
        member = _share_out(tentative, active.astype(jnp.int32))
        set_links = message_links(problem, member, heard)

        def at_ceiling(ceiling):
            limit = jnp.floor(jnp.maximum(ceiling * balanced_s / unit_s, 1.0) + 1e-4)
            limit = jnp.minimum(limit, capacity).astype(jnp.int32)
            segments = fill_segments(unit_price, limit, active, problem.workload.blocks)
            decision = member.replace(segments=segments, micro_batches=counts)
            return _cluster_cost(problem, decision, set_links, price), segments

        return jax.vmap(at_ceiling)(jnp.array(_CEILINGS))

    cost, segments = jax.vmap(evaluate)(sets)
    cost = cost.reshape(-1, problem.clusters)
    segments = segments.reshape(-1, problem.clusters, problem.devices)
    best = jnp.argmin(cost, axis=0)
    return jnp.min(cost, axis=0), jnp.take_along_axis(segments, best[None, :, None], axis=0)[0]


def _cluster_cost(problem, decision, links, price):
    """Each cluster's own part of (P2) under a price of latency, ``[N]``."""
    work, control = problem.workload, problem.control
    stages = stage_times(problem, decision, links)
    parts = latency_parts(problem, decision, links, stages)
    latency = price.per_s * jnp.maximum(sum(parts), price.floor_s)
    debt = control.energy_queue / control.energy_budget_j
    energy = jnp.sum(debt * node_energy_j(problem, decision, links, parts), axis=1)
    hazard = micro_batch_hazard(problem, decision, links)
    variance = cluster_divergence(hazard, decision.micro_batches, work.batch, problem.learning)
    weight = present_weight(problem.learning.cluster_weight, can_run(problem))
    divergence = control.divergence_queue * weight**2 * variance / control.divergence_target
    total = latency + energy + divergence
    fits = jnp.sum(decision.segments, axis=1) == work.blocks
    # A hopeless link must still lose against not fitting at all.
    return jnp.where(fits, jnp.minimum(jnp.nan_to_num(total, nan=jnp.inf), 1e37), jnp.inf)


def _unit_price(problem, tentative, price, links: Links, unit_s):
    """Price of one more block on each device, ``[N, K]``."""
    work, compute, control = problem.workload, problem.compute, problem.control
    debt = control.energy_queue / control.energy_budget_j
    collect_s = message_time_s(work.block_param_bits, links.collect_rate_bps)
    distribute_s = message_time_s(work.block_param_bits, links.distribute_rate_bps)
    once = 1.0 + work.backward_ratio
    latency_s = work.local_steps * once * unit_s + collect_s + distribute_s
    flops = work.local_steps * work.batch * work.block_flops * once
    power_w = tentative.d2d_power_w
    energy = debt[:, 1:] * (flops * compute.joules_per_flop[:, 1:] + power_w[:, 1:] * collect_s)
    energy = energy + debt[:, :1] * power_w[:, :1] * distribute_s
    return price.per_s[:, None] * latency_s + energy


def _block_time_s(problem: RoundProblem, links: Links) -> Array:
    """Time to move one block to a device and back, ``[N, K]``."""
    bits = problem.workload.block_param_bits
    collect_s = message_time_s(bits, links.collect_rate_bps)
    return collect_s + message_time_s(bits, links.distribute_rate_bps)


def _share_out(tentative: Decision, segments: Array) -> Decision:
    """The tentative decision with other segments, shares renormalised over active nodes."""
    active = active_nodes(segments)
    share = jnp.where(active, tentative.d2d_share, 0.0)
    total = jnp.sum(share, axis=1, keepdims=True)
    share = jnp.where(total > 0, share / jnp.where(total > 0, total, 1.0), 0.0)
    return tentative.replace(segments=segments.astype(jnp.int32), d2d_share=share)
