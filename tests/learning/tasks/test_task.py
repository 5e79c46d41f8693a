import dataclasses
import types

import jax
import numpy as np
import pytest
from support import tiny_bert
from support.compilations import compiles
from support.drawn_parameters import drawn

from collapipe_jax.learning.models.bert import UNLABELLED, BertWithHead, LabelledBatch, predict
from collapipe_jax.learning.tasks.bert_tasks import BertTask
from collapipe_jax.learning.tasks.task import by_length, held_out_loss, in_batches


@pytest.mark.parametrize("count", [1, 99, 100, 101, 250])
def test_every_sample_is_met_once_and_in_its_place(count):
    arrays = {"a": np.arange(count), "b": np.random.default_rng(0).normal(size=(count, 3))}
    double, total = in_batches(lambda batch: (2 * batch["a"], batch["b"].sum(1)), arrays)
    np.testing.assert_array_equal(double, 2 * arrays["a"])
    np.testing.assert_array_equal(total, arrays["b"].sum(1))


def test_sets_of_any_size_take_one_compilation():
    square = jax.jit(lambda batch: batch**2)
    with compiles(square, 1):
        for count in (7, 100, 205):
            found = in_batches(square, np.arange(count, dtype=np.float32))
            np.testing.assert_array_equal(found, np.arange(count, dtype=np.float32) ** 2)


@pytest.mark.parametrize(
    ("short", "groups"), [(0, 1), (99, 1), pytest.param(130, 2, marks=pytest.mark.slow), (150, 1)]
)
def test_losses_and_labels_of_short_rows_are_those_of_whole_ones(short, groups):
    rng = np.random.default_rng(1)
    length, count = 20, 150
    sizes = dataclasses.replace(tiny_bert.SIZES, positions=length)
    ids = rng.integers(5, sizes.vocabulary_size, (count, length))
    ids[rng.permutation(count)[:short], 8:] = 0
    labels = np.where(ids > 0, rng.integers(0, 3, ids.shape), UNLABELLED)
    batch = LabelledBatch(ids.astype(np.int32), labels.astype(np.int32))
    model = BertWithHead(sizes=sizes, labels=3, pools=False)
    params = drawn(model.init)
    parts = list(by_length(model, batch))
    assert len(parts) == groups
    numbers = np.concatenate([rows for rows, _ in parts])
    np.testing.assert_array_equal(np.sort(numbers), np.arange(count))
    one_by_one = [
        held_out_loss(params, model, jax.tree.map(lambda leaf, i=i: leaf[i : i + 50], batch))
        for i in range(0, count, 50)
    ]
    predictions = [np.sum(labels[i : i + 50] != UNLABELLED) for i in range(0, count, 50)]
    expected = np.average(one_by_one, weights=predictions)
    assert held_out_loss(params, model, batch) == pytest.approx(expected, rel=1e-5)
    likeliest = BertTask.likeliest(types.SimpleNamespace(model=model, pools=False), params, batch)
    is_token = ids > 0
    np.testing.assert_array_equal(likeliest[is_token], predict(model, params, batch)[is_token])
