"""BERT against the textbook, and its heads against BERT as a whole."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.drawn_parameters import drawn

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.bert import (
    UNLABELLED,
    BertWithHead,
    LabelledBatch,
    bert_encode,
    combined_rows,
    embed_bert,
    init_bert,
    pool,
    predict,
)
from collapipe_jax.learning.models.block import encode
from collapipe_jax.learning.models.config import COMBINERS, BertConfig
from collapipe_jax.learning.models.layers import example_keys
from collapipe_jax.learning.models.split_model import example_losses

CONFIG = BertConfig(
    width=12,
    heads=3,
    feed_forward_width=20,
    encoder_blocks=2,
    vocabulary_size=17,
    positions=9,
    dropout_rate=0.2,
    initial_deviation=0.3,
)
KEY = jax.random.key(3)
IDS = jnp.array([[2, 5, 9, 16, 3, 1, 3], [2, 7, 3, 0, 0, 0, 0], [2, 4, 4, 8, 3, 0, 0]], jnp.int32)
TYPES = jnp.array([[0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0, 0]], jnp.int32)
MASK = IDS != 0

run = jax.jit(bert_encode, static_argnames="config")
embedded = jax.jit(embed_bert, static_argnames="config")


@pytest.fixture(scope="module")
def params():
    return drawn(lambda key: init_bert(key, CONFIG))


def textbook(params, ids, mask, types):
    """BERT for one text in double precision: hidden states and pooled text."""

    def norm(p, x):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12) * p["scale"] + p["bias"]

    def linear(p, x):
        return x @ p["kernel"] + p["bias"]

    def gelu(z):
        return 0.5 * z * (1.0 + np.vectorize(math.erf)(z / math.sqrt(2.0)))

    tables = params["embedding"]
    x = tables["word"][ids] + tables["position"][: len(ids)] + tables["token_type"][types]
    x = norm(tables["norm"], x)
    size = CONFIG.width // CONFIG.heads
    for layer in range(CONFIG.encoder_blocks):
        block = jax.tree.map(lambda leaf, layer=layer: leaf[layer], params["encoder"])
        q, k, v = (linear(block["attention"][name], x) for name in ("query", "key", "value"))
        mixed = []
        for head in range(CONFIG.heads):
            part = slice(size * head, size * (head + 1))
            scores = q[:, part] @ k[:, part].T / math.sqrt(size)
            weights = np.exp(np.where(mask[None], scores, -np.inf))
            mixed.append(weights / weights.sum(-1, keepdims=True) @ v[:, part])
        attended = linear(block["attention"]["out"], np.concatenate(mixed, -1))
        x = norm(block["attention_norm"], x + attended)
        inner = gelu(linear(block["feed_forward"]["inner"], x))
        x = norm(block["feed_forward_norm"], x + linear(block["feed_forward"]["outer"], inner))
    return x, np.tanh(linear(params["pooler"], x[0]))


def test_bert_equals_the_textbook(params, x64):
    exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    hidden, pooled = run(jax.tree.map(jnp.asarray, exact), CONFIG, IDS, MASK, TYPES)
    single, _ = run(params, CONFIG, IDS, MASK, TYPES)
    for row in range(3):
        arguments = (np.asarray(a[row]) for a in (IDS, MASK, TYPES))
        expected, expected_pooled = textbook(exact, *arguments)
        np.testing.assert_allclose(hidden[row], expected, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(pooled[row], expected_pooled, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(single[row], expected, rtol=1e-4, atol=1e-5)


def test_the_published_model_has_its_number_of_parameters():
    """BERT-base, uncased: 109 482 240, counted from its tables and layers."""
    config = BertConfig(
        width=768, heads=12, feed_forward_width=3072, encoder_blocks=12, vocabulary_size=30522
    )
    shapes = jax.eval_shape(lambda key: init_bert(key, config), KEY)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 109_482_240
    ids = jax.ShapeDtypeStruct((2, 512), jnp.int32)
    for dtype in ("float32", "bfloat16"):
        narrow = dataclasses.replace(config, compute_dtype=dtype)
        hidden, pooled = jax.eval_shape(
            lambda p, ids, narrow=narrow: bert_encode(p, narrow, ids, ids != 0, None), shapes, ids
        )
        assert (hidden.shape, pooled.shape) == ((2, 512, 768), (2, 768))
        assert hidden.dtype == pooled.dtype == jnp.float32


def test_fresh_weights_follow_the_published_law():
    """A normal law of deviation 0.02 cut at two of it, whose own deviation is 0.0176."""
    config = dataclasses.replace(CONFIG, width=96, vocabulary_size=500, initial_deviation=0.02)

    @jax.jit
    def draw(key):
        fresh = init_bert(key, config)
        kernel, scale = (
            fresh["encoder"]["feed_forward"]["inner"]["kernel"],
            fresh["embedding"]["norm"],
        )
        return (fresh["embedding"]["word"], kernel, fresh["pooler"]["kernel"]), scale["scale"]

    tables, scale = jax.device_get(draw(KEY))
    for weights in tables:
        assert np.abs(weights).max() <= 0.04
        assert abs(weights.std() - 0.0176) < 5 * 0.0176 / math.sqrt(weights.size)
    assert np.all(scale == 1.0)


def test_without_a_deviation_the_tables_have_equal_weight():
    config = dataclasses.replace(CONFIG, width=300, initial_deviation=0.0)
    fresh = jax.jit(lambda key: init_bert(key, config)["embedding"])(KEY)
    deviation = 0.88 / math.sqrt(300)
    for name in ("word", "position", "token_type"):
        assert np.asarray(fresh[name]).std() == pytest.approx(deviation, rel=0.2)


def test_the_cut_parts_compute_what_the_whole_does(params):
    keys = example_keys(KEY, jnp.arange(3))
    x = embedded(params["embedding"], CONFIG, IDS, TYPES, keys)
    hidden = jax.jit(lambda x: encode(params["encoder"], CONFIG, x, MASK, keys))(x)
    got, pooled = run(params, CONFIG, IDS, MASK, TYPES, keys)
    np.testing.assert_allclose(got, hidden, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(pooled, pool(params["pooler"], hidden), rtol=1e-4, atol=1e-5)


def test_no_token_types_are_zeros(params):
    explicit = embedded(params["embedding"], CONFIG, IDS, jnp.zeros_like(IDS))
    absent = embedded(params["embedding"], CONFIG, IDS)
    np.testing.assert_allclose(absent, explicit, rtol=1e-5, atol=1e-6)
    typed = embedded(params["embedding"], CONFIG, IDS, TYPES)
    assert not np.allclose(typed, explicit, atol=1e-2)


def test_padding_changes_no_real_token(params):
    hidden, pooled = run(params, CONFIG, IDS, MASK, TYPES)
    other_ids = jnp.where(MASK, IDS, 11)
    got, got_pooled = run(params, CONFIG, other_ids, MASK, TYPES)
    real = np.asarray(MASK)
    got, hidden = np.asarray(got), np.asarray(hidden)
    np.testing.assert_allclose(got[real], hidden[real], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got_pooled, pooled, rtol=1e-5, atol=1e-6)
    short, short_pooled = run(params, CONFIG, IDS[:, :5], MASK[:, :5], TYPES[:, :5])
    short = np.asarray(short)
    for row in (1, 2):
        expected = hidden[row][real[row]]
        np.testing.assert_allclose(short[row][real[row, :5]], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(short_pooled[1:], pooled[1:], rtol=1e-4, atol=1e-6)


def test_dropout_follows_the_example(params):
    """Number and key of an example fix its masks, whatever stands beside it."""
    whole, pooled = run(params, CONFIG, IDS, MASK, TYPES, example_keys(KEY, jnp.arange(3)))
    rows = jnp.array([2, 0, 0])
    part, part_pooled = run(
        params, CONFIG, IDS[rows], MASK[rows], TYPES[rows], example_keys(KEY, rows)
    )
    np.testing.assert_allclose(part, whole[rows], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(part_pooled, pooled[rows], rtol=1e-4, atol=1e-5)
    elsewhere, _ = run(params, CONFIG, IDS, MASK, TYPES, example_keys(KEY, jnp.arange(3) + 7))
    assert not np.allclose(elsewhere, whole, atol=1e-2)


def test_the_embedding_drops_at_the_configured_rate(params):
    ids = jnp.tile(IDS[:1], (200, 1))
    keys = example_keys(KEY, jnp.arange(200))
    plain = np.asarray(embedded(params["embedding"], CONFIG, ids))
    dropped = np.asarray(embedded(params["embedding"], CONFIG, ids, keys=keys))
    kept = dropped != 0.0
    np.testing.assert_allclose(dropped[kept], plain[kept] / 0.8, rtol=1e-5)
    assert abs(kept.mean() - 0.8) < 5 * math.sqrt(0.16 / kept.size)


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
def test_gradients_are_finite_and_reach_every_parameter(params, dtype):
    config = dataclasses.replace(CONFIG, compute_dtype=dtype)
    mask = MASK.at[1].set(False)  # an example without tokens

    @jax.jit
    @jax.grad
    def gradient_of(params):
        keys = example_keys(KEY, jnp.arange(3))
        hidden, pooled = run(params, config, IDS, mask, TYPES, keys)
        return (hidden**3).mean() + (pooled**2).mean()

    gradient = gradient_of(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert all(np.abs(leaf).max() > 0.0 for leaf in jax.tree.leaves(gradient))
    unused = np.abs(gradient["embedding"]["word"]).sum(1) == 0.0
    assert set(np.flatnonzero(unused)) == set(range(17)) - set(np.unique(IDS).tolist())


def test_16_bit_products_stay_close(params):
    narrow = dataclasses.replace(CONFIG, compute_dtype="bfloat16")
    expected, _ = run(params, CONFIG, IDS, MASK, TYPES)
    got, _ = run(params, narrow, IDS, MASK, TYPES)
    assert 0.0 < np.abs(np.asarray(got) - expected).max() < 0.1


def test_numbers_outside_a_table_are_clamped(params):
    tables = params["embedding"]
    got = embedded(tables, CONFIG, jnp.array([[99]]), jnp.array([[5]]))
    np.testing.assert_array_equal(
        got, embedded(tables, CONFIG, jnp.array([[16]]), jnp.array([[1]]))
    )


def test_a_text_beyond_the_positions_is_refused(params):
    longest = jnp.ones((1, 9), jnp.int32)
    assert embedded(params["embedding"], CONFIG, longest).shape == (1, 9, 12)
    with pytest.raises(InputError, match="9 positions"):
        embed_bert(params["embedding"], CONFIG, jnp.ones((1, 10), jnp.int32))


def test_the_pooler_reads_the_first_token_alone(params):
    hidden = np.random.default_rng(0).standard_normal((2, 5, 12)).astype(np.float32)
    gradient = jax.jit(jax.grad(lambda h: pool(params["pooler"], h).sum()))(hidden)
    assert np.all(np.asarray(gradient)[:, 1:] == 0.0)
    assert np.all(np.asarray(gradient)[:, 0] != 0.0)


def test_without_a_pooler_nothing_is_pooled(params):
    headless = {name: params[name] for name in ("embedding", "encoder")}
    hidden, pooled = run(headless, CONFIG, IDS, MASK, TYPES)
    assert pooled is None
    expected, _ = run(params, CONFIG, IDS, MASK, TYPES)
    np.testing.assert_allclose(hidden, expected, rtol=1e-5, atol=1e-6)


SIZES = BertConfig(
    vocabulary_size=11,
    positions=5,
    width=8,
    heads=2,
    feed_forward_width=16,
    encoder_blocks=2,
    dropout_rate=0.3,
    initial_deviation=0.5,
)
LABELS = 3
TAGGER = BertWithHead(sizes=SIZES, labels=LABELS, pools=False, label_smoothing=0.1)
CLASSIFIER = BertWithHead(sizes=SIZES, labels=LABELS, pools=True, label_smoothing=0.1)
TOKENS = jnp.array([[2, 5, 6, 3, 0], [2, 7, 3, 0, 0], [2, 8, 9, 10, 3]])
TAGS = jnp.array([[-1, 0, 2, -1, -1], [-1, 1, -1, -1, -1], [-1, 2, -1, 0, -1]])
CASES = [
    (TAGGER, LabelledBatch(TOKENS, TAGS)),
    (CLASSIFIER, LabelledBatch(TOKENS, jnp.array([1, 0, 2]))),
]
losses_of = jax.jit(example_losses, static_argnums=0)
predicted = jax.jit(predict, static_argnums=0)


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.grad, argnums=2)
def slope_of(model, head, encoded, batch):
    return model.losses(head, encoded, batch, None)[0].sum()


@pytest.fixture(scope="module", params=CASES, ids=["tagger", "classifier"])
def case(request):
    model, batch = request.param
    return model, drawn(model.init), batch


def log_probabilities(model, params):
    """In double precision, from what BERT as a whole says."""
    body = {"embedding": params["embedding"], "encoder": params["encoder"]}
    head = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["decoder"])
    if "pooler" in head:
        body["pooler"] = params["decoder"]["pooler"]
    hidden, pooled = run(body, SIZES, TOKENS, TOKENS != 0, None)
    x = np.asarray(pooled if "pooler" in head else hidden, np.float64)
    scores = x @ head["head"]["kernel"] + head["head"]["bias"]
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


def test_losses_are_those_of_bert_and_a_linear_map(case):
    model, params, batch = case
    losses, counts = losses_of(model, params, batch)
    log_p = log_probabilities(model, params).reshape(3, -1, LABELS)
    labels = np.asarray(batch.labels).reshape(3, -1)
    for b in range(3):
        scored = [i for i, label in enumerate(labels[b]) if label != UNLABELLED]
        expected = sum(-0.9 * log_p[b, i, labels[b, i]] - 0.1 * log_p[b, i].mean() for i in scored)
        np.testing.assert_allclose(losses[b], expected, rtol=1e-5)
        assert counts[b] == len(scored)
    plain, _ = losses_of(model.unsmoothed, params, batch)
    expected = -log_p[0, [i for i, label in enumerate(labels[0]) if label >= 0]]
    expected = expected[np.arange(len(expected)), [label for label in labels[0] if label >= 0]]
    np.testing.assert_allclose(plain[0], expected.sum(), rtol=1e-5)


def test_the_mean_is_over_real_tokens():
    hidden = np.random.default_rng(0).standard_normal((3, 5, 8))
    linear = {"kernel": jnp.asarray(np.eye(8), jnp.float32), "bias": jnp.zeros(8)}
    found = pool(linear, jnp.asarray(hidden, jnp.float32), TOKENS != 0)
    expected = [row[np.asarray(ids) != 0].mean(0) for row, ids in zip(hidden, TOKENS, strict=True)]
    np.testing.assert_allclose(found, np.tanh(expected), atol=1e-6)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_n_grams_add_the_mean_or_scaled_sum_of_their_rows(combiner):
    rng = np.random.default_rng(0)
    table, buckets = rng.standard_normal((6, 8)), rng.integers(0, 7, (3, 5, 4))
    buckets[0, 0], buckets[1, 1] = 0, 6
    table = jnp.asarray(table, jnp.float32)
    combine = jax.jit(combined_rows, static_argnums=2)
    found = np.asarray(combine(table, jnp.asarray(buckets, jnp.uint8), combiner))
    for text, place in np.ndindex(3, 5):
        own = buckets[text, place]
        rows = np.asarray(table)[own[own > 0] - 1]
        divisor = len(rows) if combiner == "mean" else len(rows) ** 0.5
        expected = rows.sum(0) / max(divisor, 1)
        np.testing.assert_allclose(found[text, place], expected, atol=1e-6)


def test_the_likeliest_label_is_predicted(case):
    model, params, batch = case
    expected = log_probabilities(model, params).argmax(-1)
    found = np.asarray(predicted(model, params, batch))
    assert found.shape == expected.shape
    scored = np.broadcast_to(np.asarray(TOKENS != 0).reshape(3, -1), (3, 5))
    if found.ndim == 2:  # padding says nothing
        found, expected = found[scored], expected[scored]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "case",
    [CASES[0], pytest.param(CASES[1], marks=pytest.mark.slow)],
    ids=["tagger", "classifier"],
    indirect=True,
)
def test_examples_bring_their_own_dropout(case):
    """Micro-batches of any cut see the masks of the whole mini-batch, head and embedding too."""
    model, params, batch = case
    whole, _ = losses_of(model, params, batch, KEY)
    rows = jnp.array([2, 0])
    part, _ = losses_of(model, params, jax.tree.map(lambda leaf: leaf[rows], batch), KEY, rows)
    np.testing.assert_allclose(part, np.asarray(whole)[rows], rtol=1e-5)
    assert not np.allclose(whole, losses_of(model, params, batch)[0], rtol=1e-2)


def test_what_is_not_scored_has_no_gradient():
    params = drawn(TAGGER.init)
    encoded = jax.random.normal(jax.random.key(2), (3, 5, 8))
    batch = LabelledBatch(TOKENS, TAGS)
    slope = slope_of(TAGGER, params["decoder"], encoded, batch)
    moved = np.abs(np.asarray(slope)).sum(-1) > 0.0
    np.testing.assert_array_equal(moved, np.asarray(TAGS) != UNLABELLED)
    first = drawn(CLASSIFIER.init)["decoder"]
    batch = LabelledBatch(TOKENS, jnp.array([1, 0, 2]))
    slope = slope_of(CLASSIFIER, first, encoded, batch)
    assert np.all(np.asarray(slope)[:, 1:] == 0.0)
    assert np.all(np.abs(np.asarray(slope)[:, 0]).sum(-1) > 0.0)
