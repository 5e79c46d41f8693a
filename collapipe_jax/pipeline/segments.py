"""Segment sizes as array values, so that every partition runs in one compilation."""

import jax
import jax.numpy as jnp


def segment_layout(segments: jax.Array, max_blocks: int) -> tuple[jax.Array, jax.Array]:
    """Which blocks each device runs, in a shape that does not depend on the sizes.

    Devices take consecutive blocks in index order, so a device's first block is the
    exclusive cumulative sum of the sizes. Source: docs/system-model.md, section 5.

    Args:
      segments: blocks per device ``[K]``, integers >= 0, zeros included.
      max_blocks: longest segment that the layout has room for (static). L always
        suffices; blocks of a longer segment beyond it are left out.

    Returns:
      ``(block_ids, mask)``, both ``[K, max_blocks]``: the blocks' numbers, and True where a
      slot holds a block. Empty slots carry number 0, always a valid index.
    """
    slots = jnp.arange(max_blocks)[None, :]
    starts = (jnp.cumsum(segments) - segments)[:, None]
    mask = slots < segments[:, None]
    return jnp.where(mask, starts + slots, 0), mask
