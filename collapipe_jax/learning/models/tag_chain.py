"""A linear-chain conditional random field over the tags of a text, and its likeliest sequence.

The score of a sequence of tags is the sum of each word's own score (emission) and of a score of
every tag after the one before it (transition). Words are the scored positions of a row; others,
such as further pieces of a word, are passed over. The first word has no transition: a row may
begin within an entity.

Source: Lafferty, McCallum and Pereira, Conditional random fields (ICML 2001); Viterbi, Error
bounds for convolutional codes (1967).
"""

from collections.abc import Collection

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

_FORBIDDEN_SCORE = -1e4
"""Finite, so that differences of scores stay numbers."""


def allowed_transitions(transitions: Array, forbidden: Collection[tuple[int, int]]) -> Array:
    """Scores ``[T, T]`` from tag to tag, with pairs of numbers that must not follow each other."""
    blocked = np.zeros(transitions.shape, bool)
    for before, after in forbidden:
        blocked[before, after] = True
    return jnp.where(blocked, _FORBIDDEN_SCORE, transitions)


def chain_losses(emissions: Array, transitions: Array, tags: Array, scored: Array) -> Array:
    """Negative log likelihood of the tags of each row in nats, ``[B]``.

    The logarithm of the sum over all sequences comes from the forward algorithm.

    Args:
      emissions: ``[B, S, T]``.
      transitions: ``[T, T]``.
      tags: numbers ``[B, S]``, read where scored.
      scored: ``[B, S]``; a row without any position has the loss 0.
    """

    def step(carry: tuple, inputs: tuple) -> tuple[tuple, None]:
        log_sums, path, previous, begun = carry
        emission, tag, now = inputs
        own = jnp.take_along_axis(emission, tag[:, None], axis=1)[:, 0]
        path_after = path + own + jnp.where(begun, transitions[previous, tag], 0.0)
        arrived = jax.nn.logsumexp(log_sums[:, :, None] + transitions[None], axis=1)
        sums_after = emission + jnp.where(begun[:, None], arrived, 0.0)
        log_sums = jnp.where(now[:, None], sums_after, log_sums)
        path, previous = jnp.where(now, path_after, path), jnp.where(now, tag, previous)
        return (log_sums, path, previous, begun | now), None

    rows, _, labels = emissions.shape
    start = (jnp.zeros((rows, labels), emissions.dtype), jnp.zeros(rows, emissions.dtype))
    start += (jnp.zeros(rows, tags.dtype), jnp.zeros(rows, bool))
    inputs = jnp.moveaxis(emissions, 1, 0), tags.T, scored.T
    (log_sums, path, _, begun), _ = jax.lax.scan(step, start, inputs)
    return jnp.where(begun, jax.nn.logsumexp(log_sums, axis=1) - path, 0.0)


def likeliest_tags(emissions: Array, transitions: Array, scored: Array) -> Array:
    """Tags ``[B, S]`` of the sequence with the highest score, by Viterbi's algorithm.

    Arguments as of ``chain_losses``. Values at positions that are not scored mean nothing.
    """
    labels = emissions.shape[-1]

    def forward(carry: tuple, inputs: tuple) -> tuple[tuple, Array]:
        best, begun = carry
        emission, now = inputs
        arriving = best[:, :, None] + transitions[None]
        moves = (begun & now)[:, None]
        after = emission + jnp.where(moves, arriving.max(1), 0.0)
        came_from = jnp.where(moves, arriving.argmax(1), jnp.arange(labels)[None])
        return (jnp.where(now[:, None], after, best), begun | now), came_from

    def backward(tag: Array, came_from: Array) -> tuple[Array, Array]:
        before = jnp.take_along_axis(came_from, tag[:, None], axis=1)[:, 0]
        return before, tag

    start = jnp.zeros((len(emissions), labels), emissions.dtype), jnp.zeros(len(emissions), bool)
    inputs = jnp.moveaxis(emissions, 1, 0), scored.T
    (best, _), came_from = jax.lax.scan(forward, start, inputs)
    _, tags = jax.lax.scan(backward, best.argmax(-1), came_from, reverse=True)
    return tags.T
