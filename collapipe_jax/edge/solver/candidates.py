"""Candidate decisions of a round, side by side: partitions with allocations to start from.

Candidates have an axis of their own, ``C``, next to the batch ``R``.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.core.batch_axis import max_nodes
from collapipe_jax.edge.cost.decision import Allocation, Decision, Routes, decision_partition
from collapipe_jax.edge.cost.evaluate import round_terms
from collapipe_jax.edge.cost.fixed_partition import FixedPartition, fix_partition
from collapipe_jax.edge.cost.link_quality import link_sinrs, received_interference_w
from collapipe_jax.edge.cost.objective import round_objective
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.network.channel import sinr_at_hazard
from collapipe_jax.edge.solver.limits import to_allocation, to_logs
from collapipe_jax.edge.solver.smooth_maximum import Weights, initial_weights

SAME = 1e-6
"""Relative difference of latencies that count as equal."""


def cheapest_within(latency_s: Array, cost: Array) -> tuple[Array, Array, Array]:
    """For the latency of every candidate, each cluster's cheapest that keeps to it.

    Args:
      latency_s: of every candidate of every cluster, ``[N, C, R]``.
      cost: its other costs, likewise.

    Returns:
      The latencies ``[N C, R]``; indices and costs of the cheapest, ``[N C, N, R]`` each.
    """
    limit_s = latency_s.reshape(-1, latency_s.shape[-1])
    keeps = latency_s <= limit_s[:, None, None] * (1.0 + SAME)
    possible = jnp.where(keeps, cost, jnp.inf)
    return limit_s, jnp.argmin(possible, axis=2), jnp.min(possible, axis=2)


def nan_to_inf(values: Array) -> Array:
    """The values, infinite in place of nan."""
    return jnp.where(jnp.isnan(values), jnp.inf, values)


_START_POWERS = (1.0, 0.3, 0.1, 0.03)
_LARGEST_HAZARD = 1.0
"""Of a message in a start."""

FixPartition = Callable[[RoundProblem, Array, Array], FixedPartition]
"""Signature of :func:`.cost.fixed_partition.fix_partition`."""


class Candidates(NamedTuple):
    """Candidate decisions."""

    segments: Array  # whole numbers, ``[K, N, C, R]``
    micro_batches: Array  # ``[N, C, R]``
    logs: Allocation  # logarithms of shares and powers, each ``[..., C, R]``
    weights: Weights  # of the maxima, likewise
    routes: Routes | None = None  # where gateways are decided: ``[N, C, R]`` and ``[C, R]``

    def fix(self, problem: RoundProblem, fix: "FixPartition" = fix_partition) -> FixedPartition:
        """Their partitions and routes, fixed; a problem for them has an axis of candidates."""
        if self.routes is not None:
            problem = problem.replace(routes=self.routes)
        return fix(problem, self.segments, self.micro_batches)


def with_candidate_axis(tree):
    """Leaves ``[..., R]`` as ``[..., 1, R]``, the same for every candidate."""
    return jax.tree.map(lambda leaf: leaf[..., None, :], tree)


def repeat(tree, count: int):
    """Leaves ``[..., R]`` as ``[..., count, R]``."""
    return jax.tree.map(lambda leaf: jnp.repeat(leaf[..., None, :], count, axis=-2), tree)


def candidate_of(fixed: FixedPartition, decision: Decision) -> Candidates:
    """A decision, with or without an axis of candidates, whose partition is fixed."""
    segments, micro_batches = decision_partition(decision)
    number = fixed.hop_bits.dtype
    return Candidates(
        segments=segments.astype(number),
        micro_batches=micro_batches.astype(number),
        logs=to_logs(fixed, decision),
        weights=initial_weights(fixed),
        routes=fixed.routes,
    )


class Start(NamedTuple):
    """A decision to start from."""

    decision: Decision
    power: float = 1.0  # factor on all powers


def at_falling_powers(decision: Decision, count: int) -> list[Start]:
    """A decision as it is, then at lower and lower powers."""
    return [Start(decision, _START_POWERS[i % len(_START_POWERS)]) for i in range(count)]


def starting_candidates(
    problem: RoundProblem, starts: Sequence[Start], fix: FixPartition = fix_partition
) -> Candidates:
    """Starts side by side; those at lower powers with shares that most messages survive."""
    stacked = jax.tree.map(
        lambda *leaves: jnp.stack(leaves, axis=-2), *(start.decision for start in starts)
    )
    wide = with_candidate_axis(problem)
    if stacked.routes is not None:
        wide = wide.replace(routes=stacked.routes)
    fixed = fix(wide, *decision_partition(stacked))
    candidates, power = candidate_of(fixed, stacked), jnp.array([start.power for start in starts])
    logs = candidates.logs
    lower = logs._replace(d2d_power=logs.d2d_power + jnp.log(power)[:, None])
    narrowed = _narrow_shares(fixed, lower)
    as_it_is = power[:, None] == 1.0
    return candidates._replace(
        logs=jax.tree.map(lambda old, new: jnp.where(as_it_is, old, new), logs, narrowed)
    )


def exact_objective(fixed: FixedPartition, logs: Allocation) -> Array:
    """Drift plus penalty at logarithms of shares and powers, infinite where a message is lost."""
    terms = round_terms(fixed, to_allocation(fixed, logs))
    return round_objective(fixed.costs, max_nodes(terms.cluster_latency_s), terms.cluster_cost)


def _narrow_shares(fixed: FixedPartition, logs: Allocation) -> Allocation:
    """Shares narrowed until a micro-batch mostly survives every message.

    From where nearly all is lost a descent takes long to come back.
    """
    allocation = to_allocation(fixed, logs)
    sinr = link_sinrs(fixed, allocation, received_interference_w(fixed, allocation))

    def narrow(log_share, sinr, transport_blocks):
        hazard = _LARGEST_HAZARD / jnp.maximum(transport_blocks, 1.0)
        wanted = sinr_at_hazard(fixed.radio, hazard)
        return log_share + jnp.minimum(jnp.log(jnp.maximum(sinr, 1e-30) / wanted), 0.0)

    return logs._replace(
        d2d_share=narrow(logs.d2d_share, jnp.min(sinr.hop, axis=0), fixed.hop_blocks),
        d2e_share=narrow(logs.d2e_share, sinr.uplink, fixed.uplink_blocks),
    )


def take(tree, index: Array):
    """The candidate of every problem at ``index [R]``, without the axis of candidates.

    That axis may have length 1, where all candidates share the numbers.
    """
    count = max(leaf.shape[-2] for leaf in jax.tree.leaves(tree))
    chosen = jnp.arange(count)[:, None] == index

    def take_leaf(leaf):
        if leaf.shape[-2] == 1:
            return leaf[..., 0, :]
        pick = jnp.any if leaf.dtype == bool else jnp.sum
        return pick(leaf, axis=-2, where=chosen)

    return jax.tree.map(take_leaf, tree)


def join(first, second):
    """All candidates of two trees."""
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=-2), first, second)


def mix(candidates: Candidates, choices: Array, cluster_weight: Array) -> Candidates:
    """Candidates whose clusters come from different ones.

    Args:
      candidates: of every cluster by itself, ``C`` of them.
      choices: candidate of every cluster in every mix, ``[N, C, R]``.
      cluster_weight: weights of the maximum of latencies to start with, ``[N, 1, R]``.
    """

    def pick(leaf, axis):
        shape = [1] * leaf.ndim
        shape[axis], shape[-2:] = choices.shape[0], choices.shape[1:]
        wide = jnp.broadcast_to(choices.reshape(shape), (*leaf.shape[:-2], *choices.shape[1:]))
        return jnp.take_along_axis(leaf, wide, axis=-2)

    # The axis of clusters of every leaf, with candidates and realisations behind it.
    logs, weights = candidates.logs, candidates.weights
    return Candidates(
        segments=pick(candidates.segments, 1),
        micro_batches=pick(candidates.micro_batches, 0),
        logs=Allocation(
            d2d_share=pick(logs.d2d_share, 1),
            d2d_power=pick(logs.d2d_power, 1),
            d2e_share=pick(logs.d2e_share, 0),
            d2e_power=pick(logs.d2e_power, 0),
        ),
        weights=Weights(
            forward=pick(weights.forward, 1),
            backward=pick(weights.backward, 1),
            cluster=jnp.broadcast_to(cluster_weight, choices.shape),
            hop=pick(weights.hop, 2),
            move=pick(weights.move, 2),
            uplink=pick(weights.uplink, 0),
            caps=None if weights.caps is None else pick(weights.caps, 1),
        ),
        routes=_mixed_routes(candidates.routes, choices),
    )


def _mixed_routes(routes: Routes | None, choices: Array) -> Routes | None:
    """Gateways of mixed candidates; all candidates broadcast alike."""
    if routes is None:
        return None
    return Routes(
        gateway=jnp.take_along_axis(routes.gateway, choices, axis=-2),
        broadcast=jnp.broadcast_to(routes.broadcast[:1], choices.shape[1:]),
    )
