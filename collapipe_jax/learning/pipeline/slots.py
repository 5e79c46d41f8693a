"""The work of a mini-batch cut up: blocks in slots of devices, examples in micro-batches."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.layers import Params


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


def gather_slots(
    encoder_params: Params, segments: Array, capacity: int, *, shared: bool = False
) -> Params:
    """Slots ``[N, K, capacity, ...]`` of stacks ``[N, L, ...]``; empty ones repeat block 0.

    A stack ``[L, ...]`` may be ``shared`` by all clusters. The transpose is a scatter, so
    gradients by the slots flow back into the stacks.
    """

    def gather(stack: Params, sizes: Array) -> Params:
        block_ids, _ = segment_layout(sizes, capacity)
        return jax.tree.map(lambda leaf: leaf[block_ids], stack)

    return jax.vmap(gather, in_axes=(None if shared else 0, 0))(encoder_params, segments)


def holds(segments: Array | np.ndarray, blocks: int, capacity: int) -> Array | np.ndarray:
    """Whether the devices can run a partition, ``[...]`` bool.

    No device holds more than the capacity, and the sizes ``[..., K]`` sum to L or 0.
    """
    total = segments.sum(-1)
    sizes_fit = ((segments >= 0) & (segments <= capacity)).all(-1)
    return sizes_fit & ((total == blocks) | (total == 0))


def fold_stages(segments: Array, blocks: int, capacity: int, stages: int) -> tuple[Array, int]:
    """Consecutive devices as one stage each.

    Args:
      segments: ``[N, K]``.
      blocks: ``L``.
      capacity: most blocks of one of the devices.
      stages: a divisor of ``K`` (static).

    Returns:
      Blocks of the stages ``[N, stages]``, -1 throughout where the devices do not hold them, and
      the most blocks of a stage.
    """
    clusters, devices = segments.shape
    folded = segments.reshape(clusters, stages, devices // stages).sum(-1)
    fits = jnp.asarray(holds(segments, blocks, capacity))[:, None]
    return jnp.where(fits, folded, -1), min(capacity * (devices // stages), blocks)


def check_partition(segments: Array, blocks: int, capacity: int) -> None:
    """Refuse a partition that the devices cannot run, where its values are known.

    Under ``jax.jit`` the sizes are tracers and nothing is checked; the result of a partition that
    does not fit (see ``holds``) is NaN.

    Raises:
      InputError: on sizes below 0, above the capacity, or of another sum than L.
    """
    if isinstance(segments, Tracer):
        return
    sizes = np.asarray(segments)
    if not (sizes <= capacity).all():
        problem = f"exceeds the capacity of {capacity} blocks a device"
        remedy = "Give devices fewer blocks or raise the capacity"
        raise InputError("segments", sizes.tolist(), problem, remedy)
    if not holds(sizes, blocks, capacity).all():
        problem = f"is no partition of {blocks} blocks"
        remedy = "Give sizes from 0 on that sum to the encoder's blocks, or to 0 for no part"
        raise InputError("segments", sizes.tolist(), problem, remedy)


def cut(tree: Any, count: int) -> Any:
    """Leaves ``[B, ...]`` to ``[count, B / count, ...]``, examples in order."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), tree
    )


def check_micro_batches(batch: int, count: int) -> None:
    """Refuse, by an ``InputError``, a number of micro-batches that does not divide B."""
    if count < 1 or batch % count:
        problem = f"does not divide the {batch} examples of a mini-batch"
        raise InputError("micro_batches", count, problem, "Choose a divisor of training.batch")
