"""Memory of the devices, docs/system-model.md (15)."""

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Num

from collapipe_jax.cost.shapes import Broadcast
from collapipe_jax.cost.workload import Workload


def block_bytes(workload: Workload, samples: Num[ArrayLike, "..."]) -> Float[ArrayLike, "..."]:
    """Memory of a block that keeps a number of samples for its backward pass."""
    return workload.block_static_bytes + samples * workload.block_kept_bytes


def device_memory_bytes(
    workload: Workload,
    segments: Num[Array, "N K"],
    micro_batches: Num[Array, " N"],
    schedule: str = "gpipe",
) -> Float[Array, "N K"]:
    """Memory of every device, 0 where idle. Source: docs/system-model.md (15).

    The schedule "gpipe" keeps all micro-batches in flight; "1f1b" keeps ``min(M, S - s)``
    on the s-th of ``S`` active devices.
    """
    samples = (workload.batch / micro_batches)[:, None]
    if schedule == "gpipe":
        kept_samples = workload.batch
    elif schedule == "1f1b":
        active = (segments > 0).astype(jnp.int32)
        behind = jnp.cumsum(active[:, ::-1], axis=1)[:, ::-1]  # S - s, the device included
        kept_samples = samples * jnp.minimum(micro_batches[:, None], behind)
    else:
        raise ValueError(f"schedule {schedule!r} is neither 'gpipe' nor '1f1b'")
    memory = segments * block_bytes(workload, kept_samples)
    memory = memory + samples * workload.block_working_bytes
    return jnp.where(segments > 0, memory, 0.0)


def block_capacity(
    workload: Workload, memory_bytes: Broadcast, micro_batches: Num[ArrayLike, "..."]
) -> Int[Array, "..."]:
    """Most blocks that fit each device, docs/system-model.md (15) solved for delta.

    Numbers of memory and micro-batches broadcast. The result lies between 0 and ``L``; the
    tolerance by which a decision may exceed its memory is not used up here.
    """
    per_block = block_bytes(workload, workload.batch)
    working = workload.batch / micro_batches * workload.block_working_bytes
    # A hair of slack keeps a device that fits exactly from losing a block to rounding.
    fits = jnp.floor((memory_bytes - working) / per_block * (1 + 1e-6))
    return jnp.clip(fits, 0, workload.blocks).astype(jnp.int32)
