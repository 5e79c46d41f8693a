"""Chains of tags against sums and maxima over all sequences."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from collapipe_jax.learning.models.bert import (
    allowed_transitions,
    chain_losses,
    likeliest_tags,
)

ROWS, WORDS, TAGS = 6, 5, 3
likeliest = jax.jit(likeliest_tags)


@pytest.fixture(scope="module")
def chain():
    """Emissions, transitions, tags, and scored positions; the first row has none, the last all."""
    rng = np.random.default_rng(0)
    scored = rng.random((ROWS, WORDS)) < 0.6
    scored[0], scored[-1] = False, True
    emissions = rng.standard_normal((ROWS, WORDS, TAGS))
    return emissions, rng.standard_normal((TAGS, TAGS)), rng.integers(0, TAGS, scored.shape), scored


def sequences(row, chain):
    """All sequences of a row's scored words and their scores."""
    emissions, transitions, _, scored = chain
    places = np.flatnonzero(scored[row])
    found = list(itertools.product(range(TAGS), repeat=len(places)))
    scores = [
        sum(emissions[row, place, tag] for place, tag in zip(places, each, strict=True))
        + sum(transitions[pair] for pair in itertools.pairwise(each))
        for each in found
    ]
    return found, np.array(scores)


def test_the_loss_is_that_of_all_sequences(chain):
    with jax.enable_x64(True):
        losses = np.asarray(jax.jit(chain_losses)(*map(jnp.asarray, chain)))
    assert losses[0] == 0.0
    for row in range(1, ROWS):
        found, scores = sequences(row, chain)
        own = found.index(tuple(chain[2][row, chain[3][row]]))
        np.testing.assert_allclose(losses[row], np.log(np.exp(scores).sum()) - scores[own])


def test_its_slope_is_expected_less_seen_transitions(chain):
    emissions, transitions, tags, scored = map(jnp.asarray, chain)
    loss = jax.grad(lambda t: chain_losses(emissions, t, tags, scored).sum())
    expected = np.zeros((TAGS, TAGS))
    for row in range(1, ROWS):
        found, scores = sequences(row, chain)
        chances = np.exp(scores) / np.exp(scores).sum()
        own = found.index(tuple(chain[2][row, chain[3][row]]))
        chances[own] -= 1.0
        for each, chance in zip(found, chances, strict=True):
            for pair in itertools.pairwise(each):
                expected[pair] += chance
    np.testing.assert_allclose(jax.jit(loss)(transitions), expected, atol=1e-5)


@pytest.mark.parametrize("forbidden", [(), ((0, 1), (1, 1), (2, 0))])
def test_the_likeliest_sequence_is_the_best_of_all(chain, forbidden):
    emissions, transitions, _, scored = map(jnp.asarray, chain)
    allowed = allowed_transitions(transitions, forbidden)
    tags = np.asarray(likeliest(emissions, allowed, scored))
    for row in range(1, ROWS):
        found, scores = sequences(row, (chain[0], np.asarray(allowed), *chain[2:]))
        best = found[scores.argmax()]
        assert tuple(tags[row, chain[3][row]]) == best
        assert not set(itertools.pairwise(best)) & set(forbidden)
