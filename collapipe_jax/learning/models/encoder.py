"""The encoder: a stack of identical blocks, which the devices share.

Every parameter leaf is stacked ``[L, ...]``, so that any run of consecutive blocks is
a slice and the whole encoder is one ``jax.lax.scan``.
"""

import jax.numpy as jnp
from jax import Array

from collapipe_jax.learning.models.block import Block
from collapipe_jax.learning.models.config import EncoderConfig
from collapipe_jax.learning.models.layers import Params, bind, init_stack, layer_keys, run_stack


def init_encoder(key: Array, config: EncoderConfig) -> Params:
    """Fresh parameters of the encoder, every leaf ``[L, ...]``."""
    return init_stack(Block, key, config, config.encoder_blocks)


def encoder_block(
    block_params: Params, config: EncoderConfig, x: Array, mask: Array, keys: Array | None = None
) -> Array:
    """One block of the encoder, its parameters without the axis ``L``, its own ``layer_keys``.

    An example without any real token gets finite values.
    """
    allowed, positions = mask[:, None, :], None
    if config.is_causal:  # no token reads a later one, and the first has position 0
        length = x.shape[1]
        allowed = jnp.tril(jnp.ones((1, length, length), bool)) & allowed
        positions = jnp.arange(length)[None]
    return bind(Block, config, block_params)(x, allowed, keys, positions=positions)[0]


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
