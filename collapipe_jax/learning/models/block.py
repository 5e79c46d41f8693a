"""The block of all models: attention, and a feed-forward layer, both with residuals.

BERT, the encoder-decoder, Llama, Qwen2 and Qwen3 have one block; their sizes tell the parts:

- layer norm, or division by the root mean square (Zhang and Sennrich 1910.07467);
- before a layer ("pre") or after its sum with the residual ("post");
- heads of queries that share keys and values in groups (Ainslie et al. 2305.13245);
- rotary positions (Su et al. 2104.09864), and norms of queries and keys;
- a feed-forward layer with a gate (Shazeer 2002.05202), or without;
- in the decoder of the translator, attention to the encoded source.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.config import EncoderConfig
from collapipe_jax.learning.models.layers import (
    ACTIVATIONS,
    PRODUCT,
    Linear,
    Params,
    bind,
    dropout,
    init_stack,
    layer_keys,
    narrowed,
    run_stack,
)

# Finite, so that a row without any real token gets equal weights instead of 0 / 0.
_BLOCKED_SCORE = -1e9

KeysAndValues = tuple[Array, Array]
"""Keys and values ``[B, S, g, d]`` that tokens attend to, of g heads."""


class Norm(nnx.LayerNorm):
    """Layer normalisation: statistics in 32 bits at least, the result as wide as the input."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        super().__init__(config.width, epsilon=config.norm_epsilon, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Map ``[..., h]`` to ``[..., h]``."""
        return super().__call__(x).astype(x.dtype)


class RMSNorm(nnx.RMSNorm):
    """Division by the root mean square, in 32 bits at least; the result as wide as the input."""

    def __init__(self, config: EncoderConfig, size: int = 0, *, rngs: nnx.Rngs):
        super().__init__(size or config.width, epsilon=config.norm_epsilon, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Map ``[..., h]`` to ``[..., h]``, or numbers of another ``size``."""
        return super().__call__(x).astype(x.dtype)


def _make_norm(config: EncoderConfig, *, rngs: nnx.Rngs) -> Norm | RMSNorm:
    """The norm of these sizes."""
    return (RMSNorm if config.divides_by_rms else Norm)(config, rngs=rngs)


def _rotation_rates(config: EncoderConfig) -> np.ndarray:
    """Angle per position of every pair of a head's numbers, ``[d / 2]``.

    ``base^(-2 i / d)`` for pair i, slower where ``rotary_scaling`` says so (Llama 3.1,
    arXiv:2407.21783; the formula is of ``transformers``).
    """
    half = config.head_width // 2
    rate = float(config.rotary_base) ** (-np.arange(half) / half)
    if (scaling := config.rotary_scaling) is not None:
        turns = scaling.original_positions * rate / (2.0 * np.pi)
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
        rate = kept * rate + (1.0 - kept) * rate / scaling.factor
    return rate.astype(np.float32)


def rotate(x: Array, positions: Array, rate: np.ndarray) -> Array:
    """Turn the pairs ``(i, i + d / 2)`` of every head by an angle that grows with the position.

    Products of queries and keys then depend on the distance between their positions alone.

    Args:
      x: ``[B, S, heads, d]``.
      positions: of the tokens, ``[B, S]`` or ``[1, S]``.
      rate: angle of every pair per position, ``[d / 2]``.
    """
    half = x.shape[-1] // 2
    angle = positions[:, :, None, None] * rate[None, None, None]
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    first, second = x[..., :half], x[..., half:]
    turned = first * cosine - second * sine, second * cosine + first * sine
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


class Attention(nnx.Module):
    """Multi-head attention; ``heads / groups`` heads of queries share keys and values."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.config, shared = config, config.groups * config.head_width
        self.query, self.key, self.value = (
            Linear(config.width, outputs, config, bias=config.query_bias, rngs=rngs)
            for outputs in (config.heads_width, shared, shared)
        )
        self.out = Linear(config.heads_width, config.width, config, bias=config.bias, rngs=rngs)
        if config.query_key_norm:
            self.query_norm, self.key_norm = (
                RMSNorm(config, config.head_width, rngs=rngs) for _ in range(2)
            )

    def project(self, source: Array, positions: Array | None = None) -> KeysAndValues:
        """Keys and values ``[B, S, g, d]`` of a source ``[B, S, h]``, g heads of them."""
        config = self.config
        key, value = (
            _split_heads(a, config.groups) for a in (self.key(source), self.value(source))
        )
        if config.query_key_norm:
            key = self.key_norm(key)
        return self._rotated(key, positions), value

    def __call__(
        self,
        x: Array,
        key: Array,
        value: Array,
        allowed: Array,
        positions: Array | None = None,
        keys: Array | None = None,
        site: int = 0,
    ) -> Array:
        """Attend from ``x [B, Q, h]`` to keys and values where ``allowed [B | 1, 1 | Q, S]``."""
        config, (batch, length, _) = self.config, x.shape
        query = _split_heads(self.query(x), config.heads)
        if config.query_key_norm:
            query = self.query_norm(query)
        query = self._rotated(query, positions)
        if (sharing := config.heads // config.groups) == 1:
            mixed = _attend(config, query, key, value, allowed, keys, site)
            return self.out(mixed.reshape(batch, length, -1))
        # The r heads of a group are r times as many queries of one head: [B, r Q, g, d].
        query = jnp.moveaxis(query.reshape(batch, length, config.groups, sharing, -1), 3, 1)
        query = query.reshape(batch, sharing * length, *query.shape[3:])
        allowed = jnp.tile(allowed, (1, sharing, 1)) if allowed.shape[1] > 1 else allowed
        mixed = _attend(config, query, key, value, allowed, keys, site)
        mixed = mixed.reshape(batch, sharing, length, *mixed.shape[2:])
        return self.out(jnp.moveaxis(mixed, 1, 3).reshape(batch, length, -1))

    def _rotated(self, x: Array, positions: Array | None) -> Array:
        """Heads turned by their positions, where the sizes have rotary ones."""
        if not self.config.rotary_base:
            return x
        assert positions is not None
        return rotate(x, positions, _rotation_rates(self.config))


def _split_heads(x: Array, heads: int) -> Array:
    """``[B, S, heads d]`` as ``[B, S, heads, d]``."""
    return x.reshape(*x.shape[:-1], heads, -1)


def _attend(
    config: EncoderConfig,
    query: Array,
    key: Array,
    value: Array,
    allowed: Array,
    keys: Array | None,
    site: int,
) -> Array:
    """What queries ``[B, Q, heads, d]`` read from values ``[B, S, heads, d]``, shaped as they.

    Keys are shaped as values. Positions are read where ``allowed [B, 1 | Q, S]``, and dropout of
    the weights has the examples' ``keys`` and the number of its ``site``.
    """
    if config.attention == "cudnn":
        return checkpoint_name(_fused_attention(query, key, value, allowed), PRODUCT)
    # With examples and heads first, XLA's CPU backend takes products as they are.
    query, key, value = (jnp.swapaxes(each, 1, 2) for each in (query, key, value))
    scores = _einsum("bnqd,bnsd->bnqs", query * query.shape[-1] ** -0.5, key)
    bias = jnp.where(allowed, 0.0, _BLOCKED_SCORE)[:, None]
    weights = dropout(jax.nn.softmax(scores + bias), keys, site, config.attention_rate)
    mixed = _einsum("bnqs,bnsd->bnqd", narrowed(weights, config), value)
    return jnp.swapaxes(checkpoint_name(narrowed(mixed, config), PRODUCT), 1, 2)


def _fused_attention(query: Array, key: Array, value: Array, allowed: Array) -> Array:
    """CuDNN's kernel on ``[B, S, heads, h / heads]``, with the mask of :class:`Attention`."""
    if jax.default_backend() != "gpu":
        remedy = "Set model.attention to 'einsum'"
        raise InputError("model.attention", "cudnn", "needs a GPU of NVIDIA", remedy)
    mask = jnp.broadcast_to(allowed[:, None], (len(query), 1, query.shape[1], key.shape[1]))
    return jax.nn.dot_product_attention(query, key, value, mask=mask, implementation="cudnn")


def _products(axes: str, a: Array, b: Array) -> Array:
    """``jnp.einsum`` of two arrays of equal type, summed in 32 bits at least.

    Its gradient rounds cotangents to the type of the arrays, as fused kernels do: products of
    mixed types would run in 32 bits. No axis may be of one array alone.
    """
    return jnp.einsum(axes, a, b, preferred_element_type=jnp.promote_types(a.dtype, jnp.float32))


def _einsum_forward(axes: str, a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    return _products(axes, a, b), (a, b)


def _einsum_backward(axes: str, kept: tuple[Array, Array], cotangent: Array) -> tuple:
    (a, b), (inputs, output) = kept, axes.split("->")
    of_a, of_b = inputs.split(",")
    cotangent = cotangent.astype(a.dtype)
    to_a = _products(f"{output},{of_b}->{of_a}", cotangent, b)
    to_b = _products(f"{output},{of_a}->{of_b}", cotangent, a)
    return to_a.astype(a.dtype), to_b.astype(b.dtype)


_einsum = jax.custom_vjp(_products, nondiff_argnums=(0,))
_einsum.defvjp(_einsum_forward, _einsum_backward)


class FeedForward(nnx.Module):
    """Two linear maps and an activation between them; a gate is a third map that has it."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.config = config
        make = functools.partial(Linear, config=config, bias=config.bias, rngs=rngs)
        if config.gated:
            self.gate = make(config.width, config.feed_forward_width)
        self.inner = make(config.width, config.feed_forward_width)
        self.outer = make(config.feed_forward_width, config.width)

    def __call__(self, x: Array) -> Array:
        """Map ``[B, S, h]`` to ``[B, S, h]``, each position on its own."""
        activation = ACTIVATIONS[self.config.activation]
        if self.config.gated:
            return self.outer(activation(self.gate(x)) * self.inner(x))
        return self.outer(activation(self.inner(x)))


class Block(nnx.Module):
    """Attention, attention to a memory where the block reads one, then feed-forward."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs, reads_memory: bool = False):
        self.config, self.reads_memory = config, reads_memory
        self.attention_norm = _make_norm(config, rngs=rngs)
        self.attention = Attention(config, rngs=rngs)
        if reads_memory:
            self.memory_attention_norm = _make_norm(config, rngs=rngs)
            self.memory_attention = Attention(config, rngs=rngs)
        self.feed_forward_norm = _make_norm(config, rngs=rngs)
        self.feed_forward = FeedForward(config, rngs=rngs)

    def __call__(
        self,
        x: Array,
        allowed: Array,
        keys: Array | None = None,
        *,
        positions: Array | None = None,
        memory: tuple[Array, Array, Array] | None = None,
        remember: Callable[..., KeysAndValues] = lambda *new: new,
    ) -> tuple[Array, KeysAndValues]:
        """Map ``x [B, Q, h]`` to ``[B, Q, h]``; with the keys and values that it attends to.

        Args:
          x: tokens.
          allowed: which keys each token may read, ``[B | 1, 1 | Q, S]``.
          keys: of the examples ``[B]``, for dropout.
          positions: of the tokens, ``[B | 1, Q]``, where they are rotary.
          memory: keys and values ``[B, M, g, d]`` of the encoded source, and where they may be
            read ``[B, 1, M]``; of a block that reads one.
          remember: maps keys and values of ``x`` to the pair that it attends to.
        """
        rate, known = self.config.dropout_rate, (x, x)  # which attention replaces

        def attend_to_tokens(y: Array) -> Array:
            nonlocal known
            known = remember(*self.attention.project(y, positions))
            return self.attention(y, *known, allowed, positions, keys, site=0)

        def attend_to_memory(y: Array) -> Array:
            assert memory is not None
            key, value, readable = memory
            return self.memory_attention(y, key, value, readable, None, keys, site=2)

        # Sites tell the places apart that drop activations.
        layers: list[tuple[Any, Callable[[Array], Array], int]]
        layers = [(self.attention_norm, attend_to_tokens, 1)]
        if self.reads_memory:
            layers.append((self.memory_attention_norm, attend_to_memory, 3))
        layers.append((self.feed_forward_norm, self.feed_forward, 2 * len(layers)))
        for norm, layer, site in layers:
            if self.config.norm == "post":
                x = norm(x + dropout(layer(x), keys, site, rate))
            else:
                x = x + dropout(layer(norm(x)), keys, site, rate)
        return x, known


MemoryBlock = functools.partial(Block, reads_memory=True)
"""The block of a decoder that reads an encoded source."""


def init_encoder(key: Array, config: EncoderConfig) -> Params:
    """Fresh parameters of the encoder, every leaf ``[L, ...]``."""
    return init_stack(Block, key, config, config.encoder_blocks)


def encoder_block(
    block_params: Params, config: EncoderConfig, x: Array, mask: Array, keys: Array | None = None
) -> Array:
    """One block of the encoder, its parameters without the axis ``L``, its own ``layer_keys``.

    The mask ``[B, S]`` tells which tokens are real, or of packed rows as integers which text each
    token is part of. A text then attends to itself alone. An example without any real token gets
    finite values.
    """
    allowed, positions = mask[:, None, :], None
    if is_packed := mask.dtype != bool:  # what lies behind the texts attends to its like
        allowed = mask[:, :, None] == allowed
    if config.is_causal:  # no token reads a later one, and the first of a text has position 0
        length = x.shape[1]
        allowed = jnp.tril(jnp.ones((1, length, length), bool)) & allowed
        positions = jnp.arange(length)[None]
        if is_packed:
            begins = jnp.diff(mask, axis=1, prepend=mask[:, :1]) != 0
            positions -= jax.lax.cummax(jnp.where(begins, positions, 0), axis=1)
    return bind(Block, config, block_params)(x, allowed, keys, positions=positions)[0]


def encode(
    encoder_params: Params,
    config: EncoderConfig,
    x: Array,
    mask: Array,
    keys: Array | None = None,
    first: int = 0,
) -> Array:
    """The whole encoder as one scan over its blocks, before any final norm; of x's type.

    Of a part of the blocks, as many as the parameters have, ``first`` is the number of the first.

    Dropout depends on (layer, key of the example) only. A micro-batch with its keys
    therefore gives what the whole mini-batch would, wherever the stack is cut.
    """

    def run_block(x: Array, params: Params, layer: Array) -> Array:
        return encoder_block(params, config, x, mask, layer_keys(keys, layer))

    count = jax.tree.leaves(encoder_params)[0].shape[0]
    return run_stack(run_block, config, encoder_params, first + jnp.arange(count), x)
