"""Loss and scores of a translator on held-out pairs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.tiny_corpora import load_data

from collapipe_jax.learning.models.config import TransformerConfig
from collapipe_jax.learning.models.decoding import beam_search
from collapipe_jax.learning.models.transformer import (
    TranslationBatch,
    Translator,
    decode,
    init_params,
    logits,
    source_memory,
)
from collapipe_jax.learning.tasks import task as held_out
from collapipe_jax.learning.tasks import translation
from collapipe_jax.learning.tasks.scores import bleu
from collapipe_jax.learning.tasks.task import held_out_loss
from collapipe_jax.learning.tasks.translation import (
    Translation,
)

CONFIG = TransformerConfig(
    vocabulary_size=120,
    width=16,
    heads=2,
    feed_forward_width=32,
    encoder_blocks=1,
    decoder_blocks=1,
    source_length=40,
    target_length=48,
    dropout_rate=0.3,
    label_smoothing=0.2,
)

MODEL = Translator(CONFIG)
BATCH = 4
FIRST = slice(0, 2 * BATCH + 3)  # two full batches and a rest


@pytest.fixture(scope="module")
def data():
    return load_data(
        Translation,
        corpus="synthetic",
        reverse=False,
        pairs=120,
        validation_pairs=10,
        test_pairs=20,
        vocabulary_size=CONFIG.vocabulary_size,
        source_length=CONFIG.source_length,
        target_length=CONFIG.target_length,
    )


@pytest.fixture(scope="module")
def params():
    # Looks at its source more than at initialisation, so that translations differ.
    params = jax.jit(init_params, static_argnums=1)(jax.random.key(1), CONFIG)
    blocks = params["decoder"]["blocks"]
    attentive = jax.tree.map(lambda leaf: 8.0 * leaf, blocks["memory_attention"])
    blocks = blocks | {"memory_attention": attentive}
    return params | {"decoder": params["decoder"] | {"blocks": blocks}}


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(held_out, "_BATCH", BATCH)


def some(arrays, rows=FIRST):
    return TranslationBatch(arrays.source_ids[rows], arrays.target_ids[rows])


def objective(data):
    return Translation(model=MODEL, data=data, beams=2, length_penalty=0.6)


@jax.jit
def scores(params, source, target):
    memory = source_memory(params, CONFIG, source)
    return logits(
        params["decoder"],
        CONFIG,
        decode(params["decoder"], CONFIG, target[:, :-1], memory, source != 0),
    )


def log_likelihoods(params, arrays):
    """Log-probability of every target token, 0 where padded, straight from the definition."""
    found = np.asarray(scores(params, *map(jnp.asarray, arrays)), np.float64)
    log_p = found - np.log(np.exp(found).sum(-1, keepdims=True))
    wanted = arrays.target_ids[:, 1:]
    found = np.take_along_axis(log_p, wanted[..., None], axis=-1)[..., 0]
    return np.where(wanted != 0, found, 0.0), (wanted != 0).sum()


@pytest.mark.usefixtures("small_batches")
def test_loss_is_the_mean_over_tokens_not_over_batches(params, data):
    arrays = some(data.test.arrays)
    log_p, tokens = log_likelihoods(params, arrays)
    loss = held_out_loss(params, MODEL, arrays)
    assert loss == pytest.approx(-log_p.sum() / tokens, rel=1e-5)
    lengths = (arrays.target_ids[:, 1:] != 0).sum(1)
    assert len(set(lengths)) > 1
    assert abs(loss - np.mean(-log_p.sum(1) / lengths)) > 1e-3  # the mean over sentences


@pytest.mark.parametrize(
    "batch", [1, *(pytest.param(size, marks=pytest.mark.slow) for size in (11, 1000))]
)
def test_loss_does_not_depend_on_the_cut(params, data, monkeypatch, batch):
    arrays = some(data.test.arrays)
    monkeypatch.setattr(held_out, "_BATCH", batch)
    log_p, tokens = log_likelihoods(params, arrays)
    assert held_out_loss(params, MODEL, arrays) == pytest.approx(-log_p.sum() / tokens, rel=1e-5)


def test_loss_ignores_dropout_and_smoothing(params, data):
    plain = dataclasses.replace(CONFIG, dropout_rate=0.0, label_smoothing=0.0)
    arrays = some(data.test.arrays, slice(0, BATCH))
    assert held_out_loss(params, MODEL, arrays) == pytest.approx(
        held_out_loss(params, Translator(plain), arrays), rel=1e-6
    )


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("beams", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_translations_stand_in_the_order_of_their_sources(params, data, beams):
    arrays = some(data.test.arrays)
    texts = objective(data).translate(params, arrays.source_ids, beams)
    source = jnp.asarray(arrays.source_ids)
    penalty = 0.6 if beams > 1 else 0.0
    ids, _ = beam_search(params, CONFIG, source, beams=beams, length_penalty=penalty)
    assert texts == data.tokenizer.decode_batch(np.asarray(ids))
    assert len(set(texts)) > len(texts) // 2


@pytest.mark.usefixtures("small_batches")
def test_score_of_the_translations_themselves_is_perfect(params, data):
    """A real model scored against what it says, and against what it was asked for."""
    text = data.test.text
    said = objective(data).translate(params, some(data.test.arrays).source_ids, 1)
    asked = text._replace(sources=text.sources[FIRST], references=text.references[FIRST])
    few = data.test._replace(arrays=some(data.test.arrays), text=asked._replace(references=said))
    perfect = objective(data._replace(test=few)).test(params)
    assert perfect["test_bleu"] == pytest.approx(100.0)
    assert perfect["test_chrf"] == pytest.approx(100.0)
    by_words, by_characters = perfect["test_signatures"]
    assert "tok:13a" in by_words
    assert by_characters.startswith("chrF2|")
    few = few._replace(text=asked)
    assert objective(data._replace(test=few)).test(params)["test_bleu"] < 20.0


@pytest.mark.usefixtures("small_batches")
def test_perfect_model_and_echo(params, data, monkeypatch):
    """Rows of ids stand for a model; validation and test sentences belong to their rows."""
    arrays, text, _ = data.test
    row_of = {row.tobytes(): i for i, row in enumerate(arrays.source_ids)}

    def reference(params, config, source_ids, *, beams, **_):
        if beams > 1:
            return arrays.target_ids[:1, 1:], None
        rows = [row_of[np.asarray(row).tobytes()] for row in source_ids]
        return arrays.target_ids[rows, 1:], None

    monkeypatch.setattr(translation, "beam_search", reference)
    # Every batch with several beams then says one sentence too few: only the greedy score counts.
    monkeypatch.setattr(held_out, "_BATCH", 1)
    told = objective(data).test(params)
    assert told["test_bleu"] == pytest.approx(100.0)
    alone = dataclasses.replace(objective(data), beams=1).test(params)
    assert alone == {name: value for name, value in told.items() if not name.endswith("_beam")}
    monkeypatch.setattr(translation, "beam_search", lambda *given, **_: (given[2], None))
    echo = objective(data).test(params)
    assert echo["test_bleu"] == pytest.approx(echo["test_bleu_copy"])
    assert echo["test_bleu_copy"] == bleu(text.sources, text.references, "13a").value < 50.0
