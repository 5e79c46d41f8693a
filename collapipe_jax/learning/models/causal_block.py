"""The block of decoder-only language models, as in Llama, Qwen2 and Qwen3.

Pre-norm by root mean square (Zhang and Sennrich 1910.07467), rotary positions (Su et al.
2104.09864), grouped queries (Ainslie et al. 2305.13245) and a gated feed-forward layer (Shazeer
2002.05202). No token sees a later one.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from collapipe_jax.learning.models.config import CausalConfig
from collapipe_jax.learning.models.layers import ACTIVATIONS, Linear, attend, dropout, split_heads


class RMSNorm(nnx.RMSNorm):
    """Division by the root mean square, in 32 bits at least; the result as wide as the input."""

    def __init__(self, config: CausalConfig, size: int = 0, *, rngs: nnx.Rngs):
        super().__init__(size or config.width, epsilon=config.norm_epsilon, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Map ``[..., h]`` to ``[..., h]``, or numbers of another ``size``."""
        return super().__call__(x).astype(x.dtype)


def rotation_rates(config: CausalConfig) -> np.ndarray:
    """Angle per position of every pair of a head's numbers, ``[d / 2]``.

    ``base^(-2 i / d)`` for pair i, slower where ``rotary_scaling`` says so (Llama 3.1,
    arXiv:2407.21783; the formula is of ``transformers``).
    """
    half = config.head_size // 2
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


class GroupedAttention(nnx.Module):
    """Attention with rotary positions, in which ``r`` heads of queries share keys and values."""

    def __init__(self, config: CausalConfig, *, rngs: nnx.Rngs):
        self.config, shared = config, config.key_value_heads * config.head_size
        self.query, self.key, self.value = (
            Linear(config.width, outputs, config, bias=config.query_bias, rngs=rngs)
            for outputs in (config.heads_width, shared, shared)
        )
        self.out = Linear(config.heads_width, config.width, config, bias=False, rngs=rngs)
        if config.query_key_norm:
            self.query_norm, self.key_norm = (
                RMSNorm(config, config.head_size, rngs=rngs) for _ in range(2)
            )

    def project(self, x: Array, positions: Array) -> tuple[Array, Array]:
        """Keys and values ``[B, S, g, d]`` of ``x [B, S, h]``, g heads of them."""
        heads = self.config.key_value_heads
        key, value = split_heads(self.key(x), heads), split_heads(self.value(x), heads)
        if self.config.query_key_norm:
            key = self.key_norm(key)
        return rotate(key, positions, rotation_rates(self.config)), value

    def __call__(
        self,
        x: Array,
        key: Array,
        value: Array,
        positions: Array,
        allowed: Array,
        keys: Array | None = None,
        site: int = 0,
    ) -> Array:
        """Attend from ``x [B, Q, h]`` to keys and values where ``allowed [B | 1, Q, S]``."""
        config, (batch, length, _) = self.config, x.shape
        query = split_heads(self.query(x), config.heads)
        if config.query_key_norm:
            query = self.query_norm(query)
        query = rotate(query, positions, rotation_rates(config))
        # The r heads of a group are r times as many queries of one head: [B, r Q, g, d].
        query = query.reshape(batch, length, config.key_value_heads, -1, config.head_size)
        query = jnp.moveaxis(query, 3, 1)
        group = query.shape[1]
        query = query.reshape(batch, group * length, *query.shape[3:])
        mixed = attend(config, query, key, value, jnp.tile(allowed, (1, group, 1)), keys, site)
        mixed = mixed.reshape(batch, group, length, *mixed.shape[2:])
        return self.out(jnp.moveaxis(mixed, 1, 3).reshape(batch, length, -1))


class GatedFeedForward(nnx.Module):
    """Two linear maps without biases, one gated by the activation of the other, and a third."""

    def __init__(self, config: CausalConfig, *, rngs: nnx.Rngs):
        self.activation = config.activation
        width, inner = config.width, config.feed_forward_width
        self.gate = Linear(width, inner, config, bias=False, rngs=rngs)
        self.inner = Linear(width, inner, config, bias=False, rngs=rngs)
        self.outer = Linear(inner, width, config, bias=False, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Map ``[B, S, h]`` to ``[B, S, h]``, each position on its own."""
        return self.outer(ACTIVATIONS[self.activation](self.gate(x)) * self.inner(x))


class CausalBlock(nnx.Module):
    """Attention to this token and earlier ones, then feed-forward, both with residuals."""

    def __init__(self, config: CausalConfig, *, rngs: nnx.Rngs):
        self.rate = config.dropout_rate
        self.attention_norm = RMSNorm(config, rngs=rngs)
        self.attention = GroupedAttention(config, rngs=rngs)
        self.feed_forward_norm = RMSNorm(config, rngs=rngs)
        self.feed_forward = GatedFeedForward(config, rngs=rngs)

    def __call__(self, x: Array, mask: Array, keys: Array | None) -> Array:
        """Map ``x [B, S, h]`` to ``[B, S, h]``; the first token has position 0."""
        length = x.shape[1]
        earlier = jnp.tril(jnp.ones((1, length, length), bool))
        return self.extend(x, jnp.arange(length)[None], earlier & mask[:, None, :], keys)[0]

    def extend(
        self,
        x: Array,
        positions: Array,
        allowed: Array,
        keys: Array | None = None,
        remember: Callable[..., tuple[Array, Array]] = lambda *own: own,
    ) -> tuple[Array, tuple[Array, Array]]:
        """Map ``x [B, Q, h]`` to ``[B, Q, h]``; with the keys and values that it attends to.

        Args:
          x: tokens at ``positions [B | 1, Q]``.
          positions: of the tokens.
          allowed: which keys each token may read, ``[B | 1, Q, S]``.
          keys: of the examples ``[B]``, for dropout.
          remember: maps keys and values of ``x`` to those that it attends to, ``[B, S, g, d]``.
        """
        normed = self.attention_norm(x)
        known = remember(*self.attention.project(normed, positions))
        attended = self.attention(normed, *known, positions, allowed, keys, site=0)
        x = x + dropout(attended, keys, 1, self.rate)
        return x + dropout(self.feed_forward(self.feed_forward_norm(x)), keys, 2, self.rate), known
