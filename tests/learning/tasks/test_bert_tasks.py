"""Tagging and classification from files to a trained model that others can read."""

import dataclasses
import json

import chex
import jax
import numpy as np
import pytest
from support import tiny_corpora, tiny_run
from support.drawn_parameters import drawn

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.bert_files import load_bert, save_bert
from collapipe_jax.learning.models.config import BertConfig, pretrained_sizes
from collapipe_jax.learning.tasks.tagging import Tagging
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.training.learning_rounds import round_batches
from collapipe_jax.runs.training.loop import train
from collapipe_jax.runs.training.ongoing_run import initial_run_state

LABELS = {"tagging": 5, "classification": 2}


@pytest.fixture(params=LABELS)
def config(request, tmp_path):
    config = tiny_run.get_config()
    config.task.update({"kind": request.param, "labels": LABELS[request.param]})
    config.task.update({"vocabulary_size": 80, "source_length": 12})
    config.dynamics.availability = 1.0
    config.task.update(tiny_corpora.write_sets(tmp_path, request.param))
    return config


@pytest.mark.slow
def test_a_run_learns_and_hands_on_what_it_learnt(config, tmp_path):
    config.training.update({"rounds": 20, "batch": 8, "schedule": "constant"})
    config.training.update({"client_learning_rate": 3e-3, "decoder_learning_rate": 3e-3})
    config.evaluation.every_rounds = 10
    config.checkpoint_every_rounds = 20
    experiment = build_experiment(config)
    record = train(experiment, tmp_path / "run").record
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    objective = experiment.task
    # Half of the texts, and a metal on its own tells not whether it goes on from another.
    assert 40.0 < summary[objective.trivial_headline] < 70.0
    assert 40.0 < record.constants["baseline_score"] < 70.0
    assert summary[objective.headline] > 95.0
    assert summary["test_loss"] < 0.5
    assert set((tmp_path / "run/labels.txt").read_text().split()) == set(objective.data.labels)

    sizes, params = load_bert(tmp_path / "run/model")
    assert sizes.positions == 12
    vocabulary = (tmp_path / "run/model/vocab.txt").read_text().split("\n")[:-1]
    assert vocabulary == list(objective.data.tokenizer.pieces)
    assert (tmp_path / "run/vocab.txt").read_text().split("\n")[:-1] == vocabulary
    tokenizer = json.loads((tmp_path / "run/model/tokenizer_config.json").read_text())
    assert tokenizer["do_lower_case"] == config.task.lowercase

    config.model.pretrained = str(tmp_path / "run/model")
    config.seed = 3
    again = build_experiment(config)
    start = initial_run_state(again).learning.params
    for name in ("embedding", "encoder"):
        jax.tree.map(np.testing.assert_array_equal, start[name], params[name])
    assert again.task.data.tokenizer.pieces == objective.data.tokenizer.pieces
    found = objective.likeliest(start, objective.data.train)
    assert found.shape == objective.data.train.labels.shape


@pytest.mark.parametrize(
    "config", ["tagging", pytest.param("classification", marks=pytest.mark.slow)], indirect=True
)
def test_a_checkpoint_that_does_not_fit_is_refused(config, tmp_path):
    experiment = build_experiment(config)
    params = drawn(experiment.task.model.init)
    experiment.task.export(params, tmp_path / "bert")
    config.model.pretrained = str(tmp_path / "bert")
    for name, value, remedy in (
        ("model.width", 32, "Set it to 16"),
        ("model.encoder_blocks", 3, "Set it to 2"),
        ("task.vocabulary_size", 90, "Set it to 80"),
        ("task.source_length", 13, "Lower it to 12"),
    ):
        wrong = config.copy_and_resolve_references()
        section, key = name.split(".")
        wrong[section][key] = value
        with pytest.raises(InputError, match=remedy) as caught:
            build_experiment(wrong)
        assert caught.value.key == name


def test_a_wrong_number_of_labels_is_corrected(config):
    right = config.task.labels
    config.task.labels = right + 1
    with pytest.raises(InputError, match=f"Set it to {right}"):
        build_experiment(config)


def test_a_row_without_room_for_a_piece_is_refused(config):
    config.task.source_length = 2
    with pytest.raises(InputError, match=r"task\.source_length = 2: no room"):
        build_experiment(config)


def test_a_head_and_a_missing_pooler_stay_fresh():
    fresh = {"embedding": 1, "encoder": 2, "decoder": {"pooler": 3, "head": 4}}

    def start_from(pretrained, fresh):
        return Tagging(model=None, data=None, length=0, pretrained=pretrained).starting_params(
            fresh
        )

    assert start_from(None, fresh) is fresh
    body = {"embedding": 5, "encoder": 6}
    assert start_from(body, fresh) == body | {"decoder": {"pooler": 3, "head": 4}}
    assert start_from(body | {"pooler": 7}, fresh)["decoder"] == {"pooler": 7, "head": 4}
    tagger = {"embedding": 1, "encoder": 2, "decoder": {"head": 4}}
    assert start_from(body | {"pooler": 7}, tagger) == body | {"decoder": {"head": 4}}


def test_export_refuses_what_the_layout_cannot_hold(config, tmp_path):
    """A pre-norm stack is no BERT."""
    experiment = build_experiment(config)
    params = drawn(experiment.task.model.init)
    sizes = experiment.task.model.sizes
    with pytest.raises(InputError, match="norm"):
        save_bert(tmp_path / "x", dataclasses.replace(sizes, norm="pre"), params)


def test_mini_batches_are_cut_anew_in_every_round(config):
    whole = build_experiment(config)
    config.task.piece_dropout = 0.9
    cut = build_experiment(config)
    before, after, again, next_round = (
        round_batches(experiment, index)
        for experiment, index in ((whole, 0), (cut, 0), (cut, 0), (cut, 1))
    )
    jax.tree.map(np.testing.assert_array_equal, after, again)
    jax.tree.map(lambda one, other: chex.assert_equal_shape([one, other]), before, after)
    assert (after.token_ids != before.token_ids).any()
    assert (after.token_ids != next_round.token_ids).any()
    pieces = np.sum(after.token_ids != 0, axis=-1) - np.sum(before.token_ids != 0, axis=-1)
    assert np.all(pieces >= 0)
    if config.task.kind == "classification":
        np.testing.assert_array_equal(after.labels, before.labels)
    # What is judged is cut as ever.
    jax.tree.map(np.testing.assert_array_equal, whole.task.data.train, cut.task.data.train)
    for part in ("validation", "test"):
        ours, theirs = (getattr(one.task.data, part).arrays for one in (whole, cut))
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_all_sizes_that_differ_from_a_pretrained_model_are_named():
    sizes = {"width": 8, "heads": 2, "feed_forward_width": 16, "encoder_blocks": 2}
    found = BertConfig(vocabulary_size=30, positions=16, **sizes)
    wanted = dataclasses.replace(found, width=12, heads=3, vocabulary_size=31, positions=64)
    with pytest.raises(InputError) as caught:
        pretrained_sizes("folder", wanted, found)
    keys = [error.key for error in caught.value.errors]
    assert keys == ["model.width", "model.heads", "task.vocabulary_size", "task.source_length"]
