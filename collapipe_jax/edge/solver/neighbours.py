"""Neighbours of a partition: one block on another device, or another number of micro-batches.

Every cluster has ``K (K - 1)`` moves of a block, to idle devices too, and ``C`` choices of ``M``.
Those that are impossible are masked, so all arrays have fixed sizes, with the batch last.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.core.batch_axis import batch_last
from collapipe_jax.edge.cost.decision import Allocation, Decision, active_nodes
from collapipe_jax.edge.cost.fixed_partition import fix_partition
from collapipe_jax.edge.cost.link_quality import round_links
from collapipe_jax.edge.cost.memory import set_capacity
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.round_terms import round_terms
from collapipe_jax.edge.solver.allocate import descend_jointly
from collapipe_jax.edge.solver.candidates import (
    Candidates,
    FixPartition,
    repeat,
    with_candidate_axis,
)
from collapipe_jax.edge.solver.cluster_search import ClusterCandidates, within_range
from collapipe_jax.edge.solver.smooth_maximum import initial_weights
from collapipe_jax.edge.solver.smooth_objective import Coupling, coupled_objective
from collapipe_jax.edge.solver.variables import to_allocation, to_logs


class Neighbours(NamedTuple):
    """Neighbours of every cluster, ``J = K (K - 1) + C``; its own partition if impossible."""

    segments: Array  # ``[N, K, J, R]``
    micro_batches: Array  # ``[N, J, R]``
    possible: Array  # booleans, likewise


def neighbours(problem: RoundProblem, segments: Array, micro_batches: Array) -> Neighbours:
    """All neighbours of a partition within memory.

    Args:
      problem: with batch axis ``[R]``.
      segments: ``[N, K, R]``.
      micro_batches: ``[N, R]``.
    """
    work, own, number = problem.workload, segments[:, :, None], micro_batches[:, None]
    moves, choices = _moves(segments.shape[1]), work.micro_batch_choices.astype(number.dtype)
    change = np.pad(moves, ((0, 0), (0, len(choices))))[:, :, None]
    moved = own + jnp.asarray(change, own.dtype)
    stays = jnp.repeat(number, moves.shape[1], axis=1)
    others = jnp.broadcast_to(choices, (len(number), *choices.shape))
    changed = jnp.concatenate([stays, others], axis=1)

    memory_bytes = problem.compute.memory_bytes[:, :, None]
    capacity = set_capacity(work, memory_bytes, changed[:, None], moved > 0, axis=1)
    fits = (moved >= 0) & (moved <= capacity)
    differs = jnp.any(moved != own, axis=1) | (changed != number)
    possible = jnp.all(fits, axis=1) & differs & jnp.any(own > 0, axis=1)
    return Neighbours(
        segments=jnp.where(possible[:, None], moved, own),
        micro_batches=jnp.where(possible, changed, number),
        possible=possible,
    )


def _moves(devices: int) -> np.ndarray:
    """Changes of the segments by all moves of one block, ``[K, K (K - 1)]``."""
    givers, takers = np.nonzero(~np.eye(devices, dtype=bool))
    one = np.eye(devices, dtype=int)
    return one[:, takers] - one[:, givers]


def inherited_allocation(own: Candidates, segments: Array) -> Allocation:
    """Logarithms of the allocation of a decision for other segments of its clusters.

    A device that joins takes a mean share, and its control unit's part of its largest power. All
    shares are then scaled to their former sum.

    Args:
      own: the decision, without an axis of candidates.
      segments: ``[N, K, C, R]``.
    """
    before, after = _active(own.segments), _active(segments)
    share = jnp.where(before, jnp.exp(own.logs.d2d_share), 0.0)
    total = jnp.sum(share, axis=0)
    mean = total / jnp.maximum(jnp.sum(before, axis=0), 1)
    share, before, total, log_power = with_candidate_axis(
        (jnp.where(before, share, mean), before, total, own.logs.d2d_power)
    )
    used = jnp.sum(jnp.where(after, share, 0.0), axis=0)
    log_share = jnp.log(share * total / jnp.maximum(used, 1e-30))
    log_power = jnp.where(before, log_power, log_power[0])
    return repeat(own.logs, segments.shape[2])._replace(
        d2d_share=jnp.where(after, log_share, 0.0), d2d_power=jnp.where(after, log_power, 0.0)
    )


def _active(segments: Array) -> Array:
    """Active nodes first, of segments ``[N, K, ...]``."""
    return jnp.moveaxis(active_nodes(jnp.moveaxis(segments, 1, -1)), -1, 0)


def neighbour_candidates(
    problem: RoundProblem,
    own: Candidates,
    coupling: Coupling,
    fix: FixPartition = fix_partition,
) -> ClusterCandidates:
    """Neighbours of every cluster by itself, at the cost of the inherited allocation.

    Args:
      problem: with batch axis ``[R]``.
      own: the decision, without an axis of candidates.
      coupling: to the other clusters.
      fix: fixes a partition.
    """
    others = neighbours(problem, own.segments, own.micro_batches)
    logs = inherited_allocation(own, others.segments)
    problem, coupling = with_candidate_axis((problem, coupling))
    fixed = fix(problem, others.segments, others.micro_batches)
    allocation = to_allocation(fixed, logs)
    links = round_links(fixed, allocation, coupling.interference_w)
    terms = round_terms(fixed, allocation, links=links)
    cost = coupled_objective(fixed, allocation, terms, coupling)
    cost = within_range(cost)
    choices = problem.workload.micro_batch_choices
    return ClusterCandidates(
        segments=jnp.transpose(others.segments, (2, 1, 0, 3)),
        micro_batches=jnp.swapaxes(others.micro_batches, 0, 1).astype(choices.dtype),
        log_share=jnp.moveaxis(logs.d2d_share, 2, 0),
        log_power=jnp.moveaxis(logs.d2d_power, 2, 0),
        cost=jnp.swapaxes(jnp.where(others.possible, cost, jnp.inf), 0, 1),
    )


def neighbour_objectives(problem: RoundProblem, decision: Decision, steps: int = 200) -> Array:
    """(P2) of all neighbours of a decision, each with shares and powers of its own.

    Args:
      problem: one round of one network.
      decision: a feasible one.
      steps: gradient steps on each neighbour, all clusters together.

    Returns:
      ``[N, K (K - 1) + C]``: in a neighbour one cluster changes. Infinite where it is impossible.
    """
    return batch_last(functools.partial(_neighbour_objectives, steps=steps))(problem, decision)


def _neighbour_objectives(problem: RoundProblem, decision: Decision, steps: int) -> Array:
    fixed = fix_partition(problem, decision.segments, decision.micro_batches)
    partition = decision.segments, decision.micro_batches
    own = Candidates(*partition, to_logs(fixed, decision), initial_weights(fixed))
    others = neighbours(problem, *partition)
    clusters, count = others.possible.shape[:2]
    changes = jnp.repeat(jnp.eye(clusters, dtype=bool), count, axis=1)[..., None]  # [N, N C, 1]

    def of_changed(others, own, changes):
        every = jnp.tile(others, (*[1] * (others.ndim - 2), clusters, 1))
        return jnp.where(changes, every, own[..., None, :])

    segments = of_changed(others.segments, own.segments, changes[:, None])
    micro_batches = of_changed(others.micro_batches, own.micro_batches, changes)
    logs = inherited_allocation(own, segments)
    fixed = fix_partition(with_candidate_axis(problem), segments, micro_batches)
    found = descend_jointly(fixed, logs, initial_weights(fixed), steps).objective
    return jnp.where(others.possible, found.reshape(others.possible.shape), jnp.inf)
