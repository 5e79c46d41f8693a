"""Packed rows have the loss and gradients of their texts in rows apart."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import tiny_corpora, tiny_run
from support.leaves_close import assert_close
from support.tiny_causal import FOLDERS

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.causal_files import load_causal_lm
from collapipe_jax.learning.models.causal_lm import NOTHING, CausalBatch, CausalLM, logits
from collapipe_jax.learning.models.split_model import example_losses
from collapipe_jax.learning.pipeline.execution import Execution, encode_clusters
from collapipe_jax.learning.tasks.packing import first_fit_decreasing, packed
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.training.learning_rounds import round_batches
from collapipe_jax.runs.training.loop import train

ROOM = 12


def texts(lengths, seed=0):
    """A text a row, each with some scored tokens, never the first."""
    rng, lengths = np.random.default_rng(seed), np.array(lengths)[:, None]
    places = np.arange(ROOM)
    ids = np.where(places < lengths, rng.integers(0, 40, (len(lengths), ROOM)), NOTHING)
    is_answer = (places >= rng.integers(1, lengths + 1)) & (places < lengths)
    return CausalBatch(ids.astype(np.int32), is_answer)


LENGTHS = [3, 7, 5, 12, 4, 5]
BATCH = texts(LENGTHS)
ROWS = packed(BATCH, first_fit_decreasing(np.array(LENGTHS), ROOM))
ANY_LENGTHS = st.lists(st.integers(1, ROOM), min_size=1, max_size=30)


def test_the_longest_texts_come_first_and_take_the_first_row_with_room():
    assert first_fit_decreasing(np.array(LENGTHS), ROOM).tolist() == [2, 1, 1, 0, 2, 2]


@given(ANY_LENGTHS)
def test_no_row_is_too_long_and_no_text_fits_an_earlier_one(lengths):
    lengths = np.array(lengths)
    row_of_text = first_fit_decreasing(lengths, ROOM)
    np.testing.assert_array_equal(row_of_text, first_fit_decreasing(lengths, ROOM))
    used = np.bincount(row_of_text, lengths)
    assert used.min() > 0
    assert used.max() <= ROOM
    for length, row in zip(lengths, row_of_text, strict=True):
        assert (used[:row] + length > ROOM).all()


@given(ANY_LENGTHS, st.integers(0, 99))
def test_each_text_is_in_one_row_as_it_was(lengths, seed):
    batch = texts(lengths, seed)
    row_of_text = first_fit_decreasing(np.array(lengths), ROOM)
    rows = packed(batch, row_of_text)
    assert rows.token_ids.dtype == rows.segment_ids.dtype == np.int32
    np.testing.assert_array_equal(rows.segment_ids > 0, rows.token_ids != NOTHING)
    # The texts of a row are in their order, one behind the other.
    assert (np.diff(np.where(rows.segment_ids > 0, rows.segment_ids, 99)) >= 0).all()
    seen = dict.fromkeys(range(len(rows.token_ids)), 0)
    for row, ids, is_answer in zip(row_of_text, batch.token_ids, batch.scored, strict=True):
        seen[row] += 1
        here = rows.segment_ids[row] == seen[row]
        assert rows.token_ids[row][here].tolist() == ids[ids != NOTHING].tolist()
        assert rows.scored[row][here].tolist() == is_answer[ids != NOTHING].tolist()
    assert np.sum(rows.token_ids != NOTHING) == np.sum(lengths)
    assert rows.segment_ids.max(axis=1).tolist() == list(seen.values())


def tiny_model(name):
    sizes, params, _ = load_causal_lm(FOLDERS[name])
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), params)
    return CausalLM(sizes=sizes), params


@pytest.mark.parametrize("name", ["llama", pytest.param("qwen3", marks=pytest.mark.slow)])
def test_a_packed_row_computes_what_rows_apart_do(name, x64):
    model, params = tiny_model(name)
    found = jax.jit(logits, static_argnums=0)
    apart, together = (np.asarray(found(model, params, each)) for each in (BATCH, ROWS))
    for text, row, number in ((3, 0, 1), (1, 1, 1), (2, 1, 2), (0, 2, 1), (4, 2, 2), (5, 2, 3)):
        here = together[row][ROWS.segment_ids[row, :-1] == number]
        assert len(here) >= LENGTHS[text] - 1  # the last token of a full row is no input
        np.testing.assert_allclose(here, apart[text][: len(here)], rtol=1e-9, atol=1e-9)

    def loss(params, batch):
        losses, counts = example_losses(model, params, batch)
        return losses.sum(), counts.sum()

    gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
    apart, together = gradient(params, BATCH), gradient(params, ROWS)
    assert apart[0][1] == together[0][1] == BATCH.scored.sum()
    assert_close(together, apart, 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["vmapped", "sharded"])
def test_a_pipeline_has_the_same_values_and_gradients(backend):
    model, params = tiny_model("llama")
    x, mask = model.embed(params["embedding"], ROWS, None)
    x, mask, segments = x[None, 1:], mask[None, 1:], jnp.array([[1, 1]])
    stack = jax.tree.map(lambda leaf: leaf[None], params["encoder"])

    def loss(stack, x, execution):
        y = encode_clusters(stack, model.sizes, x, mask, segments, execution=execution)
        return jnp.sin(3.0 * y).sum()

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)), static_argnums=2)
    expected, found = (run(stack, x, e) for e in (Execution(), Execution(backend, 2)))
    assert_close(found, expected, 1e-4)


def config_of(folder, count=60, **changes):
    """Exchanges of invented words, of two clusters."""
    rng, words = np.random.default_rng(0), ["we", "sell", "zinc", "in", "oslo", "and", "gold"]
    (folder / "data.jsonl").write_text(
        "".join(
            json.dumps({"question": " ".join(rng.choice(words, n)), "answer": "zinc and gold"})
            + "\n"
            for n in rng.integers(1, 6, count)
        )
    )
    config = tiny_run.get_config()
    config.task.update({"kind": "causal_lm", "train": str(folder / "data.jsonl"), "corpus": ""})
    config.task.update({"vocabulary_size": 300, "source_length": 48, "packing": True})
    config.model.update({"key_value_heads": 1, "label_smoothing": 0.0, "dropout_rate": 0.0})
    config.dynamics.availability = 1.0
    config.update_from_flattened_dict(changes)
    return config


def test_clusters_pack_the_exchanges_that_they_have_without_packing(tmp_path):
    config = config_of(tmp_path)
    experiment = build_experiment(config)
    config.task.packing = False
    apart = build_experiment(config)
    np.testing.assert_array_equal(experiment.cluster_weight, apart.cluster_weight)
    assert len(experiment.task.data.train.token_ids) < len(apart.task.data.train.token_ids) / 1.5
    for rows, samples in zip(experiment.cluster_indices, apart.cluster_indices, strict=True):
        packed_ids = experiment.task.data.train.token_ids[rows]
        ids = apart.task.data.train.token_ids[samples]
        together, alone = (np.sort(each[each != NOTHING]) for each in (packed_ids, ids))
        np.testing.assert_array_equal(together, alone)
    assert experiment.task.data.validation.arrays.segment_ids is None
    # Another number of clusters packs the same exchanges anew.
    config.task.packing, config.network.clusters = True, 1
    one = build_experiment(config, like=[experiment])
    assert one.task.data.unpacked is experiment.task.data.unpacked
    assert len(one.cluster_indices) == 1
    found, expected = (each.task.data.train.token_ids for each in (one, experiment))
    assert np.sum(found != NOTHING) == np.sum(expected != NOTHING)


@pytest.mark.slow
def test_packed_rows_train(tmp_path):
    experiment = build_experiment(config_of(tmp_path))
    batch = round_batches(experiment, 0)
    assert batch.segment_ids.shape == batch.token_ids.shape == (2, 2, 4, 49)
    assert batch.segment_ids.max() > 1
    loss = train(experiment, tmp_path / "run").history["validation_loss"]
    known = loss[np.isfinite(loss)]
    assert known[-1] < known[0] < 6.0


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"task.text_column": "question"}, "no prompts with answers"),
        ({"task.train": "", "task.corpus": "synthetic"}, "no prompts with answers"),
        ({"training.batch": 16}, "leaves a cluster 6 rows, fewer than the batch of 16"),
    ],
)
def test_packing_that_does_not_fit_is_refused(tmp_path, changes, problem):
    with pytest.raises(InputError, match=problem) as caught:
        build_experiment(config_of(tmp_path, **changes))
    assert (caught.value.key, caught.value.value) == ("task.packing", True)
    assert "Give False" in caught.value.remedy


def test_other_tasks_refuse_it(tmp_path):
    config = tiny_run.get_config()
    config.task.update({"kind": "classification", "packing": True, "labels": 2})
    config.task.update(tiny_corpora.write_sets(tmp_path, "classification"))
    with pytest.raises(InputError, match="classification does not read it") as caught:
        build_experiment(config)
    assert caught.value.key == "task.packing"
