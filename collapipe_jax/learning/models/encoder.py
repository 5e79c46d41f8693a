"""The encoder: a stack of identical blocks, which the devices share.

The sizes tell the kind of its blocks: those of a decoder-only model are a stack like any other.
Every parameter leaf is stacked ``[L, ...]``, so that any run of consecutive blocks is
a slice and the whole encoder is one ``jax.lax.scan``.
"""

import jax.numpy as jnp
from flax import nnx
from jax import Array

from collapipe_jax.learning.models.causal_block import CausalBlock
from collapipe_jax.learning.models.config import CausalConfig, EncoderConfig
from collapipe_jax.learning.models.layers import (
    Attention,
    FeedForward,
    Norm,
    Params,
    bind,
    dropout,
    init_stack,
    layer_keys,
    run_stack,
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
            source = self.attention.project(x)
            y = self.attention(x, *source, mask[:, None, :], keys, site=0)
            return dropout(y, keys, 1, self.rate)

        def feed_forward(x: Array) -> Array:
            return dropout(self.feed_forward(x), keys, 2, self.rate)

        if self.post_norm:
            x = self.attention_norm(x + attend(x))
            return self.feed_forward_norm(x + feed_forward(x))
        x = x + attend(self.attention_norm(x))
        return x + feed_forward(self.feed_forward_norm(x))


def _block_kind(config: EncoderConfig) -> type[EncoderBlock] | type[CausalBlock]:
    """The block of these sizes."""
    return CausalBlock if isinstance(config, CausalConfig) else EncoderBlock


def init_encoder(key: Array, config: EncoderConfig) -> Params:
    """Fresh parameters of the encoder, every leaf ``[L, ...]``."""
    return init_stack(_block_kind(config), key, config, config.encoder_blocks)


def encoder_block(
    block_params: Params, config: EncoderConfig, x: Array, mask: Array, keys: Array | None = None
) -> Array:
    """One block of the encoder, its parameters without the axis ``L``, its own ``layer_keys``.

    An example without any real token gets finite values.
    """
    return bind(_block_kind(config), config, block_params)(x, mask, keys)


def encode(
    encoder_params: Params, config: EncoderConfig, x: Array, mask: Array, keys: Array | None = None
) -> Array:
    """The whole encoder as one scan over its blocks, before any final norm; of x's type.

    Dropout depends on (layer, key of the example) only. A micro-batch with its keys
    therefore gives what the whole mini-batch would, wherever the stack is cut.
    """

    def run_block(x: Array, params: Params, layer: Array) -> Array:
        return encoder_block(params, config, x, mask, layer_keys(keys, layer))

    return run_stack(run_block, config, encoder_params, jnp.arange(config.encoder_blocks), x)
