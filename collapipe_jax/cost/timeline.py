"""Time of identical jobs through a chain of stages: closed form, and by events."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

_Broadcast = Num[Array, "..."]


def flow_time_s(sum_s: _Broadcast, longest_s: _Broadcast, micro_batches: _Broadcast) -> _Broadcast:
    """Time for micro-batches to flow through stages that hold one at a time.

    ``sum_s`` is the time of all stages together, ``longest_s`` that of the longest. Exact for
    a permutation flow shop. Source: docs/system-model.md (11). Shapes broadcast.
    """
    return sum_s + (micro_batches - 1) * longest_s


class Events(NamedTuple):
    """When each micro-batch enters and leaves each stage."""

    start_s: Float[Array, "M P"]
    finish_s: Float[Array, "M P"]


def flow_events(
    stage_s: Float[Array, " P"], micro_batches: int, start_s: Array | float = 0.0
) -> Events:
    """Events of micro-batches that flow through stages in order, all ready at ``start_s``.

    A stage serves one at a time and passes it on when done, so ``finish[m, p] =
    max(finish[m, p - 1], finish[m - 1, p]) + stage[p]``; unrolled over the stages this
    is a running maximum, and one scan over the micro-batches remains.
    """
    through = jnp.cumsum(stage_s)
    before = through - stage_s

    def next_job(free, _):
        finish = through + jax.lax.cummax(free - before)
        return finish, Events(finish - stage_s, finish)

    ready = jnp.full_like(stage_s, start_s)
    _, events = jax.lax.scan(next_job, ready, length=micro_batches)
    return events
