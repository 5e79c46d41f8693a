"""Equal split and equal shares: a policy to compare with, and a start for others."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Num

from collapipe_jax.edge.cost.chain import chain_of
from collapipe_jax.edge.cost.decision import Decision
from collapipe_jax.edge.cost.feasibility import usable_blocks
from collapipe_jax.edge.cost.problem import RoundProblem


def static_pipeline(problem: RoundProblem, micro_batches: Int[Array, ""] | int) -> Decision:
    """A feasible decision: equal split over all devices, equal shares, full power.

    The remainder of the split goes to the first devices, and blocks move only where
    memory forbids. The allowed number of micro-batches nearest to the given one is taken.
    A cluster that cannot hold the encoder with it takes the largest allowed number, which
    needs least memory, and sits out if that fails too.

    Source: docs/system-model.md, section 6.
    """
    choices = problem.workload.micro_batch_choices
    wanted = choices[jnp.argmin(jnp.abs(choices - micro_batches))]
    fits = jnp.sum(usable_blocks(problem, wanted), axis=1) >= problem.workload.cluster_blocks
    count = jnp.where(fits, wanted, jnp.max(choices))
    capacity = usable_blocks(problem, count[:, None])
    segments = split_equally(capacity, problem.workload.cluster_blocks)
    return with_equal_allocation(problem, segments, count)


def static_pipelines(problem: RoundProblem, micro_batches: Int[Array, ""] | int) -> Decision:
    """A :func:`static_pipeline` for every problem of a batch, along the last axis."""
    return jax.vmap(lambda one: static_pipeline(one, micro_batches), -1, -1)(problem)


def split_equally(capacity: Int[Array, "N K"], blocks: Int[Array, ""] | int) -> Int[Array, "N K"]:
    """Equal split of the blocks, moved to the first devices with room where it must be.

    A cluster gets a row of zeros if the capacity of its devices is less than the blocks.
    """
    devices = capacity.shape[1]
    equal = blocks // devices + (jnp.arange(devices) < blocks % devices)[None]
    held = jnp.minimum(equal, capacity)
    room = capacity - held
    homeless = blocks - jnp.sum(held, axis=1, keepdims=True)
    room_before = jnp.cumsum(room, axis=1) - room
    split = held + jnp.clip(homeless - room_before, 0, room)
    enough = jnp.sum(capacity, axis=1, keepdims=True) >= blocks
    return jnp.where(enough, split, 0).astype(jnp.int32)


def with_equal_allocation(
    problem: RoundProblem, segments: Num[Array, "N K"], micro_batches: Num[Array, " N"]
) -> Decision:
    """Complete a decision with equal shares among those that send, and full power.

    It has the routes of the problem.
    """
    used = jax.tree.map(jnp.transpose, chain_of(problem, segments.T).used)
    participates = used.d2e_share
    senders = jnp.maximum(jnp.sum(used.d2d_share, axis=1, keepdims=True), 1)
    clusters = jnp.maximum(jnp.sum(participates), 1)
    return Decision(
        segments=segments,
        micro_batches=micro_batches.astype(jnp.int32),
        d2d_share=jnp.where(used.d2d_share, 1.0 / senders, 0.0),
        d2d_power_w=jnp.where(used.d2d_power, problem.radio.d2d_power_max_w, 0.0),
        d2e_share=jnp.where(participates, 1.0 / clusters, 0.0),
        d2e_power_w=jnp.where(participates, problem.radio.d2e_power_max_w, 0.0),
        routes=problem.routes,
    )
