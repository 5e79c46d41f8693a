"""The encoder: a stack of identical blocks, which the devices share.

Every parameter leaf is stacked ``[L, ...]``, so that any run of consecutive blocks is
a slice and the whole encoder is one ``jax.lax.scan``.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from collapipe_jax.models.config import EncoderConfig
from collapipe_jax.models.layers import (
    UNROLLED_BLOCKS,
    Attention,
    FeedForward,
    Norm,
    Params,
    bind,
    dropout,
    example_keys,
    init_stack,
    layer_keys,
    narrow_dtype,
    narrowed,
)


class EncoderBlock(nnx.Module):
    """Self-attention and feed-forward with residuals, normed before or after."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.rate, self.post_norm = config.dropout_rate, config.norm == "post"
        self.attention_norm = Norm(config, rngs=rngs)
        self.attention = Attention(config, rngs=rngs)
        self.feed_forward_norm = Norm(config, rngs=rngs)
        self.feed_forward = FeedForward(config, rngs=rngs)

    def __call__(self, x: Array, mask: Array, keys: Array | None) -> Array:
        """Map ``x [B, S, h]`` to ``[B, S, h]``."""

        def attend(x: Array) -> Array:
            return dropout(self.attention(x, x, mask[:, None, :], keys, site=0), keys, 1, self.rate)

        def feed_forward(x: Array) -> Array:
            return dropout(self.feed_forward(x), keys, 2, self.rate)

        if self.post_norm:
            x = self.attention_norm(x + attend(x))
            return self.feed_forward_norm(x + feed_forward(x))
        x = x + attend(self.attention_norm(x))
        return x + feed_forward(self.feed_forward_norm(x))


def init_encoder(key: Array, config: EncoderConfig) -> Params:
    """Fresh parameters of the encoder, every leaf ``[L, ...]``.

    A block has ``4 h^2 + 4 h`` (attention) ``+ 2 h d + d + h`` (feed-forward of inner width d)
    ``+ 4 h`` (norms) numbers, ``12 h^2 + 13 h`` at ``d = 4 h``.
    """
    return init_stack(EncoderBlock, key, config, config.encoder_blocks)


def encoder_block(
    block_params: Params, config: EncoderConfig, x: Array, mask: Array, keys: Array | None = None
) -> Array:
    """One block of the encoder, ``[B, S, h]`` to ``[B, S, h]``.

    Args:
      block_params: parameters of one block, without the axis ``L``.
      config: sizes.
      x: activations.
      mask: an example without any real token gets finite values.
      keys: keys of the examples in this layer.
    """
    return bind(EncoderBlock, config, block_params)(x, mask, keys)


def encode(
    encoder_params: Params,
    config: EncoderConfig,
    x: Array,
    mask: Array,
    dropout_key: Array | None = None,
    example_ids: Array | None = None,
) -> Array:
    """The whole encoder as one scan over its blocks.

    Dropout depends on (layer, number of the example) only. A micro-batch with its
    ``example_ids`` therefore gives what the whole mini-batch would, wherever the stack is cut.

    Args:
      encoder_params: every leaf ``[L, ...]``.
      config: with ``rematerialise`` a block keeps only its input for the backward pass.
      x, mask, dropout_key, example_ids: as in ``models``.

    Returns:
      Activations ``[B, S, h]`` of x's type, before any final norm.
    """
    ids = jnp.arange(x.shape[0]) if example_ids is None else example_ids
    keys = example_keys(dropout_key, ids)

    def body(x: Array, block: tuple[Params, Array]) -> tuple[Array, None]:
        params, layer = block
        return encoder_block(params, config, x, mask, layer_keys(keys, layer)), None

    step = jax.checkpoint(body, prevent_cse=False) if config.rematerialise else body
    blocks = (encoder_params, jnp.arange(config.encoder_blocks))
    unroll = min(UNROLLED_BLOCKS, config.encoder_blocks)
    start = narrowed(x, narrow_dtype(config))
    return jax.lax.scan(step, start, blocks, unroll=unroll)[0].astype(x.dtype)
