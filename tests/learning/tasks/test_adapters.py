"""Adapters from files to a trained model: resumed, exported and read again."""

import shutil

import jax
import numpy as np
import pytest
from support import tiny_corpora, tiny_run

import collapipe_jax as cp
from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.adapters import split
from collapipe_jax.learning.models.bert import LabelledBatch, label_probabilities, logits
from collapipe_jax.learning.models.bert_files import load_bert, save_bert
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.training.loop import train
from collapipe_jax.runs.training.ongoing_run import initial_run_state

ADAPTERS = {
    "model.adapter_rank": 2,
    "model.adapter_targets": ("all",),
    "training.client_learning_rate": 5e-2,
}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Adapters on a BERT that stands on file, of the same vocabulary."""
    folder = tmp_path_factory.mktemp("base")
    config = tiny_run.get_config()
    config.task.update({"kind": "classification", "labels": 2, "vocabulary_size": 80})
    config.task.update({"source_length": 12} | tiny_corpora.write_sets(folder, "classification"))
    experiment = build_experiment(config)
    start = initial_run_state(experiment).learning.params
    experiment.task.export(start, folder / "model")
    config.model.pretrained = str(folder / "model")
    config.update_from_flattened_dict(ADAPTERS)
    return config


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """The experiment, its folder and what it trained."""
    experiment, folder = build_experiment(config), tmp_path_factory.mktemp("whole")
    return experiment, folder, train(experiment, folder)


@pytest.fixture
def halfway(whole, tmp_path):
    """A run that stopped before its last two rounds."""
    shutil.copytree(whole[1], tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/6")
    (tmp_path / "run/summary.json").unlink()
    return tmp_path / "run"


def test_the_base_stays_and_adapters_move(whole):
    experiment, _, trained = whole
    before, after = (
        split(params) for params in (initial_run_state(experiment).learning.params, trained.params)
    )
    jax.tree.map(np.testing.assert_array_equal, after[1], before[1])
    moved = [
        float(np.abs(a - b).max())
        for a, b in zip(*map(jax.tree.leaves, (after[0], before[0])), strict=True)
    ]
    assert min(moved) > 1e-4


def test_every_model_on_file_is_the_trained_one(whole):
    experiment, folder, trained = whole
    token_ids = experiment.task.data.test.arrays.token_ids
    found = jax.jit(logits, static_argnums=0)
    expected = found(experiment.task.model, trained.params, LabelledBatch(token_ids, None))
    expected = jax.nn.softmax(expected)
    for name in (".", "model", "adapters"):
        model, batch = cp.load(folder / name), LabelledBatch(token_ids, None)
        found = label_probabilities(model.task.model, model.params, batch)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    adapters = (folder / "adapters/adapter_model.safetensors").stat().st_size
    assert adapters < 0.4 * (folder / "model/model.safetensors").stat().st_size


def test_a_resumed_run_ends_with_the_same_bytes(whole, halfway):
    train(whole[0], halfway, resume=True)
    for name in ("metrics.jsonl", "summary.json", "adapters/adapter_model.safetensors"):
        assert (halfway / name).read_bytes() == (whole[1] / name).read_bytes()


def test_a_run_is_not_resumed_on_another_base(config, halfway, tmp_path):
    changed, folder = config.copy_and_resolve_references(), config.model.pretrained
    kept = shutil.copytree(folder, tmp_path / "kept")
    try:
        sizes, params = load_bert(folder)
        save_bert(folder, sizes, jax.tree.map(lambda leaf: 1.01 * leaf, params))
        experiment = build_experiment(changed)
        with pytest.raises(InputError, match="trained on other weights"):
            train(experiment, halfway, resume=True)
    finally:
        shutil.copytree(kept, folder, dirs_exist_ok=True)


def test_checkpoints_hold_no_base(whole):
    names = (whole[1] / "checkpoints/6/state/_METADATA").read_text()
    assert "lora_a" in names
    assert not any(part in names for part in ("word", "position", "attention_norm"))
