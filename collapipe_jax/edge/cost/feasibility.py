"""Whether a decision may be carried out: limits of docs/system-model.md, section 5."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Num

from collapipe_jax.edge.cost.chain import chain_of
from collapipe_jax.edge.cost.client_round import (
    client_memory_bytes,
    clients_at_server_bytes,
    sends,
)
from collapipe_jax.edge.cost.computing import (
    block_capacity,
    clusters_at_server_bytes,
    device_memory_bytes,
    embedding_memory_bytes,
)
from collapipe_jax.edge.cost.decision import Broadcast, ClientDecision, Decision
from collapipe_jax.edge.cost.problem import RoundProblem

TOLERANCE = 1e-4
"""Relative tolerance on sums, bounds and memory."""

_NO_ROOM = -(2**30)
"""Room of a set that does not exist."""

_Flags = dict[str, Bool[Array, ""]]


def can_run(problem: RoundProblem) -> Bool[Array, " N"]:
    """Clusters whose devices could hold their blocks for some number of micro-batches."""
    capacity = jax.vmap(lambda m: usable_blocks(problem, m))(problem.workload.micro_batch_choices)
    return jnp.any(jnp.sum(capacity, axis=-1) >= problem.workload.cluster_blocks, axis=0)


def usable_blocks(problem: RoundProblem, micro_batches: Num[ArrayLike, "..."]) -> Int[Array, "N K"]:
    """Most blocks that each device can hold, 0 on one that is away.

    Under 1F1B they depend on the active devices. Those are then the set that
    :func:`holding_set` finds, and the other devices have 0. Any part of the set can hold as much.

    Args:
      problem: of ``N`` clusters with ``K`` devices.
      micro_batches: a scalar, or ``[N, 1]`` for a number per cluster.

    Returns:
      Blocks that sum to those of a cluster or more if and only if its devices can hold them.
    """
    work, memory_bytes = problem.workload, problem.compute.memory_bytes
    if work.schedule == "gpipe":
        return block_capacity(work, memory_bytes, micro_batches, 1)
    count = jnp.broadcast_to(micro_batches, memory_bytes.shape)[:, :, None]
    left = jnp.arange(1, problem.devices + 1)[None, None]
    capacity = block_capacity(work, memory_bytes[:, :, None], count, left)
    return jax.vmap(holding_set, in_axes=(0, None))(capacity, work.cluster_blocks)


def holding_set(capacity: Int[Array, "K K"], blocks: Int[Array, ""] | int) -> Int[Array, " K"]:
    """Capacity of the largest set of active devices of a cluster that holds the blocks.

    Of sets of one size it is the one with most room; if no set holds the blocks, the one with
    most room of all. Found by dynamic programming from the last device to the first.

    Args:
      capacity: blocks of a device by the number of active devices from it on, from 1 on.
      blocks: of the cluster.

    Returns:
      Blocks of every device, 0 outside of the set.
    """
    devices = capacity.shape[0]

    def add(best, device):
        index, own = device
        room, held = best  # of the best set of 0 ... K devices so far, [K + 1] and [K + 1, K]
        more_room = jnp.where(own > 0, room[:-1] + own, _NO_ROOM)
        more = held[:-1].at[:, index].set(own)
        wins = more_room > room[1:]
        room = room.at[1:].set(jnp.where(wins, more_room, room[1:]))
        return (room, held.at[1:].set(jnp.where(wins[:, None], more, held[1:]))), None

    nobody = jnp.full(devices + 1, _NO_ROOM, capacity.dtype).at[0].set(0)
    start = nobody, jnp.zeros((devices + 1, devices), capacity.dtype)
    each = jnp.arange(devices), capacity
    (room, held), _ = jax.lax.scan(add, start, each, reverse=True)
    size = jnp.arange(devices + 1)
    largest = jnp.max(jnp.where(room >= blocks, size, -1))
    return held[jnp.where(largest >= 0, largest, jnp.argmax(room))]


def violations(problem: RoundProblem, decision: Decision | ClientDecision) -> _Flags:
    """Which limits a decision breaks, by name.

    On an idle node power is ignored and a D2D share is a violation; an active one that lacks power
    or share can never send, which is one too. The D2E share of a
    cluster that sits out counts in the sum. Sums, bounds and memory have a relative tolerance of
    ``1e-4``.

    Args:
      problem: of ``N`` clusters with ``K`` devices.
      decision: for these clusters and devices.

    Returns:
      A boolean scalar by name: ``segments``, ``micro_batches``, ``d2d_share``, ``d2d_power``,
      ``d2e_share``, ``d2e_power``, ``memory``, ``server_memory`` and ``gateway``; of a
      data-parallel one ``samples``, ``d2e_share``, ``d2e_power``, ``memory`` and ``server_memory``.

    Example:
      >>> import jax
      >>> import collapipe_jax as cp
      >>> problem = cp.read_network("docs/examples/edge.network.json")
      >>> decision = cp.read_decision("docs/examples/edge.decision.json", problem)
      >>> broken = jax.jit(cp.violations)(problem, decision.replace(segments=decision.segments + 1))
      >>> bool(broken["segments"]), bool(broken["d2e_share"])
      (True, False)

    Source: docs/system-model.md, section 5.
    """
    if isinstance(decision, ClientDecision):
        return _client_violations(problem, decision)
    work, radio, segments = problem.workload, problem.radio, decision.segments
    chain = chain_of(problem.with_routes_of(decision), jnp.swapaxes(segments, 0, 1))
    used = jax.tree.map(jnp.transpose, chain.used)
    participates = used.d2e_share
    allowed = decision.micro_batches[:, None] == work.micro_batch_choices[None, :]
    memory_bytes = device_memory_bytes(work, segments, decision.micro_batches)
    own_bytes, own_limit_bytes = embedding_memory_bytes(work, segments), _own_limit_bytes(problem)
    lacks_memory = jnp.any(_outside(memory_bytes, problem.compute.memory_bytes))
    return {
        "segments": jnp.any(_wrong_rows(problem, segments)),
        "micro_batches": jnp.any(participates & ~jnp.any(allowed, axis=1)),
        "d2d_share": _outside_simplex(decision.d2d_share)
        | jnp.any(used.d2d_share != (decision.d2d_share > 0)),
        "d2d_power": jnp.any(used.d2d_power & _unable(decision.d2d_power_w, radio.d2d_power_max_w)),
        "d2e_share": _outside_simplex(decision.d2e_share[None])
        | jnp.any(participates & (decision.d2e_share <= 0)),
        "d2e_power": jnp.any(participates & _unable(decision.d2e_power_w, radio.d2e_power_max_w)),
        "memory": lacks_memory | jnp.any(_outside(own_bytes, own_limit_bytes)),
        "server_memory": server_load(problem, decision) > 1.0 + TOLERANCE,
        "gateway": jnp.any(participates & ~has_gateway(problem, decision)),
    }


def has_gateway(problem: RoundProblem, decision: Decision) -> Bool[Array, " N"]:
    """Clusters whose gateway is their control unit, or an available device."""
    routes = problem.with_routes_of(decision).routes
    if routes is None:
        return jnp.ones(problem.clusters, bool)
    is_there = problem.compute.memory_bytes > 0
    is_there = jnp.concatenate([jnp.ones_like(is_there[:, :1]), is_there], axis=1)
    nodes = jnp.arange(problem.devices + 1)[None]
    return jnp.any(is_there & (nodes == routes.gateway[:, None]), axis=1)


def server_load(problem: RoundProblem, decision: Decision | ClientDecision) -> Float[Array, ""]:
    """Part of the edge server's memory that a decision takes, 0 without a limit."""
    work, limit_bytes = problem.workload, problem.compute.es_memory_bytes
    if isinstance(decision, ClientDecision):
        needed_bytes = clients_at_server_bytes(work, decision)
    else:
        needed_bytes = clusters_at_server_bytes(work, decision.segments, decision.micro_batches)
    return jnp.where(limit_bytes > 0, needed_bytes / jnp.maximum(limit_bytes, 1.0), 0.0)


def _own_limit_bytes(problem: RoundProblem) -> Float[Array, " N"]:
    """Memory of every control unit, infinite where the network names none."""
    limit_bytes = problem.compute.control_unit_memory_bytes
    return jnp.full(problem.clusters, jnp.inf) if limit_bytes is None else limit_bytes


def client_limit_bytes(problem: RoundProblem, decision: ClientDecision) -> Float[Array, "N C"]:
    """Memory of every client of a data-parallel decision, 0 of a device that is away."""
    if decision.tier == "control_units":
        return _own_limit_bytes(problem)[:, None]
    return problem.compute.memory_bytes


def _client_violations(problem: RoundProblem, decision: ClientDecision) -> _Flags:
    """Limits that a data-parallel decision breaks."""
    radio, trains = problem.radio, decision.samples > 0
    limit_bytes = client_limit_bytes(problem, decision)
    there = limit_bytes > 0
    held = jnp.sum(decision.samples, axis=1)
    whole = (held == problem.workload.batch) | ((held == 0) & ~jnp.any(there, axis=1))
    power_limit_w = radio.d2e_power_max_w[:, None]
    memory_bytes = client_memory_bytes(problem.workload, decision)
    return {
        "samples": jnp.any(~whole) | jnp.any(decision.samples < 0) | jnp.any(trains & ~there),
        "d2e_share": _outside_simplex(decision.d2e_share.reshape(1, -1))
        | jnp.any(sends(decision) & (decision.d2e_share <= 0)),
        "d2e_power": jnp.any(sends(decision) & _unable(decision.d2e_power_w, power_limit_w)),
        "memory": jnp.any(_outside(memory_bytes, limit_bytes)),
        "server_memory": server_load(problem, decision) > 1.0 + TOLERANCE,
    }


def is_feasible(problem: RoundProblem, decision: Decision | ClientDecision) -> Bool[Array, ""]:
    """Whether a decision breaks no limit of :func:`violations`.

    Args:
      problem: of ``N`` clusters with ``K`` devices.
      decision: for these clusters and devices.

    Returns:
      A boolean scalar.

    Example:
      >>> import jax
      >>> import collapipe_jax as cp
      >>> problem = cp.read_network("docs/examples/edge.network.json")
      >>> decision = cp.read_decision("docs/examples/edge.decision.json", problem)
      >>> bool(jax.jit(cp.is_feasible)(problem, decision))
      True
    """
    return ~jnp.any(jnp.stack(list(violations(problem, decision).values())))


def _wrong_rows(problem: RoundProblem, segments: Int[Array, "N K"]) -> Bool[Array, " N"]:
    """Clusters that cover not exactly their blocks, or sit out where they could run.

    A segment above the workload's capacity is wrong, too.
    """
    covers = jnp.sum(segments, axis=1) == problem.workload.cluster_blocks
    covers &= jnp.all(segments >= 0, axis=1)
    if problem.workload.capacity is not None:
        covers &= jnp.all(segments <= problem.workload.capacity, axis=1)
    sits_out = jnp.all(segments == 0, axis=1)
    return ~(covers | (sits_out & ~can_run(problem)))


def _outside(value: Broadcast, limit: Broadcast) -> Bool[Array, "..."]:
    """Where a value lies outside ``[0, limit]``."""
    return (value < 0) | (value > limit * (1.0 + TOLERANCE))


def _unable(power_w: Broadcast, limit_w: Broadcast) -> Bool[Array, "..."]:
    """Where a power is none to send at: 0, or over its limit."""
    return (power_w == 0) | _outside(power_w, limit_w)


def _outside_simplex(share: Float[Array, "rows shares"]) -> Bool[Array, ""]:
    """Whether a row has a negative share or sums to more than 1."""
    return jnp.any(share < 0) | jnp.any(jnp.sum(share, axis=1) > 1.0 + TOLERANCE)
