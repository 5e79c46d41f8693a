"""Neighbours of a partition, the other clusters as they are.

One block of a device is on another, or all its blocks are, or there is another number of
micro-batches or another gateway. Every cluster has ``K (K - 1)`` moves of a block, to idle devices
too, as many of all blocks, and ``C`` choices of ``M``.
Those that are impossible are masked, so all arrays have fixed sizes, with the batch last.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.core.batch_axis import batch_last, fusion_barrier
from collapipe_jax.edge.cost.chain import Chain, at_next, ending_hops, from_previous
from collapipe_jax.edge.cost.computing import set_capacity
from collapipe_jax.edge.cost.decision import Allocation, Decision, Routes, participates
from collapipe_jax.edge.cost.evaluate import round_terms
from collapipe_jax.edge.cost.fixed_partition import FixedPartition, fix_decision, fix_partition
from collapipe_jax.edge.cost.link_quality import link_sinrs, received_interference_w, round_links
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.solver.allocate import descend_jointly
from collapipe_jax.edge.solver.candidates import (
    Candidates,
    FixPartition,
    candidate_of,
    join,
    repeat,
    with_candidate_axis,
)
from collapipe_jax.edge.solver.cluster_search import ClusterCandidates, cheapest, within_range
from collapipe_jax.edge.solver.gateways import Uplinks, uplinks_at
from collapipe_jax.edge.solver.limits import LEAST_LOG_POWER, to_allocation
from collapipe_jax.edge.solver.smooth_maximum import initial_weights
from collapipe_jax.edge.solver.smooth_objective import Coupling, coupled_objective

_GATEWAYS = 3
"""Other gateways among the neighbours of a cluster."""


class Neighbours(NamedTuple):
    """Neighbours of every cluster, ``J = 2 K (K - 1) + C``; its own partition if impossible."""

    segments: Array  # ``[K, N, J, R]``
    micro_batches: Array  # ``[N, J, R]``
    possible: Array  # booleans, likewise


def neighbours(problem: RoundProblem, segments: Array, micro_batches: Array) -> Neighbours:
    """All neighbours of a partition within memory.

    Args:
      problem: with batch axis ``[R]``.
      segments: ``[K, N, R]``.
      micro_batches: ``[N, R]``.
    """
    work, own, number = problem.workload, segments[:, :, None], micro_batches[:, None]
    choices = work.micro_batch_choices.astype(number.dtype)
    givers, takers = np.nonzero(~np.eye(len(segments), dtype=bool))
    one = np.eye(len(segments), dtype=int)
    direction = jnp.asarray((one[:, takers] - one[:, givers])[:, None, :, None], own.dtype)
    held = jnp.moveaxis(segments[givers], 0, 1)  # by the giver, [N, K (K - 1), R]
    # All blocks of who has one are one block, which is a neighbour already.
    change = jnp.concatenate([jnp.ones_like(held), jnp.where(held > 1, held, 0)], axis=1)
    moved = own + jnp.tile(direction, (1, 1, 2, 1)) * change
    stays = jnp.repeat(number, moved.shape[2], axis=1)
    moved = jnp.concatenate([moved, jnp.repeat(own, len(choices), axis=2)], axis=2)
    others = jnp.broadcast_to(choices, (len(number), *choices.shape))
    changed = jnp.concatenate([stays, others], axis=1)

    memory_bytes = problem.by_node.memory_bytes[:, :, None]
    capacity = set_capacity(work, memory_bytes, changed, moved > 0, axis=0)
    fits = (moved >= 0) & (moved <= capacity)
    differs = jnp.any(moved != own, axis=0) | (changed != number)
    possible = jnp.all(fits, axis=0) & differs & participates(own, 0, work.cluster_blocks)
    return Neighbours(
        segments=jnp.where(possible, moved, own),
        micro_batches=jnp.where(possible, changed, number),
        possible=possible,
    )


def inherited_allocation(
    problem: RoundProblem,
    own: Candidates,
    before: FixedPartition,
    after: FixedPartition,
    received_w: Array,
) -> Allocation:
    """Logarithms of the allocation of a decision for other segments or gateways of its clusters.

    A node that joins takes a mean share; all shares are then scaled to their former sum. Nodes with
    other hops have the power for the mean SINR of the cluster's messages: the old link's power may
    lose every message on the new one, and full power may take many steps to come down.

    Args:
      problem: with an axis of candidates.
      own: the decision, without this axis.
      before: its partition, with this axis.
      after: the candidates' partitions.
      received_w: interference at every node, ``[J, N, 1, R]``.
    """
    logs, had, has = with_candidate_axis(own.logs), before.chain.used, after.chain.used
    share = jnp.where(had.d2d_share, jnp.exp(logs.d2d_share), 0.0)
    total = jnp.sum(share, axis=0)
    mean = total / jnp.maximum(jnp.sum(had.d2d_share, axis=0), 1)
    share = jnp.where(had.d2d_share, share, mean)
    scale = jnp.sum(jnp.where(has.d2d_share, share, 0.0), axis=0)
    log_share = jnp.log(share * total / jnp.maximum(scale, 1e-30))
    uplinks = repeat(Uplinks(own.logs.d2e_share, own.logs.d2e_power), after.micro_batches.shape[1])
    stays = had.d2d_power & has.d2d_power & _same_hops(before.chain, after.chain)
    if before.routes is not None and after.routes is not None:
        gateways = before.routes.gateway, after.routes.gateway
        uplinks = uplinks_at(problem, uplinks, *gateways)
        stays &= gateways[0] == gateways[1]  # to which the parameters of all nodes go
    full = Allocation(
        d2d_share=jnp.where(has.d2d_share, log_share, 0.0),
        d2d_power=jnp.zeros_like(log_share),
        d2e_share=uplinks.share,
        d2e_power=uplinks.power,
    )

    sinr, full_sinr = _log_sinr(before, logs, received_w), _log_sinr(after, full, received_w)
    counts = jnp.isfinite(sinr)
    usual = jnp.sum(jnp.where(counts, sinr, 0.0), axis=0) / jnp.maximum(jnp.sum(counts, axis=0), 1)
    power = jnp.clip(usual - full_sinr, LEAST_LOG_POWER, 0.0)
    power = jnp.where(jnp.isposinf(full_sinr), 0.0, power)
    power = jnp.where(stays, logs.d2d_power, power)
    return full._replace(d2d_power=jnp.where(has.d2d_power, power, 0.0))


def _log_sinr(fixed: FixedPartition, logs: Allocation, received_w: Array) -> Array:
    """Logarithm of the least SINR of what a node sends along the chain.

    Infinite for nodes that send nothing along it.
    """
    chain, sinr = fixed.chain, link_sinrs(fixed, to_allocation(fixed, logs), received_w).hop
    least = jnp.where(chain.hops, sinr[0], jnp.inf)
    for back, _ in ending_hops(jnp.where(chain.hops, sinr[1], 0.0), chain):
        least = jnp.where(back > 0.0, jnp.minimum(least, back), least)
    return jnp.log(least)


def _same_hops(one: Chain, other: Chain) -> Array:
    """Nodes whose hops, to the next node and from the one before, are those of another chain."""
    number = jnp.arange(1.0, len(one.members) + 1).reshape(-1, *[1] * (one.members.ndim - 1))

    def ends(chain):
        by_node = jnp.broadcast_to(number, chain.members.shape)
        return at_next(by_node, chain), from_previous(by_node, chain)

    (next_one, last_one), (next_other, last_other) = ends(one), ends(other)
    return (next_one == next_other) & (last_one == last_other)


def neighbour_candidates(
    problem: RoundProblem,
    own: Candidates,
    own_fixed: FixedPartition,
    coupling: Coupling,
    count: int,
    fix: FixPartition = fix_partition,
    gateways: bool | Array | None = None,
) -> ClusterCandidates:
    """The cheapest neighbours of every cluster by itself, with the inherited allocation.

    Args:
      problem: with batch axis ``[R]``.
      own: the decision, without an axis of candidates.
      own_fixed: its partition.
      coupling: to the other clusters.
      count: how many of finite cost at most.
      fix: fixes a partition.
      gateways: whether its own partition with another gateway is a neighbour, too, as in
        :class:`SearchConfig`.
    """
    others, gateway = neighbours(problem, own.segments, own.micro_batches), None
    partitions = others.possible.shape[1]
    problem, own_fixed, coupling = with_candidate_axis((problem, own_fixed, coupling))
    if gateways is not None:
        assert own.routes is not None
        others, gateway = _with_gateways(problem, own, others)
        routes = Routes(gateway=gateway, broadcast=own.routes.broadcast[None])
        problem = problem.replace(routes=routes)
    fixed = fix(problem, others.segments, others.micro_batches)
    logs = inherited_allocation(problem, own, own_fixed, fixed, coupling.interference_w)
    # Alike for all: shares that suit the own set would rank every other set behind it.
    used = fixed.chain.used.d2d_share
    equal = jnp.where(used, -jnp.log(jnp.maximum(jnp.sum(used, axis=0), 1)), 0.0)
    allocation = to_allocation(fixed, logs._replace(d2d_share=equal))
    # Without a barrier XLA makes one loop of all that follows, too long for vector units.
    links = fusion_barrier(round_links(fixed, allocation, coupling.interference_w))
    terms = round_terms(fixed, allocation, links=links)
    cost = coupled_objective(fixed, allocation, terms, coupling)
    cost = within_range(cost)
    choices = problem.workload.micro_batch_choices
    found = ClusterCandidates(
        segments=others.segments,
        micro_batches=others.micro_batches.astype(choices.dtype),
        log_share=logs.d2d_share,
        log_power=logs.d2d_power,
        cost=jnp.where(others.possible, cost, jnp.inf),
        gateway=gateway,
        uplinks=Uplinks(logs.d2e_share, logs.d2e_power) if gateways is not None else None,
    )
    if gateways is None:
        return cheapest(found, count)
    # Before some gradient steps, over new links, the best of the gateways may cost the most.
    kept = min(_GATEWAYS, count // 2)
    same = cheapest(jax.tree.map(lambda leaf: leaf[..., :partitions, :], found), count)
    moved = cheapest(jax.tree.map(lambda leaf: leaf[..., partitions:, :], found), kept)
    makes_room = gateways & (jnp.arange(same.cost.shape[1]) >= count - kept)[:, None]
    same = same._replace(cost=jnp.where(makes_room, jnp.inf, same.cost))
    return join(same, moved._replace(cost=jnp.where(gateways, moved.cost, jnp.inf)))


def _with_gateways(
    problem: RoundProblem, own: Candidates, others: Neighbours
) -> tuple[Neighbours, Array]:
    """Neighbours, and the own partition with every other gateway that is there.

    Args:
      problem: with an axis of candidates.
      own: the decision, without this axis.
      others: neighbours with the own gateways.

    Returns:
      All neighbours, and their gateways ``[N, J, R]``.
    """
    memory_bytes = problem.by_node.memory_bytes[:, :, 0]
    is_there = jnp.concatenate([jnp.ones_like(memory_bytes[:1]), memory_bytes]) > 0
    nodes = len(is_there)
    assert own.routes is not None
    gateway = own.routes.gateway[:, None]
    every = jnp.arange(nodes, dtype=gateway.dtype)[None, :, None]
    differs = jnp.swapaxes(is_there, 0, 1) & (every != gateway)
    blocks = problem.workload.cluster_blocks
    differs &= participates(own.segments[:, :, None], axis=0, blocks=blocks)
    same = Neighbours(repeat(own.segments, nodes), repeat(own.micro_batches, nodes), differs)
    kept = jnp.broadcast_to(gateway, others.possible.shape)
    changed = jnp.broadcast_to(every, differs.shape)
    return join(others, same), jnp.concatenate([kept, changed], axis=1)


def neighbour_objectives(problem: RoundProblem, decision: Decision, steps: int = 200) -> Array:
    """(P2) of all neighbours of a decision, each with shares and powers of its own.

    Args:
      problem: one round of one network.
      decision: a feasible one.
      steps: gradient steps on each neighbour, all clusters together.

    Returns:
      ``[N, 2 K (K - 1) + C]``: in a neighbour one cluster changes. Infinite where it is impossible.
    """
    return batch_last(functools.partial(_neighbour_objectives, steps=steps))(problem, decision)


def _neighbour_objectives(problem: RoundProblem, decision: Decision, steps: int) -> Array:
    own_fixed = fix_decision(problem, decision)
    problem, own = problem.replace(routes=own_fixed.routes), candidate_of(own_fixed, decision)
    received_w = received_interference_w(own_fixed, to_allocation(own_fixed, own.logs))
    others = neighbours(problem, own.segments, own.micro_batches)
    clusters, count = others.possible.shape[:2]
    changes = jnp.repeat(jnp.eye(clusters, dtype=bool), count, axis=1)[..., None]  # [N, N C, 1]

    def of_changed(others, own, changes):
        every = jnp.tile(others, (*[1] * (others.ndim - 2), clusters, 1))
        return jnp.where(changes, every, own[..., None, :])

    segments = of_changed(others.segments, own.segments, changes)
    micro_batches = of_changed(others.micro_batches, own.micro_batches, changes)
    problem, own_fixed, received_w = with_candidate_axis((problem, own_fixed, received_w))
    fixed = fix_partition(problem, segments, micro_batches)
    logs = inherited_allocation(problem, own, own_fixed, fixed, received_w)
    found = descend_jointly(fixed, logs, initial_weights(fixed), steps).objective
    return jnp.where(others.possible, found.reshape(others.possible.shape), jnp.inf)
