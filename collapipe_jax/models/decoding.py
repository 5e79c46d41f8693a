"""Translation by greedy and beam search with cached keys and values."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.errors import InputError
from collapipe_jax.models.config import BOS_ID, EOS_ID, PAD_ID, TransformerConfig
from collapipe_jax.models.layers import Params, bind
from collapipe_jax.models.transformer import DecoderBlock, embed, layer_norm, logits, source_memory


class _Cache(NamedTuple):
    """Projected keys and values of every decoder block, ``Q`` hypotheses at once."""

    key: Array  # [decoder_blocks, Q, T, h]
    value: Array  # [decoder_blocks, Q, T, h]
    memory_key: Array  # [decoder_blocks, Q, S, h]
    memory_value: Array  # [decoder_blocks, Q, S, h]


class _Greedy(NamedTuple):
    """Carry of the greedy search."""

    position: Array  # []
    ids: Array  # [B, T]
    last: Array  # [B]
    finished: Array  # [B] bool
    cache: _Cache


class _Beams(NamedTuple):
    """Carry of the beam search, W hypotheses an example."""

    position: Array  # []
    ids: Array  # [B, W, T]
    total: Array  # [B, W] log-probability
    length: Array  # [B, W] tokens, end included
    finished: Array  # [B, W] bool
    cache: _Cache  # Q = B W


@functools.partial(jax.jit, static_argnames=("config", "max_length"))
def greedy_decode(
    params: Params, config: TransformerConfig, source_ids: Array, max_length: int | None = None
) -> Array:
    """Greedy search: the likeliest next token until the end token.

    Args:
      params, config: of the model.
      source_ids: ``[B, S]``.
      max_length: ``T``, most tokens, end included (static); ``config.target_length`` when None.

    Returns:
      ``[B, T]`` int32 without a start token: tokens, an end token, then padding. A sentence that
      never ends has no end token.
    """
    length = config.target_length if max_length is None else max_length
    batch, mask = source_ids.shape[0], source_ids != PAD_ID

    def continues(state: _Greedy) -> Array:
        return (state.position < length) & ~state.finished.all()

    def body(state: _Greedy) -> _Greedy:
        cache, scores = _next_scores(
            params["decoder"], config, state.cache, mask, state.last, state.position
        )
        token = jnp.where(state.finished, PAD_ID, scores.argmax(-1).astype(jnp.int32))
        return _Greedy(
            position=state.position + 1,
            ids=state.ids.at[:, state.position].set(token),
            last=token,
            finished=state.finished | (token == EOS_ID),
            cache=cache,
        )

    start = _Greedy(
        position=jnp.int32(0),
        ids=jnp.full((batch, length), PAD_ID, jnp.int32),
        last=jnp.full(batch, BOS_ID, jnp.int32),
        finished=jnp.zeros(batch, bool),
        cache=_start_cache(params, config, source_ids, length, 1),
    )
    return jax.lax.while_loop(continues, body, start).ids


def beam_search(
    params: Params,
    config: TransformerConfig,
    source_ids: Array,
    *,
    beams: int = 4,
    length_penalty: float = 0.6,
    max_length: int | None = None,
) -> tuple[Array, Array]:
    """Beam search; exact once the beams hold every hypothesis.

    A hypothesis of n tokens, end included, scores ``log p / ((5 + n) / 6)^a`` with the
    penalty a (Wu et al. 1609.08144). Finished hypotheses stay in the beam and compete.
    An example is done when no open hypothesis can still overtake its best one.

    Args:
      params, config, source_ids, max_length: as for ``greedy_decode``.
      beams: ``W``, hypotheses kept for an example (static).
      length_penalty: ``a`` >= 0 (an array value); 0 ranks by log-probability alone.

    Returns:
      ``(ids [B, T] int32, score [B])`` of the best hypothesis of each example.

    Raises:
      InputError: on fewer than 1 beam or a negative penalty.
    """
    if beams < 1:
        raise InputError("evaluation.beams", beams, "keeps no hypothesis", "Give at least 1")
    if not length_penalty >= 0.0:
        raise InputError(
            "evaluation.length_penalty", length_penalty, "is negative", "Give 0 or more"
        )
    length = config.target_length if max_length is None else max_length
    return _beam_search(params, config, source_ids, jnp.float32(length_penalty), beams, length)


@functools.partial(jax.jit, static_argnames=("config", "beams", "length"))
def _beam_search(
    params: Params,
    config: TransformerConfig,
    source_ids: Array,
    length_penalty: Array,
    beams: int,
    length: int,
) -> tuple[Array, Array]:
    batch = source_ids.shape[0]
    mask = jnp.repeat(source_ids != PAD_ID, beams, axis=0)

    def continues(state: _Beams) -> Array:
        score = state.total / _penalty(state.length, length_penalty)
        best_done = jnp.where(state.finished, score, -jnp.inf).max(1)
        # Log-probabilities only fall, and the longest text is penalised most.
        bound = jnp.where(state.finished, -jnp.inf, state.total).max(1)
        bound = bound / _penalty(jnp.int32(length), length_penalty)
        return (state.position < length) & (bound > best_done).any()

    def body(state: _Beams) -> _Beams:
        last = jnp.where(
            state.position == 0, BOS_ID, state.ids[:, :, jnp.maximum(state.position - 1, 0)]
        )
        cache, scores = _next_scores(
            params["decoder"], config, state.cache, mask, last.reshape(-1), state.position
        )
        log_p = jax.nn.log_softmax(scores).reshape(batch, beams, -1)
        return _keep_best(state, cache, log_p, length_penalty)

    start = _Beams(
        position=jnp.int32(0),
        ids=jnp.full((batch, beams, length), PAD_ID, jnp.int32),
        # One hypothesis to start from: copies of it would fill the beam.
        total=jnp.where(jnp.arange(beams)[None] == 0, jnp.zeros((batch, 1)), -jnp.inf),
        length=jnp.zeros((batch, beams), jnp.int32),
        finished=jnp.zeros((batch, beams), bool),
        cache=_start_cache(params, config, source_ids, length, beams),
    )
    end = jax.lax.while_loop(continues, body, start)
    score = end.total / _penalty(end.length, length_penalty)
    best = score.argmax(1)[:, None]
    ids = jnp.take_along_axis(end.ids, best[:, :, None], axis=1)[:, 0]
    return ids, jnp.take_along_axis(score, best, axis=1)[:, 0]


def _penalty(length: Array, strength: Array) -> Array:
    return ((5.0 + length) / 6.0) ** strength


def _keep_best(state: _Beams, cache: _Cache, log_p: Array, length_penalty: Array) -> _Beams:
    """Extend every hypothesis by every token, ``log_p [B, W, V]``, and keep W of them."""
    batch, beams, vocabulary_size = log_p.shape
    stay = jnp.where(jnp.arange(vocabulary_size) == PAD_ID, 0.0, -jnp.inf)[None, None]
    total = state.total[:, :, None] + jnp.where(state.finished[:, :, None], stay, log_p)
    length = state.length + ~state.finished
    score = (total / _penalty(length, length_penalty)[:, :, None]).reshape(batch, -1)
    chosen = jax.lax.top_k(score, beams)[1]
    parent, token = chosen // vocabulary_size, (chosen % vocabulary_size).astype(jnp.int32)
    ids = jnp.take_along_axis(state.ids, parent[:, :, None], axis=1)
    rows = (jnp.arange(batch)[:, None] * beams + parent).reshape(-1)
    return _Beams(
        position=state.position + 1,
        ids=ids.at[:, :, state.position].set(token),
        total=jnp.take_along_axis(total.reshape(batch, -1), chosen, axis=1),
        length=jnp.take_along_axis(length, parent, axis=1),
        finished=jnp.take_along_axis(state.finished, parent, axis=1) | (token == EOS_ID),
        # The memory's rows are the same for all hypotheses of an example.
        cache=cache._replace(key=cache.key[:, rows], value=cache.value[:, rows]),
    )


def _start_cache(
    params: Params, config: TransformerConfig, source_ids: Array, length: int, beams: int
) -> _Cache:
    """Encode the source and project it once for every decoder block."""
    decoder = params["decoder"]
    memory = source_memory(params, config, source_ids)
    memory = layer_norm(decoder["memory_norm"], memory)

    def project(block: Params) -> tuple[Array, Array]:
        attention = bind(DecoderBlock, config, block).memory_attention
        return attention.key(memory), attention.value(memory)

    keys, values = jax.lax.map(project, decoder["blocks"])
    rows = source_ids.shape[0] * beams
    empty = jnp.zeros((config.decoder_blocks, rows, length, config.width), memory.dtype)
    return _Cache(empty, empty, jnp.repeat(keys, beams, axis=1), jnp.repeat(values, beams, axis=1))


def _next_scores(
    decoder_params: Params,
    config: TransformerConfig,
    cache: _Cache,
    memory_mask: Array,
    tokens: Array,
    position: Array,
) -> tuple[_Cache, Array]:
    """Scores ``[Q, V]`` of the token after ``tokens [Q]``, which stand at ``position []``."""
    seen = (jnp.arange(cache.key.shape[2]) <= position)[None, None, :]
    x = embed(decoder_params["embedding"], config, tokens[:, None], position)

    def block(x: Array, layer: tuple[Params, _Cache]) -> tuple[Array, tuple]:
        params, own = layer
        module = bind(DecoderBlock, config, params)
        normed = module.attention_norm(x)
        key = own.key.at[:, position].set(module.attention.key(normed)[:, 0])
        value = own.value.at[:, position].set(module.attention.value(normed)[:, 0])
        x = x + module.attention.attend(normed, key, value, seen)
        x = x + module.memory_attention.attend(
            module.memory_attention_norm(x),
            own.memory_key,
            own.memory_value,
            memory_mask[:, None, :],
        )
        return x + module.feed_forward(module.feed_forward_norm(x)), (key, value)

    x, (keys, values) = jax.lax.scan(block, x, (decoder_params["blocks"], cache))
    scores = logits(decoder_params, layer_norm(decoder_params["norm"], x)[:, 0])
    never = (jnp.arange(scores.shape[-1]) == PAD_ID) | (jnp.arange(scores.shape[-1]) == BOS_ID)
    return cache._replace(key=keys, value=values), jnp.where(never[None], -jnp.inf, scores)
