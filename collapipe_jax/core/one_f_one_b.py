"""Order of the passes in 1F1B: its ticks, which learning executes and cost prices."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Tick(NamedTuple):
    """Pass of a stage in a tick of 1F1B, all ``[]``; never both."""

    forward: Array  # whether it runs a forward pass
    forward_number: Array  # of which micro-batch; always a valid index
    backward: Array
    backward_number: Array


def tick_of(time: Array, stage: Array, stages: int, micro_batches: int) -> Tick:
    """Pass of stage ``k`` of ``K`` in tick ``time``, ``0 .. ticks(K, M) - 1``.

    With a pass as the unit of time, it runs forward pass ``m`` in tick ``k + 2 m`` and backward
    pass ``m`` in tick ``2 K - 1 - k + 2 m``. The two have different parities, each arrives one
    tick after its neighbour sent it, and ``min(M, K - k)`` forward passes precede the first
    backward one (PipeDream-flush: Narayanan et al. 2006.09503, 2104.04473).
    """

    def micro_batch(since: Array) -> tuple[Array, Array]:
        number = since // 2
        runs = (since % 2 == 0) & (number >= 0) & (number < micro_batches)
        return runs, jnp.clip(number, 0, micro_batches - 1)

    return Tick(*micro_batch(time - stage), *micro_batch(time - (2 * stages - 1 - stage)))


def ticks(stages: int, micro_batches: int) -> int:
    """Ticks of a whole step: the first stage ends backward pass ``M - 1`` in the last."""
    return 2 * (stages + micro_batches - 1)
