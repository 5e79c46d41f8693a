import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.drawn_parameters import drawn

from collapipe_jax.learning.models.config import TransformerConfig
from collapipe_jax.learning.models.decoding import beam_search
from collapipe_jax.learning.models.transformer import decode, init_params, logits, source_memory

CONFIG = TransformerConfig(
    vocabulary_size=6,
    width=8,
    heads=2,
    feed_forward_width=16,
    encoder_blocks=1,
    decoder_blocks=2,
    source_length=4,
    target_length=3,
)
LONGER = dataclasses.replace(CONFIG, target_length=7)
SOURCE = jnp.array([[4, 5, 3, 4], [5, 5, 0, 0], [3, 0, 0, 0], [0, 0, 0, 0]], jnp.int32)
LENGTH = 3


def make_params(seed):
    # Sharper than at initialisation, so that hypotheses differ clearly and some end.
    params = drawn(lambda key: init_params(key, CONFIG), seed=seed)
    table = np.array(params["decoder"]["embedding"]["embedding"])
    table[2] += table[3:].mean(0) + 0.2 * seed
    table *= 3
    return params | {"decoder": params["decoder"] | {"embedding": {"embedding": table}}}


@jax.jit
def log_probabilities(params, source_ids, target_in):
    """Uncached decoder; padding and start cannot be said."""
    memory = source_memory(params, CONFIG, source_ids)
    hidden = decode(params["decoder"], CONFIG, target_in, memory, source_ids != 0)
    scores = logits(params["decoder"], CONFIG, hidden).at[..., :2].set(-jnp.inf)
    return jax.nn.log_softmax(scores)


def greedy_by_hand(params, row):
    ids = [1]
    for step in range(LENGTH):
        padded = jnp.array([ids + [0] * (LENGTH - len(ids))])
        ids.append(int(log_probabilities(params, row[None], padded)[0, step].argmax()))
        if ids[-1] == 2:
            break
    return ids[1:] + [0] * (LENGTH + 1 - len(ids))


def hypotheses():
    """All texts of at most LENGTH tokens, padded after the end token."""
    texts = {()}
    for tokens in itertools.product([2, 3, 4, 5], repeat=LENGTH):
        end = tokens.index(2) + 1 if 2 in tokens else LENGTH
        texts.add(tokens[:end] + (0,) * (LENGTH - end))
    return np.array(sorted(texts - {()}))


@pytest.mark.parametrize("penalty", [0.0, 0.6])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_beam_equals_the_uncached_greedy_loop_and_stops_at_the_end(seed, penalty):
    params = make_params(seed)
    ids = np.asarray(beam_search(params, CONFIG, SOURCE, beams=1, length_penalty=penalty)[0])
    for row, expected in zip(ids, (greedy_by_hand(params, s) for s in SOURCE), strict=True):
        assert row.tolist() == expected


@pytest.mark.slow
def test_an_end_token_is_followed_by_padding_only():
    ended = 0
    for seed in range(3):
        for row in np.asarray(beam_search(make_params(seed), LONGER, SOURCE)[0]):
            assert not np.isin(row, [1]).any()
            if 2 in row:
                ended += 1
                end = row.tolist().index(2)
                assert (row[end + 1 :] == 0).all()
                assert (row[:end] > 2).all()
    assert ended > 0


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_beam_that_holds_everything_is_exhaustive_search(seed, penalty):
    params = make_params(seed)
    texts = hypotheses()
    lengths = (texts != 0).sum(1)
    got, score = beam_search(params, CONFIG, SOURCE, beams=4**LENGTH, length_penalty=penalty)
    greedy = np.asarray(beam_search(params, CONFIG, SOURCE, beams=1, length_penalty=0.0)[0])
    for b in range(len(SOURCE)):
        source = jnp.broadcast_to(SOURCE[b], (len(texts), 4))
        target_in = jnp.concatenate([jnp.ones((len(texts), 1), int), texts[:, :-1]], axis=1)
        log_p = np.asarray(log_probabilities(params, source, target_in))
        each = np.take_along_axis(log_p, texts[:, :, None], axis=2)[:, :, 0]
        total = np.where(texts != 0, each, 0.0).sum(1)
        penalised = total / ((5 + lengths) / 6) ** penalty
        np.testing.assert_allclose(score[b], penalised.max(), rtol=1e-4)
        np.testing.assert_array_equal(got[b], texts[penalised.argmax()])
        if penalty == 0.0:
            greedy_total = total[(texts == greedy[b]).all(1)]
            assert score[b] >= greedy_total - 1e-5
