"""Masked language modelling from files to a start for other tasks."""

import itertools
import json

import jax
import numpy as np
import pytest
from support import tiny_corpora, tiny_run

import collapipe_jax as cp
from collapipe_jax.config.experiment import build_experiment
from collapipe_jax.errors import InputError
from collapipe_jax.models.bert import UNLABELLED
from collapipe_jax.tasks import plain_text
from collapipe_jax.tasks.corpora import TextFile
from collapipe_jax.tasks.plain_text import read_text_sets, read_texts
from collapipe_jax.training.loop import train
from collapipe_jax.training.ongoing_run import initial_run_state
from collapipe_jax.training.samples import round_batches

BUCKETS = 50


def get_config(folder, kind):
    """A run on invented sentences, of masked language modelling or of tagging."""
    config = tiny_run.get_config()
    files = tiny_corpora.write_sets(folder, "tagging")
    if kind == "masked_lm":
        del files["test"]
        config.task.update({"tagged": True, "masked_share": 0.3})
    config.task.update({"kind": kind, "vocabulary_size": 80, "source_length": 12, **files})
    config.model.update({"ngram_buckets": BUCKETS, "label_smoothing": 0.0})
    config.dynamics.availability = 1.0
    return config


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """An experiment, the workdir of its run, and the summary."""
    folder = tmp_path_factory.mktemp("masked_lm")
    config = get_config(folder, "masked_lm")
    config.training.update({"rounds": 30, "batch": 8, "schedule": "constant"})
    config.checkpoint_every_rounds = config.evaluation.every_rounds = 30
    experiment = build_experiment(config)
    return experiment, folder / "run", train(experiment, folder / "run").summary


def test_a_run_learns_to_find_pieces(pretrained):
    """Words around a hidden one tell its kind, not which of four it is."""
    experiment, folder, summary = pretrained
    score, chance = (summary[f"validation_masked_accuracy{end}"] for end in ("", "_majority"))
    assert chance < 30.0
    assert score > chance + 20.0
    np.testing.assert_allclose(
        summary["validation_masked_perplexity"], np.exp(summary["validation_loss"]), rtol=1e-6
    )
    model = cp.load(folder)
    (found, none) = model.predict(["we [MASK] zinc iron [MASK] oslo", "zinc"])
    assert found.pieces == ("sell", "in")
    assert none.pieces == ()
    assert model.line(found).startswith("sell ")
    scores = model.evaluate(experiment.config["task"]["validation"], tagged=True)
    assert scores["masked_accuracy"] > chance


def test_it_is_a_start_for_tagging_with_every_lever(pretrained, tmp_path):
    _, folder, _ = pretrained
    config = get_config(tmp_path, "tagging")
    config.model.update({"pretrained": str(folder / "model"), "head": "crf"})
    experiment = build_experiment(config)
    objective = experiment.objective
    start, stored = initial_run_state(experiment).learning.params, cp.load(folder).params
    for part in ("embedding", "encoder"):
        jax.tree.map(np.testing.assert_array_equal, start[part], stored[part])
    assert objective.data.wordpiece.pieces == cp.load(folder).wordpiece.pieces

    scores = objective.test(start)
    objective.export(start, tmp_path / "model")
    tagger = cp.load(tmp_path / "model")
    found = tagger.evaluate(config.task.test)
    np.testing.assert_allclose(found["span_f1"], scores["test_span_f1"])
    np.testing.assert_allclose(found["loss"], scores["test_loss"], rtol=1e-6)
    own = objective.predict(start, objective.data.test)
    marks = objective.data.test.labels != UNLABELLED
    tags = [tagger.labels[i] for i in own[0, marks[0]]]
    sentence = objective.data.test_text.sentences[0]
    assert list(tagger.predict([list(sentence.tokens)])[0].tags) == tags
    assert not any(b.startswith("I-") and a == "O" for a, b in itertools.pairwise(tags))

    config.model.ngram_buckets = BUCKETS + 1
    with pytest.raises(InputError, match=rf"model\.ngram_buckets.*Set it to {BUCKETS}"):
        build_experiment(config)


def test_masks_are_drawn_anew_by_seed_and_round(pretrained):
    experiment, _, _ = pretrained
    first, again, later = (round_batches(experiment, index) for index in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert first.token_ids.shape == (2, 2, 8, 12)
    assert (first.labels != later.labels).any()
    # A hidden word shows no n-grams, so they do not tell it.
    data = experiment.objective.data
    hidden = first.token_ids == data.wordpiece.pieces.index("[MASK]")
    assert hidden.any()
    assert not first.ngrams[hidden].any()


def test_no_test_texts_are_read(tmp_path, monkeypatch):
    """There is no key for them, and no other file than those named is opened."""
    config = get_config(tmp_path, "masked_lm")
    opened = []
    text = TextFile.text

    def note(file):
        opened.append(file.name)
        return text(file)

    monkeypatch.setattr(TextFile, "text", note)
    build_experiment(config)
    assert set(opened) == {config.task.train, config.task.validation}
    config.task.test = str(tmp_path / "test.tsv")
    with pytest.raises(InputError, match=r"task\.test = .*masked_lm does not read it"):
        build_experiment(config)


def test_a_split_of_a_file_is_read_alone(tmp_path):
    sets = {"train": [["a b", "x"], ["c", "y"]], "test": [["secret", "x"]]}
    (tmp_path / "all.json").write_text(json.dumps(sets))
    name = f"{tmp_path / 'all.json'}#train"
    assert read_texts(TextFile("task.train", name)) == ["a b", "c"]


def test_texts_of_all_forms(tmp_path):
    forms = {
        "a.txt": "one  two\n\nthree\n",
        "a.csv": "text,price\none two,3\nthree,4\n",
        "a.jsonl": '{"text": "one two"}\n{"text": "three"}\n',
        "a.conll": "one\tO\ntwo\tB-x\n\nthree\tO\n",
    }
    for name, content in forms.items():
        (tmp_path / name).write_text(content)
        file = TextFile("task.train", str(tmp_path / name))
        assert read_texts(file, tagged=name.endswith("conll")) == ["one two", "three"]
    (tmp_path / "b.txt").write_text("\n")
    with pytest.raises(InputError, match="it holds no text"):
        plain_text.read_texts(TextFile("task.train", str(tmp_path / "b.txt")))


def test_validation_is_taken_from_training(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"text {i}\n" for i in range(40)))
    options = {"train": str(tmp_path / "a.txt"), "seed": 1}
    sets = read_text_sets(**options)
    assert len(sets.validation) == 4
    assert sorted(sets.train + sets.validation) == sorted(f"text {i}" for i in range(40))
    fewer = read_text_sets(**options, samples=10, validation_samples=7)
    assert (len(fewer.train), len(fewer.validation)) == (10, 7)
    assert not set(fewer.train) & set(fewer.validation)
