"""Text token by token with cached keys and values: continuations, and translation by beams."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.learning.models.block import Block, MemoryBlock, Norm
from collapipe_jax.learning.models.causal_lm import NOTHING, look_up, next_scores
from collapipe_jax.learning.models.config import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    CausalConfig,
    TransformerConfig,
)
from collapipe_jax.learning.models.layers import Params, bind
from collapipe_jax.learning.models.transformer import embed, logits, source_memory

# Continuations of texts by a decoder-only model, with cached keys and values.


class Sampling(NamedTuple):
    """How the next token is chosen; array values, so that none compiles anew."""

    temperature: Array | float = 0.0  # that scores are divided by; 0 takes the likeliest token
    # Tokens are drawn among the likeliest, the fewest whose probabilities sum up to this share
    # (Holtzman et al. 1904.09751)
    top_p: Array | float = 1.0


_GREEDY = Sampling()


class _Texts(NamedTuple):
    """Carry of the generation, T places a text."""

    step: Array  # [] tokens that every open text has got
    ids: Array  # [B, R] new tokens, NOTHING where there is none
    last: Array  # [B] newest token, not yet seen by the blocks
    finished: Array  # [B] bool
    cache: tuple[Array, Array]  # keys and values [L, B, T, g, d] of all tokens but the last


@functools.partial(jax.jit, static_argnames=("config", "room"))
def generate(
    params: Params,
    config: CausalConfig,
    prompts: Array,
    keys: Array,
    ends: Array,
    *,
    room: int,
    most: Array | int,
    sampling: Sampling = _GREEDY,
    is_piece: Array | None = None,
) -> Array:
    """Continue texts, each until an end token or for ``most`` tokens.

    Args:
      params: of the model.
      config: sizes.
      prompts: ``[B, P]``, at least one token each and ``NOTHING`` behind it. Each P compiles anew.
      keys: of the texts, ``[B]``; a text's tokens depend on its own.
      ends: tokens that end a text, ``[E]``.
      room: R, most tokens that the arrays hold.
      most: tokens to add at most, up to R.
      sampling: how tokens are chosen.
      is_piece: which rows of the table are pieces of a vocabulary, ``[V]``; no other is chosen.

    Returns:
      New tokens ``[B, R]`` int32 without the end, ``NOTHING`` behind them.
    """
    batch, length = prompts.shape
    lengths = jnp.sum(prompts != NOTHING, axis=1)
    shape = config.encoder_blocks, batch, length + room, config.key_value_heads, config.head_size
    cache = jnp.zeros(shape), jnp.zeros(shape)
    positions = jnp.broadcast_to(jnp.arange(length)[None], prompts.shape)
    hidden, cache = _run_blocks(params, config, prompts, positions, cache)
    hidden = jnp.take_along_axis(hidden, lengths[:, None, None] - 1, axis=1)[:, 0]

    def choose(hidden: Array, step: Array) -> Array:
        scores = next_scores(params["decoder"], config, hidden)
        if is_piece is not None:
            scores = jnp.where(is_piece[None], scores, -jnp.inf)
        return _choose(scores, jax.vmap(jax.random.fold_in, (0, None))(keys, step), sampling)

    def advance(texts: _Texts) -> _Texts:
        # What padded places of a prompt left in the cache is overwritten before it is read.
        place = (lengths + texts.step - 1)[:, None]
        hidden, cache = _run_blocks(params, config, texts.last[:, None], place, texts.cache)
        return _append(texts._replace(cache=cache), choose(hidden[:, 0], texts.step), ends)

    none = jnp.full((batch, room), NOTHING)
    empty = _Texts(jnp.int32(0), none, none[:, 0], jnp.zeros(batch, bool), cache)
    start = _append(empty, choose(hidden, jnp.int32(0)), ends)

    def continues(texts: _Texts) -> Array:
        return (texts.step < most) & ~texts.finished.all()

    ids = jax.lax.while_loop(continues, advance, start).ids
    return jnp.where(jnp.arange(room)[None] < most, ids, NOTHING)


def _append(texts: _Texts, chosen: Array, ends: Array) -> _Texts:
    """The texts with their next tokens ``[B]``."""
    finished = texts.finished | (chosen[:, None] == ends[None]).any(axis=1)
    shown = jnp.where(finished, NOTHING, chosen)
    ids = texts.ids.at[:, texts.step].set(shown)
    return texts._replace(step=texts.step + 1, ids=ids, last=chosen, finished=finished)


def _run_blocks(
    params: Params, config: CausalConfig, ids: Array, positions: Array, cache: tuple[Array, Array]
) -> tuple[Array, tuple[Array, Array]]:
    """The last block's output ``[B, Q, h]`` of tokens at their positions, and the longer cache.

    A token reads the cache up to its own place.
    """
    rows = jnp.arange(len(ids))[:, None]
    allowed = jnp.arange(cache[0].shape[2])[None, None] <= positions[:, :, None]

    def block(x: Array, layer: tuple[Any, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        block_params, *known = layer
        module: Block = bind(Block, config, block_params)
        remember = _remember(known, rows, positions)
        return module(x, allowed, positions=positions, remember=remember)

    x = look_up(params["embedding"], ids)
    return jax.lax.scan(block, x, (params["encoder"], *cache))


def _remember(
    known: list[Array], rows: Array, positions: Array
) -> Callable[..., tuple[Array, Array]]:
    """What writes new keys and values into a block's cache."""

    def write(key: Array, value: Array) -> tuple[Array, Array]:
        old_keys, old_values = known
        return old_keys.at[rows, positions].set(key), old_values.at[rows, positions].set(value)

    return write


def _choose(scores: Array, keys: Array, sampling: Sampling) -> Array:
    """A token each ``[B]`` int32 from scores ``[B, V]``."""

    def likeliest() -> Array:
        return scores.argmax(axis=1)

    def drawn() -> Array:
        warm = scores / sampling.temperature
        order = jnp.argsort(-warm, axis=1)
        sorted_scores = jnp.take_along_axis(warm, order, axis=1)
        shares = jax.nn.softmax(sorted_scores, axis=1)
        # Share of the likelier ones: the token that reaches `top_p` is still in.
        before = jnp.cumsum(shares, axis=1) - shares
        kept = jnp.where(before < sampling.top_p, sorted_scores, -jnp.inf)
        rank = jax.vmap(jax.random.categorical)(keys, kept)
        return jnp.take_along_axis(order, rank[:, None], axis=1)[:, 0]

    chosen = jax.lax.cond(jnp.asarray(sampling.temperature) > 0.0, drawn, likeliest)
    return chosen.astype(jnp.int32)


class _Beams(NamedTuple):
    """Carry of the beam search, W hypotheses an example, ``Q = B W`` in all."""

    position: Array  # [] of the last token
    ids: Array  # [B, W, T + 1], from the start token on
    total: Array  # [B, W] log-probability
    length: Array  # [B, W] tokens, end included and start not
    finished: Array  # [B, W] bool
    keys: Array  # [decoder_blocks, Q, T, g, d], of all tokens but the last
    values: Array  # [decoder_blocks, Q, T, g, d]


@functools.partial(jax.jit, static_argnames=("config", "beams"))
def beam_search(
    params: Params,
    config: TransformerConfig,
    source_ids: Array,
    *,
    beams: int = 4,
    length_penalty: Array | float = 0.6,
) -> tuple[Array, Array]:
    """Beam search: greedy with one beam, exact once the beams hold every hypothesis.

    A hypothesis of n tokens, end included, scores ``log p / ((5 + n) / 6)^a`` with the
    penalty a (Wu et al. 1609.08144). Finished hypotheses stay in the beam and compete.
    An example is done when no open hypothesis can still overtake its best one.

    Args:
      params, config: of the model.
      source_ids: ``[B, S]``.
      beams: ``W``, hypotheses kept for an example, at least 1 (static).
      length_penalty: ``a`` >= 0 (an array value); 0 ranks by log-probability alone.

    Returns:
      ``(ids [B, T] int32, score [B])`` of the best hypothesis of each example, ``T`` of the
      configuration: tokens without a start token, an end token, then padding. A sentence that
      never ends has no end token.
    """
    batch, length = len(source_ids), config.target_length
    memory = _project_memory(params, config, source_ids, beams)

    def continues(state: _Beams) -> Array:
        score = state.total / _penalty(state.length, length_penalty)
        best_done = jnp.where(state.finished, score, -jnp.inf).max(1)
        # Log-probabilities only fall, and the longest text is penalised most.
        bound = jnp.where(state.finished, -jnp.inf, state.total).max(1)
        bound = bound / _penalty(jnp.int32(length), length_penalty)
        return (state.position < length) & (bound > best_done).any()

    def body(state: _Beams) -> _Beams:
        keys, values, scores = _next_scores(params["decoder"], config, memory, state)
        log_p = jax.nn.log_softmax(scores).reshape(batch, beams, -1)
        return _keep_best(state._replace(keys=keys, values=values), log_p, length_penalty)

    heads = config.groups, config.head_width
    empty = jnp.zeros((config.decoder_blocks, batch * beams, length, *heads))
    start = _Beams(
        position=jnp.int32(0),
        ids=jnp.full((batch, beams, length + 1), PAD_ID, jnp.int32).at[:, :, 0].set(BOS_ID),
        # One hypothesis to start from: copies of it would fill the beam.
        total=jnp.where(jnp.arange(beams)[None] == 0, jnp.zeros((batch, 1)), -jnp.inf),
        length=jnp.zeros((batch, beams), jnp.int32),
        finished=jnp.zeros((batch, beams), bool),
        keys=empty,
        values=empty,
    )
    end = jax.lax.while_loop(continues, body, start)
    score = end.total / _penalty(end.length, length_penalty)
    best = score.argmax(1)[:, None]
    ids = jnp.take_along_axis(end.ids, best[:, :, None], axis=1)[:, 0, 1:]
    return ids, jnp.take_along_axis(score, best, axis=1)[:, 0]


def _penalty(length: Array, strength: Array | float) -> Array:
    return ((5.0 + length) / 6.0) ** strength


def _keep_best(state: _Beams, log_p: Array, length_penalty: Array | float) -> _Beams:
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
        ids=ids.at[:, :, state.position + 1].set(token),
        total=jnp.take_along_axis(total.reshape(batch, -1), chosen, axis=1),
        length=jnp.take_along_axis(length, parent, axis=1),
        finished=jnp.take_along_axis(state.finished, parent, axis=1) | (token == EOS_ID),
        keys=state.keys[:, rows],
        values=state.values[:, rows],
    )


def _project_memory(
    params: Params, config: TransformerConfig, source_ids: Array, beams: int
) -> tuple[Array, Array, Array]:
    """The encoded source for each hypothesis, projected once for every decoder block.

    Returns:
      Keys and values ``[decoder_blocks, Q, S, g, d]``, and where they may be read ``[Q, 1, S]``.
    """
    decoder, mask = params["decoder"], source_ids != PAD_ID
    memory = source_memory(params, config, source_ids)
    memory = bind(Norm, config, decoder["memory_norm"])(memory)
    projected = jax.lax.map(
        lambda block: bind(MemoryBlock, config, block).memory_attention.project(memory),
        decoder["blocks"],
    )
    keys, values = (jnp.repeat(array, beams, axis=1) for array in projected)
    return keys, values, jnp.repeat(mask, beams, axis=0)[:, None, :]


def _next_scores(
    decoder_params: Params, config: TransformerConfig, memory: tuple, state: _Beams
) -> tuple[Array, Array, Array]:
    """Keys and values with those of the last tokens, and scores ``[Q, V]`` of the next ones."""
    position, (memory_keys, memory_values, memory_mask) = state.position, memory
    seen = (jnp.arange(config.target_length) <= position)[None, None, :]
    last = state.ids[:, :, position].reshape(-1, 1)
    x = embed(decoder_params["embedding"], config, last, position)

    def block(x: Array, layer: tuple) -> tuple[Array, tuple[Array, Array]]:
        params, keys, values, *source = layer

        def remember(key: Array, value: Array) -> tuple[Array, Array]:
            return keys.at[:, position].set(key[:, 0]), values.at[:, position].set(value[:, 0])

        module = bind(MemoryBlock, config, params)
        return module(x, seen, memory=(*source, memory_mask), remember=remember)

    layers = decoder_params["blocks"], state.keys, state.values, memory_keys, memory_values
    x, (keys, values) = jax.lax.scan(block, x, layers)
    scores = logits(decoder_params, config, bind(Norm, config, decoder_params["norm"])(x)[:, 0])
    never = (jnp.arange(scores.shape[-1]) == PAD_ID) | (jnp.arange(scores.shape[-1]) == BOS_ID)
    return keys, values, jnp.where(never[None], -jnp.inf, scores)
