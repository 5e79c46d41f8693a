import jax
import jax.numpy as jnp
import numpy as np
import pytest

from collapipe_jax.models.bert import (
    UNLABELLED,
    BertWithHead,
    LabelledBatch,
    bert_encode,
    predict,
)
from collapipe_jax.models.config import BertConfig
from collapipe_jax.models.split_model import example_losses

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
KEY = jax.random.key(4)
losses_of = jax.jit(example_losses, static_argnums=0)


@pytest.fixture(scope="module", params=CASES, ids=["tagger", "classifier"])
def case(request):
    model, batch = request.param
    return model, model.init(jax.random.key(1)), batch


def log_probabilities(model, params):
    """In double precision, from what BERT as a whole says."""
    body = {"embedding": params["embedding"], "encoder": params["encoder"]}
    head = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["decoder"])
    if "pooler" in head:
        body["pooler"] = params["decoder"]["pooler"]
    hidden, pooled = bert_encode(body, SIZES, TOKENS, TOKENS != 0, None)
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


def test_the_likeliest_label_is_predicted(case):
    model, params, batch = case
    expected = log_probabilities(model, params).argmax(-1)
    found = np.asarray(predict(model, params, batch))
    assert found.shape == expected.shape
    scored = np.broadcast_to(np.asarray(TOKENS != 0).reshape(3, -1), (3, 5))
    if found.ndim == 2:  # padding says nothing
        found, expected = found[scored], expected[scored]
    np.testing.assert_array_equal(found, expected)


def test_examples_bring_their_own_dropout(case):
    """Micro-batches of any cut see the masks of the whole mini-batch, head and embedding too."""
    model, params, batch = case
    whole, _ = losses_of(model, params, batch, KEY)
    rows = jnp.array([2, 0])
    part, _ = losses_of(model, params, jax.tree.map(lambda leaf: leaf[rows], batch), KEY, rows)
    np.testing.assert_allclose(part, whole[rows], rtol=1e-5)
    assert not np.allclose(whole, losses_of(model, params, batch)[0], rtol=1e-2)


def test_what_is_not_scored_has_no_gradient():
    params = TAGGER.init(jax.random.key(1))
    encoded = jax.random.normal(jax.random.key(2), (3, 5, 8))
    batch = LabelledBatch(TOKENS, TAGS)
    slope = jax.grad(lambda x: TAGGER.losses(params["decoder"], x, batch, None)[0].sum())(encoded)
    moved = np.abs(np.asarray(slope)).sum(-1) > 0.0
    np.testing.assert_array_equal(moved, np.asarray(TAGS) != UNLABELLED)
    first = CLASSIFIER.init(jax.random.key(1))["decoder"]
    batch = LabelledBatch(TOKENS, jnp.array([1, 0, 2]))
    slope = jax.grad(lambda x: CLASSIFIER.losses(first, x, batch, None)[0].sum())(encoded)
    assert np.all(np.asarray(slope)[:, 1:] == 0.0)
    assert np.all(np.abs(np.asarray(slope)[:, 0]).sum(-1) > 0.0)
