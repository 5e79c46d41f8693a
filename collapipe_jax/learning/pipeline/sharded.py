"""The pipeline on a mesh of devices: ``jax.shard_map`` over clusters by stages, as GPipe.

Every device holds its own stage's slots and runs those blocks only; activations and
gradients hop to the next stage by ``ppermute``. The forward flow ends before the backward flow
starts, so a device keeps all ``M`` micro-batches (docs/system-model.md (15)).

A micro-batch is one granule or several, equal parts of a mini-batch that are computed at a time.
Granules have static shapes, so that ``M`` may be an array value.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.learning.models.config import EncoderConfig
from collapipe_jax.learning.models.layers import Params, narrowed
from collapipe_jax.learning.pipeline.mesh import (
    CLUSTER,
    ON_CLUSTER,
    ON_DEVICE,
    STAGE,
    from_stage,
    hop,
    shard,
)
from collapipe_jax.learning.pipeline.passes import Kept, Stage
from collapipe_jax.learning.pipeline.slots import cut


def forward_sharded(
    config: EncoderConfig,
    granules: int,
    slots: Params,
    base_slots: Params,
    x: Array,
    mask: Array,
    segments: Array,
    keys: Array | None,
    lag: Array | None,
) -> Array:
    """The outputs of all clusters' encoders, each on a row of a mesh; differentiable.

    Args and result are those of ``execution.run_slots``, but for ``granules``, the static number
    of equal parts of a mini-batch, and ``lag``, those of a micro-batch ``[N]``; None is 1.
    """
    static, rest = (config, granules), (mask, segments, keys, lag)
    return _pipeline(static, slots, narrowed(x, config), base_slots, rest).astype(x.dtype)


def _pipeline_value(static: tuple, slots: Params, x: Array, base: Params, rest: tuple) -> Array:
    """The forward flow, which keeps nothing."""
    return _flow_forward(static, False, slots, x, base, rest)[0]


def _pipeline_forward(
    static: tuple, slots: Params, x: Array, base: Params, rest: tuple
) -> tuple[Array, tuple]:
    y, kept = _flow_forward(static, True, slots, x, base, rest)
    return y, (slots, base, rest, kept)


def _pipeline_backward(static: tuple, residual: tuple, cotangent: Array) -> tuple:
    """Gradients from the last stage to the first; the base has none."""
    slots, base, rest, kept = residual

    def on_stage(
        slots: Params, base: Params, rest: tuple, kept: Kept, cotangent: Array
    ) -> tuple[Params, Array]:
        stage = own_stage(static, slots, base, rest)

        def run(x: Array, number: Array, busy: Array, sums: Params) -> tuple[Array, Params]:
            return stage.backward(x, number, busy, kept, sums)

        sums = jax.tree.map(jnp.zeros_like, slots)
        outputs, gradients = _flow(run, cut(cotangent, static[1]), sums, -1, rest[3])
        return gradients, outputs.reshape(cotangent.shape)

    specs = ON_DEVICE, ON_DEVICE, ON_CLUSTER, ON_DEVICE, ON_CLUSTER
    run = shard(on_stage, rest[1].shape, specs, (ON_DEVICE, ON_CLUSTER))
    return *run(slots, base, rest, kept, cotangent), None, None


_pipeline = jax.custom_vjp(_pipeline_value, nondiff_argnums=(0,))
_pipeline.defvjp(_pipeline_forward, _pipeline_backward)


def _flow_forward(
    static: tuple, keeps: bool, slots: Params, x: Array, base: Params, rest: tuple
) -> tuple[Array, Kept]:
    """Activations from the first stage to the last, with the kept arrays if asked for."""

    def on_stage(slots: Params, base: Params, x: Array, rest: tuple) -> tuple[Array, Kept]:
        stage, inputs = own_stage(static, slots, base, rest), cut(x, static[1])
        kept = stage.empty_kept(inputs[0], len(inputs)) if keeps else []
        outputs, kept = _flow(stage.forward, inputs, kept, 1, rest[3])
        return outputs.reshape(x.shape), kept

    specs = ON_DEVICE, ON_DEVICE, ON_CLUSTER, ON_CLUSTER
    return shard(on_stage, rest[1].shape, specs, (ON_CLUSTER, ON_DEVICE))(slots, base, x, rest)


def own_stage(static: tuple[EncoderConfig, int], slots: Params, base: Params, rest: tuple) -> Stage:
    """Inside ``shard``: the stage of a device.

    Args:
      static: sizes, and number of granules.
      slots, base: parameters of the stage, every leaf ``[capacity, ...]``.
      rest: its cluster's mask ``[B, S]``, segments ``[K]`` and keys ``[B]`` or None, and more.
    """
    (config, count), index = static, jax.lax.axis_index(STAGE)
    mask, sizes, keys, *_ = rest
    size = jnp.minimum(sizes[index], len(jax.tree.leaves(slots)[0]))
    first = (jnp.cumsum(sizes) - sizes)[index]
    mask, keys = cut((mask, keys), count)
    return Stage(config, slots, first, size, mask, keys, base)


def _flow(
    run: Callable[..., tuple[Array, Any]],
    inputs: Array,
    state: Any,
    direction: int,
    lag: Array | None,
) -> tuple[Array, Any]:
    """Inside ``shard``: granules through all stages, one a turn with a hop after it.

    A stage starts ``lag`` turns after the one before, when that has run a whole micro-batch.
    What an idle turn carries is NaN and never read.

    Args:
      run: function of activations ``[b, S, h]``, the number of the granule, whether there is
        one, and the stage's state; it returns activations and state.
      inputs: of the stage that begins, ``[G, b, S, h]``.
      state: of the stage before its first granule.
      direction: 1 from the first stage to the last, -1 from the last to the first.
      lag: granules of a micro-batch ``[]``; None is 1.

    Returns:
      Outputs of the stage that ends, on all stages, and the stage's state.
    """
    stages, stage = jax.lax.axis_size(STAGE), jax.lax.axis_index(STAGE)
    behind, begin = (stage, 0) if direction == 1 else (stages - 1 - stage, stages - 1)
    # All devices run as many turns as the slowest of the clusters that run at a time.
    turns, most = (1, 1) if lag is None else (lag, jax.lax.pmax(lag, CLUSTER))
    count = len(inputs)

    def granule(turn: Array, behind: Array) -> tuple[Array, Array]:
        number = turn - behind * turns
        return jnp.clip(number, 0, count - 1), (number >= 0) & (number < count)

    def run_turn(turn: Array, carry: tuple[Array, Any]) -> tuple[Array, Any]:
        rows, state = carry
        number, busy = granule(turn, behind)
        y, state = run(rows[number], number, busy, state)
        came = hop(jnp.where(busy, y, jnp.nan), direction)
        # Outputs of the last stage come round to the first, which has run that granule.
        number, busy = granule(turn, (behind - 1) % stages)
        return rows.at[number].set(jnp.where(busy, came, rows[number])), state

    rows = jnp.where(behind == 0, inputs, jnp.nan)
    rows, state = jax.lax.fori_loop(0, count + (stages - 1) * most, run_turn, (rows, state))
    return from_stage(begin, rows), state
