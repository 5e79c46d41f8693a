"""Changing partitions from round to round, docs/system-model.md, section 5.

Every round hands out parameters anyway (13). A device that takes over blocks must also make room
and warm up; what that is worth is a cost, off by default. Their optimiser state is in
:mod:`.moments`.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from collapipe_jax.edge.cost.decision import Segments
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.terms.addition import PartitionAddition


def moved_encoders(
    before: Num[Array, "K *#any"], segments: Num[Array, "K *#any"], blocks: int
) -> Float[Array, "*any"]:
    """Blocks that devices take over, in whole encoders, by cluster.

    A cluster that held nothing starts anew, and every partition costs it the same: 0.
    """
    taken = jnp.sum(jnp.maximum(segments - before, 0), axis=0) / blocks
    return jnp.where(jnp.sum(before, axis=0) > 0, taken, 0.0)


def switching(problem: RoundProblem, segments: Segments) -> PartitionAddition:
    """Cost of leaving the partition of the round before, if there is one."""
    before = problem.switching
    if before is None:
        return PartitionAddition()
    moved = moved_encoders(jnp.moveaxis(before.segments, 1, 0), segments, problem.workload.blocks)
    return PartitionAddition(cost=before.switching_cost * moved)
