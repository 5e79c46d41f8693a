"""Changing partitions from round to round, docs/system-model.md, section 5.

Every round hands out parameters anyway (13). A device that takes over blocks must also make room
and warm up; what that is worth is a cost, off by default. Their optimiser state is in
:mod:`.moments`.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from collapipe_jax.core.quantity import Struct, quantity, same
from collapipe_jax.edge.cost.decision import Decision, PerCluster


class SwitchingParams(Struct):
    """Cost of changing partitions from round to round."""

    switching_cost: Array = quantity(
        "cost of moving a whole encoder between devices; at 0 none", unit="units of (P2)"
    )
    hysteresis: Array = quantity(
        "relative fall of (P2) under which `dssra` keeps the partition", bounds=">= 0 and <= 1"
    )
    block_moment_bits: Array | None = quantity(
        "optimiser state of a block that changes its device; not counted without it",
        "D_M",
        optional=True,
        default=None,
    )


class Switching(SwitchingParams):
    """The partition of the round before, and the cost of leaving it."""

    segments: Array = same(Decision, "segments")
    micro_batches: Array = same(Decision, "micro_batches")


def moved_encoders(
    before: Num[Array, "K *#any"], segments: Num[Array, "K *#any"], blocks: int
) -> Float[Array, "*any"]:
    """Blocks that devices take over, in whole encoders, by cluster.

    A cluster that held nothing starts anew, and every partition costs it the same: 0.
    """
    taken = jnp.sum(jnp.maximum(segments - before, 0), axis=0) / blocks
    return jnp.where(jnp.sum(before, axis=0) > 0, taken, 0.0)


def switching_cost(
    switching: Switching | None, segments: Num[Array, "K N *batch"], blocks: int
) -> PerCluster:
    """Cost of leaving the partition of the round before, by cluster; 0 if there is none."""
    if switching is None:
        return jnp.zeros(segments.shape[1:])
    before = jnp.moveaxis(switching.segments, 1, 0)
    return switching.switching_cost * moved_encoders(before, segments, blocks)
