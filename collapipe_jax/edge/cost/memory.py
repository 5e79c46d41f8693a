"""Memory of devices and control units, docs/system-model.md (15)."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Num

from collapipe_jax.edge.cost.shapes import Broadcast
from collapipe_jax.edge.cost.workload import Workload


def block_bytes(workload: Workload, samples: Num[ArrayLike, "..."]) -> Float[ArrayLike, "..."]:
    """Memory of a block that keeps a number of samples for its backward pass."""
    return workload.block_static_bytes + samples * workload.block_kept_bytes


def devices_left(active: Bool[Array, "..."], axis: int) -> Int[Array, "..."]:
    """Active devices from every device on, itself included, along the axis of devices."""
    return jax.lax.cumsum(active.astype(jnp.int32), axis, reverse=True)


def kept_samples(
    workload: Workload, micro_batches: Num[ArrayLike, "..."], left: Num[ArrayLike, "..."]
) -> Num[ArrayLike, "..."]:
    """Most samples whose activations an active device keeps at once.

    There are ``left`` active devices from it on, itself included. Shapes broadcast.
    Source: docs/system-model.md (26).
    """
    if workload.schedule == "gpipe":
        return workload.batch
    in_flight = jnp.minimum(micro_batches, 2 * left + 2)
    return in_flight * (workload.batch / micro_batches)


def device_memory_bytes(
    workload: Workload, segments: Num[Array, "N K"], micro_batches: Num[Array, " N"]
) -> Float[Array, "N K"]:
    """Memory of every device, 0 where idle. Source: docs/system-model.md (15)."""
    active, count = segments > 0, micro_batches[:, None]
    kept = kept_samples(workload, count, devices_left(active, axis=1))
    memory = segments * block_bytes(workload, kept)
    memory = memory + workload.batch / count * workload.block_working_bytes
    return jnp.where(active, memory, 0.0)


def embedding_memory_bytes(workload: Workload, segments: Num[Array, "N K"]) -> Float[Array, " N"]:
    """Memory that a pipeline's control units need for the embedding that they train.

    It is 0 where a cluster sits out, or where the workload names no sizes.
    """
    trains = jnp.any(segments > 0, axis=1)
    ends = workload.ends
    return jnp.where(trains, 0.0 if ends is None else ends.embedding_static_bytes, 0.0)


def block_capacity(
    workload: Workload,
    memory_bytes: Broadcast,
    micro_batches: Num[ArrayLike, "..."],
    left: Num[ArrayLike, "..."],
) -> Int[Array, "..."]:
    """Most blocks that fit each device, docs/system-model.md (15) solved for delta.

    Numbers of memory, of micro-batches and of active devices ``left`` from a device on
    broadcast. The result lies between 0 and ``L``, or the workload's capacity where it has one;
    the tolerance by which a decision may exceed its memory is not used up here.
    """
    per_block = block_bytes(workload, kept_samples(workload, micro_batches, left))
    working = workload.batch / micro_batches * workload.block_working_bytes
    # A hair of slack keeps a device that fits exactly from losing a block to rounding.
    fits = jnp.floor((memory_bytes - working) / per_block * (1 + 1e-6))
    most = workload.blocks
    if workload.capacity is not None:
        most = jnp.minimum(workload.capacity, most)
    return jnp.clip(fits, 0, most).astype(jnp.int32)


def set_capacity(
    workload: Workload,
    memory_bytes: Broadcast,
    micro_batches: Num[ArrayLike, "..."],
    active: Bool[Array, "..."],
    axis: int,
) -> Int[Array, "..."]:
    """:func:`block_capacity` of the devices of active sets, along the axis of devices."""
    return block_capacity(workload, memory_bytes, micro_batches, devices_left(active, axis))
