"""Slots: the blocks of a partition on each device, gathered from the stack."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from collapipe_jax.errors import InputError
from collapipe_jax.models.layers import Params


def segment_layout(segments: Array, capacity: int) -> tuple[Array, Array]:
    """Blocks of each device, in a shape that does not depend on the partition.

    Devices take consecutive blocks in index order. Source: docs/system-model.md, section 5.

    Returns:
      ``(block_ids, mask)``, both ``[K, capacity]``: numbers of the blocks, and True where a slot
      holds one. Empty slots have number 0; blocks beyond the capacity are left out.
    """
    slots = jnp.arange(capacity)[None, :]
    starts = (jnp.cumsum(segments) - segments)[:, None]
    mask = slots < segments[:, None]
    return jnp.where(mask, starts + slots, 0), mask


def gather_slots(encoder_params: Params, segments: Array, capacity: int) -> Params:
    """Slots ``[K, capacity, ...]`` of the stack ``[L, ...]``; empty ones repeat block 0."""
    block_ids, _ = segment_layout(segments, capacity)
    return jax.tree.map(lambda leaf: leaf[block_ids], encoder_params)


def holds(segments: Array | np.ndarray, blocks: int, capacity: int) -> Array | np.ndarray:
    """Whether the devices can run a partition, ``[...]`` bool.

    No device holds more than the capacity, and the sizes ``[..., K]`` sum to L or 0.
    """
    total = segments.sum(-1)
    sizes_fit = ((segments >= 0) & (segments <= capacity)).all(-1)
    return sizes_fit & ((total == blocks) | (total == 0))


def check_partition(segments: Array | None, blocks: int, capacity: int) -> Array:
    """The partition; refuse one that the devices cannot run, where its values are known.

    Under ``jax.jit`` the sizes are tracers and nothing is checked; the result of a partition that
    does not fit (see ``holds``) is NaN.

    Raises:
      InputError: without segments, or with sizes below 0, above the capacity, or of
        another sum than L.
    """
    if segments is None:
        raise InputError("segments", None, "is missing", "Give the blocks of every device")
    if isinstance(segments, Tracer):
        return segments
    sizes = np.asarray(segments)
    if not (sizes <= capacity).all():
        problem = f"exceeds the capacity of {capacity} blocks a device"
        remedy = "Give devices fewer blocks or raise the capacity"
        raise InputError("segments", sizes.tolist(), problem, remedy)
    if not holds(sizes, blocks, capacity).all():
        problem = f"is no partition of {blocks} blocks"
        remedy = "Give sizes from 0 on that sum to the encoder's blocks, or to 0 for no part"
        raise InputError("segments", sizes.tolist(), problem, remedy)
    return segments
