"""Segments of given sets of devices, filled with the cheapest blocks first.

With shares and powers given, the cost of a cluster is linear in the blocks of each device but
for its longest stages. So it is cheapest to fill a set under a ceiling on a device's time in
the order of unit costs, and the best of several ceilings is taken. Arrays have nodes first,
clusters next, then the sets ``A`` and the batch ``R``.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.core.batch_axis import fusion_barrier, max_nodes, sum_nodes
from collapipe_jax.edge.cost.fixed_partition import FixedPartition
from collapipe_jax.edge.cost.moments import leaving_cost, moved_moments
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.round_terms import RoundTerms

_CEILINGS = (1.0, 1.2, 1.6, 2.5, np.inf)
"""Ceilings on a device's time, over the time of all if blocks could be split at will."""


class LinearCosts(NamedTuple):
    """Cost of sets, linear in the blocks but for the longest stages, ``[N, A, R]`` each."""

    forward_s: Array  # longest stage with one block on every device
    backward_s: Array  # likewise
    rest_s: Array  # latency that blocks do not change
    rest_cost: Array  # likewise of the other costs
    block_s: Array  # latency of a block on a device, ``[K, N, A, R]``
    block_cost: Array  # its other costs, likewise
    given_s: Array  # part of the latency of a block that its way to the device takes, likewise
    given_cost: Array  # its other costs, likewise
    stage_s: Array  # forward pass of a block on a device, ``[K, N, 1, R]``
    waits: Array  # how often a round waits for the longest stages


def linear_costs(
    problem: RoundProblem, fixed: FixedPartition, terms: RoundTerms, stage_s: Array, waits: Array
) -> LinearCosts:
    """Cost of sets from the terms of a round with one block on every device.

    Args:
      problem: one round.
      fixed: its partition with one block on every device of the sets, and none before it.
      terms: of the sets' shares and powers.
      stage_s: forward pass of a block on a device, ``[K, N, 1, R]``.
      waits: how often a round waits for the longest stages, ``[1, R]`` or ``[N, 1, R]``.
    """
    forward_s, backward_s = terms.flows.forward.value, terms.flows.backward.value
    passes = problem.workload.local_steps * (1.0 + problem.workload.backward_ratio)
    collect_s, distribute_s = terms.air.move_s
    block_s = passes * fixed.compute.forward_s[1:] + collect_s + distribute_s
    moved = fixed.sender_cost_per_j.move * terms.message_j.move
    computed = fixed.costs.energy_per_j[1:] * fixed.computing_j[1:]
    block_cost, given_cost = computed + moved[0] + moved[1], moved[1]
    if fixed.receiving is not None and terms.received_j is not None:
        received = fixed.receiving.cost_per_j.move * terms.received_j.move
        block_cost, given_cost = block_cost + sum_nodes(received), given_cost + received[1]
    return LinearCosts(
        forward_s=forward_s,
        backward_s=backward_s,
        rest_s=terms.cluster_latency_s - waits * (forward_s + backward_s) - sum_nodes(block_s),
        rest_cost=terms.cluster_cost - sum_nodes(block_cost),
        block_s=block_s,
        block_cost=block_cost,
        given_s=distribute_s,
        given_cost=given_cost,
        stage_s=stage_s,
        waits=waits,
    )


def cost_at(problem: RoundProblem, linear: LinearCosts, segments: Array) -> tuple[Array, Array]:
    """Latency and other costs of segments, at least one block on every device of their set.

    Args:
      problem: one round.
      linear: cost of the sets.
      segments: ``[K, N, A, R]``.

    Returns:
      Seconds and drift of the queues, ``[N, A, R]`` each.
    """
    slowest_s = max_nodes(segments * linear.stage_s)
    backward_s = problem.workload.backward_ratio * slowest_s
    longest_s = jnp.maximum(linear.forward_s, slowest_s)
    longest_s = longest_s + jnp.maximum(linear.backward_s, backward_s)
    held = segments > 0  # a dead link costs nothing to a device without blocks
    block_s = sum_nodes(jnp.where(held, segments * linear.block_s, 0.0))
    block_cost = sum_nodes(jnp.where(held, segments * linear.block_cost, 0.0))
    latency_s = linear.rest_s + block_s + linear.waits * longest_s
    cost, moments = linear.rest_cost + block_cost, moved_moments(problem, segments)
    if moments is not None:
        taken = jnp.where(held, moments.taken_bits / problem.workload.block_param_bits, 0.0)
        latency_s = latency_s + moments.return_s + sum_nodes(taken * linear.given_s)
        cost = cost + sum_nodes(taken * linear.given_cost)
    return latency_s, cost + leaving_cost(problem, segments, moments)


def fill_sets(
    linear: LinearCosts,
    active: Array,
    capacity: Array,
    blocks: int,
    latency_per_s: Array,
    cost_of: Callable[[Array], Array],
) -> tuple[Array, Array]:
    """Cheapest segments of sets under several ceilings.

    Args:
      linear: cost of the sets.
      active: devices of the sets, ``[K, N, A, R]``.
      capacity: most blocks of a device, ``[K, N, A, R]`` or ``[K, N, 1, R]``.
      blocks: ``L``.
      latency_per_s: cost of a second in the order of filling.
      cost_of: cost of segments, which chooses the ceiling.

    Returns:
      Segments ``[K, N, A, R]``, and their cost, infinite where a set cannot hold the blocks.
    """
    comes_first = fill_order(fusion_barrier(latency_per_s * linear.block_s + linear.block_cost))

    def fill(best, limit_s):
        limit = jnp.floor(jnp.maximum(limit_s / linear.stage_s, 1.0) + 1e-4)
        segments = fill_in_order(comes_first, jnp.minimum(limit, capacity), active, blocks)
        cost = jnp.where(sum_nodes(segments) == blocks, cost_of(segments), jnp.inf)
        wins = cost < best[1]
        return (jnp.where(wins, segments, best[0]), jnp.where(wins, cost, best[1])), None

    balanced_s = balanced_time_s(linear.stage_s, active, blocks)
    ceilings = jnp.array(_CEILINGS).reshape(-1, 1, 1, 1)
    # Up to the longest stage that is there anyway, a device's time costs nothing more.
    free_s = jnp.maximum(linear.forward_s, balanced_s)
    limits_s = jnp.concatenate([balanced_s * ceilings, free_s[None]])
    nothing = jnp.zeros_like(linear.block_s), jnp.full_like(linear.rest_s, jnp.inf)
    return jax.lax.scan(fill, nothing, limits_s)[0]


def balanced_time_s(stage_s: Array, active: Array, blocks: int) -> Array:
    """Forward time of every device of a set with blocks split at will, ``[N, A, R]``."""
    return blocks / sum_nodes(active.astype(stage_s.dtype) / stage_s)


def fill_order(unit_cost: Array) -> Array:
    """1 where the second device is filled before the first, ``[K, K, ...]``."""
    order = jnp.arange(unit_cost.shape[0])
    first = (order[None] < order[:, None]).reshape(-1, len(order), *[1] * (unit_cost.ndim - 1))
    mine, other = unit_cost[:, None], unit_cost[None]
    return ((other < mine) | ((other == mine) & first)).astype(unit_cost.dtype)


def fill_in_order(comes_first: Array, capacity: Array, active: Array, blocks: int) -> Array:
    """Cheapest segments of a cluster when every block costs the same on a device.

    Every active device gets one block, and the rest goes to the cheapest devices first:
    optimal, since blocks of one device are alike.

    Args:
      comes_first: as :func:`fill_order` returns it.
      capacity: ``[K, ...]``.
      active: ``[K, ...]``.
      blocks: ``L``.

    Returns:
      ``[K, ...]``, whole numbers; zeros where the active devices cannot hold the blocks,
      or are more than there are blocks.
    """
    room = fusion_barrier(jnp.where(active, capacity - 1.0, 0.0))
    rest = blocks - sum_nodes(active.astype(room.dtype))
    before = sum(comes_first[:, k] * room[k] for k in range(room.shape[0]))
    filled = jnp.clip(rest - before, 0.0, room) + active
    short = sum_nodes(jnp.where(active & (capacity < 1.0), 1.0, 0.0))
    enough = (rest >= 0) & (sum_nodes(room) >= rest) & (short == 0)
    return fusion_barrier(jnp.where(enough, filled, 0.0))
