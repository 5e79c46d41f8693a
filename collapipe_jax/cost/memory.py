"""Memory of the devices, docs/system-model.md (15)."""

import jax.numpy as jnp
from jax import Array

from collapipe_jax.cost.workload import Workload


def device_memory_bytes(
    workload: Workload, segments: Array, micro_batches: Array, schedule: str = "gpipe"
) -> Array:
    """Memory of every device. Source: docs/system-model.md (15).

    Args:
      workload: sizes.
      segments: ``[N, K]``.
      micro_batches: ``[N]``.
      schedule: "gpipe" keeps all micro-batches in flight; "1f1b" keeps ``min(M, S - s)``
        on the s-th of ``S`` active devices.

    Returns:
      ``[N, K]``; 0 on idle devices.
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
    block_bytes = workload.block_static_bytes + kept_samples * workload.block_kept_bytes
    memory = segments * block_bytes + samples * workload.block_working_bytes
    return jnp.where(segments > 0, memory, 0.0)


def block_capacity(workload: Workload, memory_bytes: Array, micro_batches: Array) -> Array:
    """Most blocks that fit each device, docs/system-model.md (15) solved for delta.

    Args:
      workload: sizes.
      memory_bytes: ``[..., K]``.
      micro_batches: broadcasts against ``memory_bytes``.

    Returns:
      Integers, ``[..., K]``, between 0 and ``L``. The tolerance by which a decision may
      exceed its memory is not used up here.
    """
    per_block = workload.block_static_bytes + workload.batch * workload.block_kept_bytes
    working = workload.batch / micro_batches * workload.block_working_bytes
    # A hair of slack keeps a device that fits exactly from losing a block to rounding.
    fits = jnp.floor((memory_bytes - working) / per_block * (1 + 1e-6))
    return jnp.clip(fits, 0, workload.blocks).astype(jnp.int32)
