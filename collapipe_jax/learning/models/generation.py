"""Continuations of texts by a decoder-only model, with cached keys and values."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.learning.models.block import Block
from collapipe_jax.learning.models.causal_lm import NOTHING, look_up, next_scores
from collapipe_jax.learning.models.config import CausalConfig
from collapipe_jax.learning.models.layers import Params, bind


class Sampling(NamedTuple):
    """How the next token is chosen; array values, so that none compiles anew."""

    temperature: Array | float = 0.0  # that scores are divided by; 0 takes the likeliest token
    # Tokens are drawn among the likeliest, the fewest whose probabilities sum up to this share
    # (Holtzman et al. 1904.09751)
    top_p: Array | float = 1.0


GREEDY = Sampling()


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
    sampling: Sampling = GREEDY,
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
