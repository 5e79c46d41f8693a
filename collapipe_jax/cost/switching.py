"""Moving weights between devices when segments change, docs/system-model.md, section 5.

Every round hands out parameters anyway (13). A device that takes over blocks must also get
their optimiser state, make room and warm up; what that is worth is a price, off by default.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array


@struct.dataclass(kw_only=True)
class Moves:
    """The layout of the round before, and what leaving it costs.

    Attributes:
      segments: ``[N, K]``; a row of zeros where the cluster held nothing.
      micro_batches: ``[N]``.
      price: of moving one whole encoder, in units of (P2).
      hysteresis: relative fall of (P2) for which the layout changes at all.
    """

    segments: Array
    micro_batches: Array
    price: Array
    hysteresis: Array


def moved_encoders(before: Array, segments: Array, blocks: int) -> Array:
    """Blocks that devices take over, in whole encoders, by cluster.

    A cluster that held nothing starts anew, and every partition costs it the same: 0.

    Args:
      before: ``[K, ...]``, devices first.
      segments: ``[K, ...]``.
      blocks: ``L``.

    Returns:
      ``[...]``.
    """
    taken = jnp.sum(jnp.maximum(segments - before, 0), axis=0) / blocks
    return jnp.where(jnp.sum(before, axis=0) > 0, taken, 0.0)


def switching_cost(moves: Moves | None, segments: Array, blocks: int) -> Array:
    """Cost of leaving the partition of the round before, by cluster.

    Args:
      moves: None costs nothing.
      segments: devices first, ``[K, N, ...]``.
      blocks: ``L``.

    Returns:
      ``[N, ...]``.
    """
    if moves is None:
        return jnp.zeros(segments.shape[1:])
    before = jnp.moveaxis(moves.segments, 1, 0)
    return moves.price * moved_encoders(before, segments, blocks)
