"""All stages of the pipeline at once on one device, by ``jax.vmap`` over the stage axis.

In tick ``t`` stage ``k`` runs micro-batch ``t - k``; then all activations move by one stage. A
stage without a micro-batch (a bubble) and a slot without a block compute like the others, and
their results are not read.
"""

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.models.config import EncoderConfig
from collapipe_jax.models.encoder import encoder_block
from collapipe_jax.models.layers import Params, layer_keys, narrow_dtype, narrowed
from collapipe_jax.pipeline.micro_batches import MicroBatches, cut, cut_mask_and_keys
from collapipe_jax.pipeline.slots import segment_layout


def forward_vmapped(
    slots: Params,
    config: EncoderConfig,
    x: Array,
    mask: Array,
    segments: Array,
    dropout_key: Array | None = None,
    example_ids: Array | None = None,
    *,
    micro_batches: int = 1,
    bubble: float = 0.0,
) -> Array:
    """The encoder as a pipeline of ``K`` stages, bubbles included.

    Args:
      slots: every leaf ``[K, capacity, ...]``.
      config: with ``rematerialise`` a block keeps its input alone.
      x, mask, dropout_key, example_ids: as in ``models``.
      segments, micro_batches, bubble: as in ``pipeline``.

    Returns:
      Activations ``[B, S, h]`` of x's type.
    """
    stages, capacity = jax.tree.leaves(slots)[0].shape[:2]
    inputs = narrowed(cut(x, micro_batches), narrow_dtype(config))  # [M, b, S, h]
    micro = cut_mask_and_keys(mask, dropout_key, example_ids, micro_batches)
    block_ids, filled = segment_layout(segments, capacity)

    def run_stages(x: Array, numbers: Array) -> Array:
        run = jax.vmap(lambda *stage: _run_stage(config, *stage))
        return run(slots, block_ids, filled, x, micro.at(numbers))

    def tick(hops: Array, time: Array) -> tuple[Array, Array]:
        numbers = time - jnp.arange(stages)
        busy = ((numbers >= 0) & (numbers < micro_batches))[:, None, None, None]
        numbers = jnp.clip(numbers, 0, micro_batches - 1)
        arrived = jnp.roll(hops, 1, axis=0).at[0].set(inputs[numbers[0]])
        # Idle stages get real activations: 0 times the gradient of a NaN would be NaN.
        done = run_stages(jnp.where(busy, arrived, inputs[:1]), numbers)
        hops = jnp.where(busy, done, jnp.asarray(bubble, done.dtype))
        return hops, hops[-1]

    hops = jnp.full((stages, *inputs.shape[1:]), bubble, inputs.dtype)
    _, left = jax.lax.scan(tick, hops, jnp.arange(micro_batches + stages - 1))
    return left[stages - 1 :].reshape(x.shape).astype(x.dtype)


def _run_stage(
    config: EncoderConfig,
    slots: Params,
    block_ids: Array,
    filled: Array,
    x: Array,
    micro: MicroBatches,
) -> Array:
    """One stage on ``x [b, S, h]``: slot after slot, leaves ``[capacity, ...]``."""

    def slot(x: Array, place: tuple[Params, Array, Array]) -> tuple[Array, None]:
        params, block_id, is_filled = place
        keys = layer_keys(micro.keys, block_id)
        return jnp.where(is_filled, encoder_block(params, config, x, micro.mask, keys), x), None

    step = jax.checkpoint(slot, prevent_cse=False) if config.rematerialise else slot
    return jax.lax.scan(step, x, (slots, block_ids, filled))[0]
