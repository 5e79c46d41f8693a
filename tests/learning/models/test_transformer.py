import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.drawn_parameters import drawn

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.config import TransformerConfig
from collapipe_jax.learning.models.split_model import example_losses
from collapipe_jax.learning.models.transformer import (
    TranslationBatch,
    Translator,
    decode,
    embed,
    init_params,
    logits,
    source_memory,
)

CONFIG = TransformerConfig(
    vocabulary_size=13,
    width=8,
    heads=2,
    feed_forward_width=16,
    encoder_blocks=2,
    decoder_blocks=2,
    source_length=5,
    target_length=4,
    dropout_rate=0.2,
    label_smoothing=0.1,
)
SIZES = {field.name: getattr(CONFIG, field.name) for field in dataclasses.fields(CONFIG)}
BATCH = TranslationBatch(
    source_ids=jnp.array(
        [[4, 5, 6, 7, 8], [9, 10, 0, 0, 0], [5, 5, 12, 0, 0], [11, 4, 6, 8, 0]], jnp.int32
    ),
    target_ids=jnp.array(
        [[1, 7, 8, 9, 2], [1, 4, 2, 0, 0], [1, 2, 0, 0, 0], [1, 12, 11, 2, 0]], jnp.int32
    ),
)


@pytest.fixture(scope="module")
def params():
    return drawn(lambda key: init_params(key, CONFIG))


KEY = jax.random.key(5)
MODEL = Translator(CONFIG)
embedded = jax.jit(embed, static_argnums=1)
losses_of = jax.jit(lambda params, batch: example_losses(MODEL, params, batch))


@jax.jit
def gradient_of(params, batch, total, key, ids):
    """Gradient of the token sum over `total` tokens."""
    return jax.grad(lambda p: example_losses(MODEL, p, batch, key, ids)[0].sum() / total)(params)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("heads", 3),
        ("width", 7),
        ("width", 0),
        ("encoder_blocks", 1.5),
        ("vocabulary_size", 3),
        ("dropout_rate", 1.0),
        ("label_smoothing", -0.1),
        ("dropout_rate", float("nan")),
    ],
)
def test_a_wrong_size_is_named(field, value):
    with pytest.raises(InputError, match=f"model.{field}"):
        TransformerConfig(**SIZES | {field: value})


def test_parameters_are_counted(params):
    h, d, v = 8, 16, 13
    attention, feed_forward = 4 * h * h + 4 * h, 2 * h * d + d + h
    decoder = v * h + 2 * (2 * attention + feed_forward + 6 * h) + 4 * h
    assert optax.tree.size(params["embedding"]) == v * h
    assert optax.tree.size(params["encoder"]) == 2 * (attention + feed_forward + 4 * h)
    assert optax.tree.size(params["decoder"]) == decoder


def test_positions_are_a_rotation_apart():
    """Sinusoids: moving on by one position is one fixed linear map."""
    zero = {"embedding": jnp.zeros((13, 8))}
    table = np.asarray(embedded(zero, CONFIG, jnp.zeros((1, 40), jnp.int32))[0])
    step = np.linalg.lstsq(table[:-1], table[1:], rcond=None)[0]
    np.testing.assert_allclose(table[:-1] @ step, table[1:], atol=1e-4)
    np.testing.assert_allclose((table**2).sum(1), 4.0, rtol=1e-4)
    later = embed(zero, CONFIG, jnp.zeros((1, 3), jnp.int32), start=7)[0]
    np.testing.assert_allclose(later, table[7:10], atol=1e-5)


def test_tokens_enter_scaled(params):
    zero = np.asarray(embedded({"embedding": jnp.zeros((13, 8))}, CONFIG, BATCH.source_ids))
    x = np.asarray(embedded(params["embedding"], CONFIG, BATCH.source_ids))
    rows = np.asarray(params["embedding"]["embedding"])[BATCH.source_ids]
    np.testing.assert_allclose(x - zero, rows * np.sqrt(8), rtol=1e-4, atol=1e-5)


def test_no_position_sees_a_later_target(params):
    """Causality by gradient, in the embedding of the target tokens."""
    memory = jax.random.normal(jax.random.key(1), (1, 5, 8))
    mask = jnp.ones((1, 5), bool)
    ids = jnp.array([[4, 5, 6, 7]])

    @jax.jit
    @jax.grad
    def gradient_at(table, position):
        decoder = params["decoder"] | {"embedding": {"embedding": table}}
        return (decode(decoder, CONFIG, ids, memory, mask)[0, position] ** 3).sum()

    for position in range(4):
        gradient = gradient_at(params["decoder"]["embedding"]["embedding"], position)
        moved = np.abs(np.asarray(gradient)).sum(1)
        assert np.all(moved[4 : 5 + position] > 0.0)
        assert np.all(moved[5 + position :] == 0.0)


@pytest.mark.slow
def test_the_loss_is_the_smoothed_cross_entropy(params):
    losses, tokens = losses_of(params, BATCH)
    memory = source_memory(params, CONFIG, BATCH.source_ids)
    mask = BATCH.source_ids != 0
    hidden = decode(params["decoder"], CONFIG, BATCH.target_ids[:, :-1], memory, mask)
    log_p = np.asarray(jax.nn.log_softmax(logits(params["decoder"], CONFIG, hidden)), np.float64)
    for b, row in enumerate(np.asarray(BATCH.target_ids)):
        real = [i for i in range(4) if row[i + 1] != 0]
        expected = sum(-0.9 * log_p[b, i, row[i + 1]] - 0.1 * log_p[b, i].mean() for i in real)
        np.testing.assert_allclose(losses[b], expected, rtol=1e-5)
        assert tokens[b] == len(real)


def test_padding_changes_nothing(params):
    longer = TranslationBatch(*(jnp.pad(ids, ((0, 0), (0, 3))) for ids in BATCH))
    for got, expected in zip(losses_of(params, longer), losses_of(params, BATCH), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.slow
def test_micro_batches_sum_to_the_whole_gradient(params):
    """Token sums, and dropout by example: any cut gives the same gradient."""
    total = losses_of(params, BATCH)[1].sum()
    whole = gradient_of(params, BATCH, total, KEY, jnp.arange(4))
    parts = [
        gradient_of(params, jax.tree.map(lambda leaf, r=rows: leaf[r], BATCH), total, KEY, rows)
        for rows in (jnp.array([3, 0]), jnp.array([1, 2]))
    ]
    summed = jax.tree.map(jnp.add, *parts)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), summed, whole)


def test_an_empty_example_counts_nothing_and_stays_finite(params):
    empty = jax.tree.map(lambda ids: ids.at[1].set(0), BATCH)
    loss, tokens = losses_of(params, empty)
    assert loss[1] == 0.0
    assert tokens[1] == 0.0
    gradient = gradient_of(params, empty, tokens.sum(), KEY, jnp.arange(4))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
