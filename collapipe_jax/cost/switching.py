"""Moving weights between devices when segments change, docs/system-model.md, section 5.

Every round hands out parameters anyway (13). A device that takes over blocks must also get
their optimiser state, make room and warm up; what that is worth is a price, off by default.
"""

import jax.numpy as jnp
from jax import Array

from collapipe_jax.cost.decision import Decision
from collapipe_jax.quantity import Struct, quantity, same


class SwitchingParams(Struct):
    """Cost of changing partitions from round to round."""

    switching_cost: Array = quantity(
        "cost of moving a whole encoder between devices; at 0 none", unit="units of (P2)"
    )
    hysteresis: Array = quantity(
        "relative fall of (P2) under which `dssra` keeps the partition", bounds=">= 0 and <= 1"
    )


class Switching(SwitchingParams):
    """The partition of the round before, and the cost of leaving it."""

    segments: Array = same(Decision, "segments")
    micro_batches: Array = same(Decision, "micro_batches")


def moved_encoders(before: Array, segments: Array, blocks: int) -> Array:
    """Blocks that devices take over, in encoders, by cluster.

    A cluster that held nothing starts anew: no layout is dearer than another, so nothing
    counts.

    Args:
      before: ``[K, ...]``, devices first.
      segments: ``[K, ...]``.
      blocks: ``L``.

    Returns:
      ``[...]``.
    """
    taken = jnp.sum(jnp.maximum(segments - before, 0), axis=0) / blocks
    return jnp.where(jnp.sum(before, axis=0) > 0, taken, 0.0)


def price_of_moves(switching: Switching | None, segments: Array, blocks: int) -> Array:
    """Price of leaving the layout of the round before, by cluster.

    Args:
      switching: with or without trailing lanes; none costs nothing.
      segments: devices first, ``[K, N, ...]``, or ``[K, sets, N, ...]``.
      blocks: ``L``.

    Returns:
      ``[N, ...]``, or ``[sets, N, ...]``; a scalar 0 where nothing is asked.
    """
    if switching is None:
        return jnp.zeros(())
    before = jnp.moveaxis(switching.segments, 1, 0)
    sets = [1] * (segments.ndim - before.ndim)
    before = before.reshape(before.shape[0], *sets, *before.shape[1:])
    return switching.switching_cost * moved_encoders(before, segments, blocks)
