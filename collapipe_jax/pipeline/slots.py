"""Parameters of a partition: the slots that a device holds, gathered from the stack."""

import jax
import numpy as np

from collapipe_jax.errors import InputError
from collapipe_jax.models.layers import Params
from collapipe_jax.pipeline.segments import segment_layout


def gather_slots(encoder_params: Params, segments: jax.Array, capacity: int) -> Params:
    """Every device's own blocks, in a shape that does not depend on the partition.

    Args:
      encoder_params: every leaf ``[L, ...]``.
      segments: blocks per device ``[K]``.
      capacity: most blocks that a device may hold (static); more are left out.

    Returns:
      Every leaf ``[K, capacity, ...]``. Empty slots repeat block 0 and are never run.
    """
    block_ids, _ = segment_layout(segments, capacity)
    return jax.tree.map(lambda leaf: leaf[block_ids], encoder_params)


def holds(segments: jax.Array, blocks: int, capacity: int) -> jax.Array:
    """Whether the devices can run a partition.

    Args:
      segments: ``[..., K]``.
      blocks: ``L``.
      capacity: most blocks that a device may hold.

    Returns:
      ``[...]`` bool: no device holds more than the capacity, and the sizes sum to L. A row
      of zeros is a cluster that sits out; it passes activations on unchanged.
    """
    total = segments.sum(-1)
    sizes_fit = ((segments >= 0) & (segments <= capacity)).all(-1)
    return sizes_fit & ((total == blocks) | (total == 0))


def check_partition(segments: jax.Array | None, blocks: int, capacity: int) -> None:
    """Refuse a partition that the devices cannot run, where its values are known.

    Under ``jax.jit`` the sizes are tracers and nothing is checked here; what runs then
    gives NaN in the place of a result that misses blocks (see ``holds``).

    Args:
      segments: blocks per device ``[..., K]``.
      blocks: ``L``.
      capacity: most blocks that a device may hold.

    Raises:
      InputError: without segments, or with sizes below 0, above the capacity, or of
        another sum than L.
    """
    if segments is None:
        raise InputError("segments", None, "is missing", "Give the blocks of every device")
    if isinstance(segments, jax.core.Tracer):
        return
    sizes = np.asarray(segments)
    if not (sizes <= capacity).all():
        raise InputError(
            "segments",
            sizes.tolist(),
            f"exceeds the capacity of {capacity} blocks a device",
            "Give devices fewer blocks or raise the capacity",
        )
    if not holds(sizes, blocks, capacity).all():
        raise InputError(
            "segments",
            sizes.tolist(),
            f"is no partition of {blocks} blocks",
            "Give sizes from 0 on that sum to the encoder's blocks, or to 0 to sit out",
        )
