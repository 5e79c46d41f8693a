"""Translation by beam search with cached keys and values."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.learning.models.block import MemoryBlock, Norm
from collapipe_jax.learning.models.config import BOS_ID, EOS_ID, PAD_ID, TransformerConfig
from collapipe_jax.learning.models.layers import Params, bind
from collapipe_jax.learning.models.transformer import embed, logits, source_memory


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
