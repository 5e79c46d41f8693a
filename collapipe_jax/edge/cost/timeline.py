"""Time of identical jobs through a chain of stages: closed form, and by events."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from collapipe_jax.core.one_f_one_b import tick_of, ticks

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


def alternating_events(
    forward_s: Float[Array, " P"], backward_s: Float[Array, " P"], micro_batches: int
) -> tuple[Events, Events]:
    """Events of 1F1B: forward and backward passes of stages that serve both, one at a time.

    The last stage turns a micro-batch around. Both times are in the order of the forward flow.

    Returns:
      Forward and backward passes.

    Source: docs/system-model.md (27).
    """
    stages = len(forward_s)
    stage = jnp.arange(stages)

    def tick(free_s, time):
        does = jax.vmap(lambda k: tick_of(time, k, stages, micro_batches))(stage)
        # A pass waits for its stage, and for the neighbour that sends to it.
        before_s = jnp.where(does.forward, jnp.roll(free_s, 1), jnp.roll(free_s, -1))
        is_first = does.forward & (stage == 0) | does.backward & (stage == stages - 1)
        start_s = jnp.maximum(free_s, jnp.where(is_first, 0.0, before_s))
        pass_s = jnp.where(does.forward, forward_s, backward_s)
        runs = does.forward | does.backward
        start_s = jnp.where(runs, start_s, free_s)
        finish_s = jnp.where(runs, start_s + pass_s, free_s)
        return finish_s, Events(start_s, finish_s)

    times = jnp.arange(ticks(stages, micro_batches))
    _, events = jax.lax.scan(tick, jnp.zeros_like(forward_s), times)
    # Of all ticks those in which pass m of stage k runs; see `core/one_f_one_b.py`.
    number = jnp.arange(micro_batches)[:, None]
    at = stage[None] + 2 * number, 2 * stages - 1 - stage[None] + 2 * number

    def pick(time):
        return jax.tree.map(lambda leaf: jnp.take_along_axis(leaf, time, axis=0), events)

    return pick(at[0]), pick(at[1])
