"""Shorter rows hold the same texts: losses do not change."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drawn_parameters import drawn

from collapipe_jax.learning.models.bert import (
    UNLABELLED,
    BertWithHead,
    LabelledBatch,
    MaskedBatch,
    MaskedBert,
)
from collapipe_jax.learning.models.config import BertConfig, TransformerConfig
from collapipe_jax.learning.models.layers import filled_share, shortened
from collapipe_jax.learning.models.split_model import example_losses
from collapipe_jax.learning.models.transformer import TranslationBatch, Translator

SIZES = {"width": 8, "heads": 2, "feed_forward_width": 16, "encoder_blocks": 2}
BERT = BertConfig(vocabulary_size=20, positions=12, ngram_buckets=5, **SIZES)
TRANSLATOR = TransformerConfig(
    vocabulary_size=20, decoder_blocks=1, source_length=12, target_length=10, **SIZES
)


losses_of = jax.jit(example_losses, static_argnums=0)


def padded(rng, lengths, row):
    ids = rng.integers(4, 20, (len(lengths), row))
    return np.where(np.arange(row) < np.array(lengths)[:, None], ids, 0)


def example(kind):
    """A model, and a batch whose rows are at most half full; of BERT with all its variants."""
    rng, lengths = np.random.default_rng(0), [3, 6, 1]
    ids = padded(rng, lengths, 12)
    if kind == "translation":
        return Translator(TRANSLATOR), TranslationBatch(ids, padded(rng, [5, 2, 4], 11))
    ngrams = np.where(ids[..., None] > 0, rng.integers(0, 6, (3, 12, 4)), 0)
    if kind == "masked_lm":
        places = np.array([[1, 2], [4, 5], [0, 0]])
        wanted = np.array([[5, 6], [7, UNLABELLED], [8, UNLABELLED]])
        return MaskedBert(sizes=BERT), MaskedBatch(ids, places, wanted, ngrams)
    pools = kind == "classification"
    labels = np.where(ids > 0, ids % 3, UNLABELLED)
    variant = {"pooling": "mean"} if pools else {"head": "crf"}
    model = BertWithHead(sizes=BERT, labels=3, pools=pools, **variant)
    return model, LabelledBatch(ids, labels[:, 0] if pools else labels, ngrams)


@pytest.mark.parametrize(
    "kind",
    [
        "tagging",
        "masked_lm",
        *(pytest.param(k, marks=pytest.mark.slow) for k in ("classification", "translation")),
    ],
)
def test_losses_are_those_of_whole_rows(kind):
    model, batch = example(kind)
    params = drawn(model.init)
    short = model.shortened(batch, float(model.filled(batch).max()))
    assert short[0].shape == (3, 6)
    whole, cut = (losses_of(model, params, each) for each in (batch, short))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5), whole, cut)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=5), st.integers(1, 4))
def test_the_length_of_a_bucket_holds_all(lengths, count):
    ids = padded(np.random.default_rng(1), lengths, 7)
    share = filled_share(ids)
    np.testing.assert_allclose(share * 7, lengths)
    bucket = max(1, int(np.ceil(share.max() * count - 1e-9)))
    rows = shortened(ids, bucket / count)
    assert (rows > 0).sum() == sum(lengths)


def test_rows_within_a_row_keep_their_axes():
    ids = np.array([[[1, 0, 0, 0]], [[5, 0, 6, 0]]])  # a gap counts as filled
    np.testing.assert_array_equal(filled_share(ids), [[0.25], [0.75]])
    assert shortened(ids, 0.5).shape == (2, 1, 2)
