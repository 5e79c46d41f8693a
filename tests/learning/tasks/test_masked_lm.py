"""Masked language modelling from files to a start for other tasks."""

import itertools
import json
import shutil

import jax
import numpy as np
import pytest
from support import tiny_corpora, tiny_run

import collapipe_jax as cp
from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.bert import UNLABELLED, MaskedBatch, predict_pieces
from collapipe_jax.learning.tasks import plain_text
from collapipe_jax.learning.tasks.corpora import TextFile
from collapipe_jax.learning.tasks.plain_text import read_text_sets, read_texts
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.training.learning_rounds import round_batches
from collapipe_jax.runs.training.loop import train
from collapipe_jax.runs.training.ongoing_run import initial_run_state

BUCKETS = 50


def get_config(folder, kind):
    """A run on invented sentences, of masked language modelling or of tagging."""
    config = tiny_run.get_config()
    files = tiny_corpora.write_sets(folder, "tagging")
    if kind == "masked_lm":
        del files["test"]
        config.task.tagged = True
    config.task.update({"kind": kind, "vocabulary_size": 80, "source_length": 12, **files})
    config.model.update({"ngram_buckets": BUCKETS, "label_smoothing": 0.0})
    config.dynamics.availability = 1.0
    return config


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An experiment, parameters, and the folder that they were written to."""
    folder = tmp_path_factory.mktemp("masked_lm")
    experiment = build_experiment(get_config(folder, "masked_lm"))
    params = initial_run_state(experiment).learning.params
    experiment.task.export(params, folder / "model")
    return experiment, params, folder / "model"


@pytest.mark.slow
def test_a_run_learns_to_find_pieces(tmp_path):
    """Words around a hidden one tell its kind, not which of four it is."""
    config = get_config(tmp_path, "masked_lm")
    config.task.masked_share = 0.3
    config.training.update({"rounds": 30, "batch": 8, "schedule": "constant"})
    config.checkpoint_every_rounds = config.evaluation.every_rounds = 30
    summary = train(build_experiment(config), tmp_path / "run").summary
    score, chance = (summary[f"validation_masked_accuracy{end}"] for end in ("", "_majority"))
    assert chance < 30.0
    assert score > chance + 20.0
    np.testing.assert_allclose(
        summary["validation_masked_perplexity"], np.exp(summary["validation_loss"]), rtol=1e-6
    )
    (found,) = cp.load(tmp_path / "run").predict(["we [MASK] zinc iron [MASK] oslo"])
    assert found.pieces == ("sell", "in")


def test_what_is_exported_scores_and_fills_as_in_training(exported):
    experiment, params, folder = exported
    objective, model = experiment.task, cp.load(folder)
    validation = objective.data.validation
    scores = model.evaluate(experiment.config["task"]["validation"], tagged=True)
    np.testing.assert_allclose(scores["loss"], objective.loss(params, validation), rtol=1e-5)
    found, none = model.predict(["we [MASK] zinc iron [MASK] oslo", "zinc"])
    assert none.pieces == ()
    wordpiece = model.task.data.tokenizer
    ids, _ = wordpiece.encode_texts(["we sell zinc iron in oslo"], model.task.length)
    ids[0, [2, 5]] = wordpiece.pieces.index("[MASK]")
    places = np.array([[2, 5]])
    batch = objective.with_ngrams(MaskedBatch(ids, places, places))
    likeliest = np.asarray(predict_pieces(objective.model, params, batch))[0].argmax(-1)
    assert [wordpiece.pieces[i] for i in likeliest] == list(found.pieces)
    assert model.task.line(found).split(" ")[0] == found.pieces[0]


@pytest.mark.slow
def test_it_is_a_start_for_tagging_with_every_lever(exported, tmp_path):
    _, _, folder = exported
    config = get_config(tmp_path, "tagging")
    config.model.update({"pretrained": str(folder), "head": "crf"})
    experiment = build_experiment(config)
    objective = experiment.task
    start, stored = initial_run_state(experiment).learning.params, cp.load(folder).params
    for part in ("embedding", "encoder"):
        jax.tree.map(np.testing.assert_array_equal, start[part], stored[part])
    assert objective.data.tokenizer.pieces == cp.load(folder).task.data.tokenizer.pieces

    scores = objective.test(start)
    objective.export(start, tmp_path / "model")
    tagger = cp.load(tmp_path / "model")
    found = tagger.evaluate(config.task.test)
    np.testing.assert_allclose(found["span_f1"], scores["test_span_f1"])
    np.testing.assert_allclose(found["loss"], scores["test_loss"], rtol=1e-6)
    own = objective.likeliest(start, objective.data.test.arrays)
    marks = objective.data.test.arrays.labels != UNLABELLED
    tags = [tagger.task.data.labels[i] for i in own[0, marks[0]]]
    sentence = objective.data.test.text.sentences[0]
    assert list(tagger.predict([list(sentence.tokens)])[0].tags) == tags
    assert not any(b.startswith("I-") and a == "O" for a, b in itertools.pairwise(tags))

    config.model.ngram_buckets = BUCKETS + 1
    with pytest.raises(InputError, match=rf"model\.ngram_buckets.*Set it to {BUCKETS}"):
        build_experiment(config)


def test_a_vocabulary_that_lost_pieces_is_refused_or_names_the_others(exported, tmp_path):
    _, _, folder = exported
    copy = shutil.copytree(folder, tmp_path / "model")
    (copy / "tokenizer.json").unlink()  # which would show that vocab.txt was changed
    pieces = (copy / "vocab.txt").read_text().split()
    (copy / "vocab.txt").write_text("\n".join([*pieces[:5], "[MASK]"]))
    (found,) = cp.load(copy).predict(["we [MASK] " * 5])
    assert set(found.pieces) <= {*pieces[:5], "[MASK]"}
    (copy / "vocab.txt").write_text("\n".join(pieces[:5]))
    with pytest.raises(InputError, match=r"vocab.txt': has no \[MASK\]"):
        cp.load(copy)


def test_masks_are_drawn_anew_by_seed_and_round(exported):
    experiment, _, _ = exported
    first, again, later = (round_batches(experiment, index) for index in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert first.token_ids.shape == (2, 2, 4, 12)
    assert (first.labels != later.labels).any()
    # A hidden word shows no n-grams, so they do not tell it.
    data = experiment.task.data
    hidden = first.token_ids == data.tokenizer.pieces.index("[MASK]")
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


def test_a_vocabulary_without_a_mask_is_refused(tmp_path):
    config = get_config(tmp_path, "masked_lm")
    pieces = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "we", "in")
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    config.task.vocabulary = str(tmp_path / "vocab.txt")
    with pytest.raises(InputError, match=r"task\.vocabulary = .*it has no \[MASK\]"):
        build_experiment(config)


def test_a_split_of_a_file_is_read_alone(tmp_path):
    sets = {"train": [["a b", "x"], ["c", "y"]], "test": [["secret", "x"]]}
    (tmp_path / "all.json").write_text(json.dumps(sets))
    name = f"{tmp_path / 'all.json'}#train"
    assert read_texts(TextFile("task.train", name)) == ["a b", "c"]


def test_texts_of_all_forms(tmp_path):
    forms = {
        "a.txt": " one two\n\nthree\n",
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
