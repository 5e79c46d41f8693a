"""Encoder-decoder Transformer for translation, cut between control unit, devices and server.

``embed`` runs on the control unit, ``encoder.encode`` on the devices, ``decode`` and the
loss on the edge server.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from collapipe_jax.models.config import PAD_ID, Ids, TransformerConfig
from collapipe_jax.models.cross_entropy import cross_entropy
from collapipe_jax.models.encoder import encode, init_encoder
from collapipe_jax.models.layers import (
    UNROLLED_BLOCKS,
    Attention,
    FeedForward,
    Norm,
    Params,
    bind,
    dropout,
    init_stack,
    layer_keys,
    narrow_dtype,
    narrowed,
)


class TranslationBatch(NamedTuple):
    """Token numbers of a batch of sentence pairs, 0 where padded.

    Attributes:
      source_ids: ``[B, source_length]`` int32.
      target_ids: ``[B, target_length + 1]`` int32, from start to end token.
    """

    source_ids: Ids
    target_ids: Ids


class DecoderBlock(nnx.Module):
    """Causal self-attention, attention to the memory, feed-forward; pre-norm."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.rate = config.dropout_rate
        self.attention_norm = Norm(config, rngs=rngs)
        self.attention = Attention(config, rngs=rngs)
        self.memory_attention_norm = Norm(config, rngs=rngs)
        self.memory_attention = Attention(config, rngs=rngs)
        self.feed_forward_norm = Norm(config, rngs=rngs)
        self.feed_forward = FeedForward(config, rngs=rngs)

    def __call__(
        self, x: Array, allowed: Array, memory: Array, memory_allowed: Array, keys: Array | None
    ) -> Array:
        """Map ``x [B, T, h]`` to ``[B, T, h]`` given ``memory [B, S, h]``."""
        normed = self.attention_norm(x)
        attended = self.attention(normed, normed, allowed, keys, site=0)
        x = x + dropout(attended, keys, 1, self.rate)
        normed = self.memory_attention_norm(x)
        attended = self.memory_attention(normed, memory, memory_allowed, keys, site=2)
        x = x + dropout(attended, keys, 3, self.rate)
        return x + dropout(self.feed_forward(self.feed_forward_norm(x)), keys, 4, self.rate)


def init_params(key: Array, config: TransformerConfig) -> Params:
    """Fresh parameters of the whole model.

    Returns:
      The control unit's table ``[V, h]``, the blocks ``[L, ...]``, and the edge server's table,
      blocks and final norms.
    """
    embedding_key, encoder_key, table_key, decoder_key = jax.random.split(key, 4)
    norm = {"scale": jnp.ones(config.width), "bias": jnp.zeros(config.width)}
    return {
        "embedding": _init_table(embedding_key, config),
        "encoder": init_encoder(encoder_key, config),
        "decoder": {
            "embedding": _init_table(table_key, config),
            "memory_norm": norm,
            "blocks": init_stack(DecoderBlock, decoder_key, config, config.decoder_blocks),
            "norm": jax.tree.map(jnp.copy, norm),
        },
    }


def _init_table(key: Array, config: TransformerConfig) -> Params:
    # Entries of variance 1 / h: of variance 1 once scaled by sqrt(h), and logits of
    # variance 1 when the table is the output projection.
    shape = (config.vocabulary_size, config.width)
    return {"embedding": jax.random.normal(key, shape) * config.width**-0.5}


def embed(
    embedding_params: Params, config: TransformerConfig, ids: Array, start: Array | int = 0
) -> Array:
    """Token embeddings times sqrt(h) plus sinusoidal positions (Vaswani et al. 1706.03762).

    Args:
      embedding_params: ``{"embedding": [V, h]}``.
      config: sizes.
      ids: token numbers ``[B, S]``; a number outside the vocabulary is clamped to its end.
      start: position of the first token, an array value.
    """
    table = embedding_params["embedding"]
    tokens = table.at[ids].get(mode="clip") * math.sqrt(config.width)
    return tokens + sinusoidal_positions(start + jnp.arange(ids.shape[1]), config.width)[None]


def sinusoidal_positions(positions: Array, width: int) -> Array:
    """Table ``[S, width]`` for ``positions [S]``: sines in its first half, then cosines."""
    rate = jnp.exp(-math.log(10_000.0) * jnp.arange(0, width, 2) / width)
    angle = positions[:, None] * rate[None, :]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)


def decode(
    decoder_params: Params,
    config: TransformerConfig,
    target_in: Array,
    memory: Array,
    memory_mask: Array,
    keys: Array | None = None,
) -> Array:
    """Hidden states ``[B, T, h]`` of the decoder after the final norm, with a causal mask.

    Args:
      decoder_params: the edge server's parameters.
      config: sizes.
      target_in: target tokens from the start token on, ``[B, T]``.
      memory: the encoder's output ``[B, S, h]``, not yet normed.
      memory_mask: ``[B, S]``, True on real source tokens.
      keys: as in ``models``.
    """
    x = embed(decoder_params["embedding"], config, target_in)
    memory = layer_norm(decoder_params["memory_norm"], memory)
    narrow_memory = narrowed(memory, narrow_dtype(config))
    causal = jnp.tril(jnp.ones((x.shape[1],) * 2, bool))[None]
    # The encoder's layers come first in the count, so that no two layers share keys.
    layers = config.encoder_blocks + jnp.arange(config.decoder_blocks)

    def body(x: Array, block: tuple[Params, Array]) -> tuple[Array, None]:
        params, layer = block
        module = bind(DecoderBlock, config, params)
        x = module(x, causal, narrow_memory, memory_mask[:, None, :], layer_keys(keys, layer))
        return x, None

    step = jax.checkpoint(body, prevent_cse=False) if config.rematerialise else body
    unroll = min(UNROLLED_BLOCKS, config.decoder_blocks)
    start = narrowed(x, narrow_dtype(config))
    x = jax.lax.scan(step, start, (decoder_params["blocks"], layers), unroll=unroll)[0]
    return layer_norm(decoder_params["norm"], x.astype(memory.dtype))


def layer_norm(params: Params, x: Array, epsilon: float = 1e-6) -> Array:
    """The final norms: as ``Norm``, but with the variance of centred numbers, in two passes."""
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    lift = (1,) * (x.ndim - 1) + (-1,)
    return scaled * params["scale"].reshape(lift) + params["bias"].reshape(lift)


def logits(decoder_params: Params, hidden: Array) -> Array:
    """Scores ``[..., V]`` of the next token from hidden states ``[..., h]``; tied weights."""
    return hidden @ decoder_params["embedding"]["embedding"].T


def source_memory(params: Params, config: TransformerConfig, source_ids: Array) -> Array:
    """The encoded source ``[B, S, h]``, without dropout."""
    x = embed(params["embedding"], config, source_ids)
    return encode(params["encoder"], config, x, source_ids != PAD_ID)


@dataclasses.dataclass(frozen=True)
class Translator:
    """The encoder-decoder as a ``SplitModel``; batches are ``TranslationBatch``.

    The loss is label-smoothed cross entropy, summed over the target's tokens.
    """

    sizes: TransformerConfig

    @property
    def encoder(self) -> TransformerConfig:
        """Sizes of the encoder."""
        return self.sizes

    @property
    def unsmoothed(self) -> "Translator":
        """The same model, its loss without label smoothing."""
        return Translator(dataclasses.replace(self.sizes, label_smoothing=0.0))

    def init(self, key: Array) -> Params:
        """Fresh parameters of all three parts."""
        return init_params(key, self.sizes)

    def embed(
        self, embedding_params: Params, batch: TranslationBatch, keys: Array | None
    ) -> tuple[Array, Array]:
        """Embedded sources and their mask, without dropout."""
        del keys
        x = embed(embedding_params, self.sizes, batch.source_ids)
        return x, batch.source_ids != PAD_ID

    def losses(
        self, decoder_params: Params, encoded: Array, batch: TranslationBatch, keys: Array | None
    ) -> tuple[Array, Array]:
        """Loss in nats and number of target tokens of every example ``[B]``."""
        target_in, target_out = batch.target_ids[:, :-1], batch.target_ids[:, 1:]
        mask = batch.source_ids != PAD_ID
        hidden = decode(decoder_params, self.sizes, target_in, encoded, mask, keys)
        scores = logits(decoder_params, hidden)
        losses = cross_entropy(scores, target_out, self.sizes.label_smoothing)
        real = target_out != PAD_ID
        return jnp.where(real, losses, 0.0).sum(-1), real.sum(-1).astype(losses.dtype)
