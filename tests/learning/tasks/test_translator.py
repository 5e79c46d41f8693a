"""A translator goes out and comes back; what is damaged is refused."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support import tiny_run
from support.drawn_parameters import drawn

import collapipe_jax as cp
from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.tasks.scores import bleu
from collapipe_jax.learning.tasks.translation import Translation


@pytest.fixture(scope="module")
def objective():
    return Translation.from_config(tiny_run.get_config())


@pytest.fixture(scope="module")
def params(objective):
    return jax.jit(objective.model.init)(jax.random.key(0))


@pytest.fixture(scope="module")
def folder(objective, params, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "model"
    objective.export(params, folder)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return cp.load(folder)


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "model")


def test_what_is_loaded_translates_as_what_was_trained(objective, params, model):
    text, arrays = objective.data.test.text, objective.data.test.arrays
    assert model.task.model.sizes == objective.model.sizes
    jax.tree.map(np.testing.assert_array_equal, model.params, params)
    said = objective.translate(params, arrays.source_ids, 1)
    assert len(set(said)) > 1
    assert model.predict(text.sources) == said


@pytest.mark.slow
def test_beams_are_followed(objective, params, model):
    objective = dataclasses.replace(objective, beams=2)
    sources = objective.data.test.text.sources[:4]
    ids = objective.data.test.arrays.source_ids[:4]
    assert model.predict(sources, beams=2) == objective.translate(params, ids, 2)
    with pytest.raises(InputError, match="--beams = 0"):
        model.predict(sources, beams=0)


def test_any_number_of_texts_of_any_length(model):
    assert model.predict([]) == []
    assert model.predict(["", "  "]) == ["", ""]
    (long,) = model.predict(["the dog sees a cat " * 30])
    assert long
    both = model.predict(["", "the dog sees a cat " * 30])
    assert both == ["", long]


def test_scores_are_those_of_training(objective, params, model, tmp_path):
    sources, references = objective.data.test.text
    pairs = [*zip(sources, references, strict=True), ("", "x"), ("word " * 60, "x")]
    (tmp_path / "pairs.txt").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    scores = model.evaluate(tmp_path / "pairs.txt")
    said = objective.translate(params, objective.data.test.arrays.source_ids, 1)
    assert scores["bleu"] == bleu(said, references, "13a").value
    assert scores["pairs"] == len(sources)
    assert scores["dropped_pairs"] == {"empty": 1, "long": 1}
    (tmp_path / "pairs.txt").write_text("no tab\n")
    with pytest.raises(InputError, match=r"data = .*line 1 has no tab"):
        model.evaluate(tmp_path / "pairs.txt")
    (tmp_path / "pairs.txt").write_text("")
    with pytest.raises(InputError, match=r"data = "):
        model.evaluate(tmp_path / "pairs.txt")
    (tmp_path / "pairs.txt").write_text("word " * 60 + "\tx\n")
    with pytest.raises(InputError, match=r"data = '.*pairs.txt': none of the 1 pairs fits"):
        model.evaluate(tmp_path / "pairs.txt")


def test_a_model_of_the_reverse_direction_is_scored_in_it(params, tmp_path):
    config = tiny_run.get_config()
    config.task.reverse = True
    objective = Translation.from_config(config)
    objective.export(params, tmp_path / "model")
    sources, references = objective.data.test.text
    on_file = "".join(f"{b}\t{a}\n" for a, b in zip(sources, references, strict=True))
    (tmp_path / "pairs.txt").write_text(on_file)
    scores = cp.load(tmp_path / "model").evaluate(tmp_path / "pairs.txt")
    assert scores["loss"] == objective.test(params)["test_loss"]
    assert scores["pairs"] == len(sources)


def test_bleu_keeps_the_tokenizer_of_the_training_targets(tmp_path):
    rows = [(f"{i} dogs", chr(0x4E00 + i) + "只狗在这里睡觉。") for i in range(40)]
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    config = tiny_run.get_config()
    sets = {"corpus": f"{tmp_path}/pairs.tsv", "pairs": 0, "validation_pairs": 5, "test_pairs": 5}
    config.task.update(sets)
    objective = Translation.from_config(config)
    assert objective.bleu_tokenizer == "zh"
    objective.export(drawn(objective.model.init), tmp_path / "model")
    scores = cp.load(tmp_path / "model").evaluate(tmp_path / "pairs.tsv")
    assert ["tok:zh" in each for each in scores["signatures"]] == [True, False]
    config.evaluation.bleu_tokenizer = "char"
    assert Translation.from_config(config).bleu_tokenizer == "char"


MISSING = object()
QUERY = "decoder/blocks/attention/query/kernel"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(QUERY), rf"{QUERY}.*missing"),
        (lambda t: t.update({QUERY: t[QUERY] * np.nan}), rf"{QUERY}.*not finite"),
        (lambda t: t.update({QUERY: t[QUERY][:, 1:]}), rf"{QUERY}.*another shape"),
        (lambda t: t.update({"other": t[QUERY]}), r"other.*no part"),
    ],
)
def test_wrong_tensors_are_named(copy, change, message):
    tensors = load_file(copy / "model.safetensors")
    change(tensors)
    save_file(tensors, copy / "model.safetensors")
    with pytest.raises(InputError, match=message):
        cp.load(copy)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format_version", 2, "format_version = 2: not 1"),
        ("model_type", "bert", "model_type = 'bert'"),
        ("width", MISSING, "'width': missing"),
        ("width", None, r"config\.json: width = None: is no positive integer"),
        ("width", 15, r"config\.json: width = 15: is odd"),
        ("length_penalty", MISSING, "length_penalty"),
        ("reverse", "no", "reverse = 'no': neither true nor false"),
        ("bleu_tokenizer", "no_such", r"bleu_tokenizer = 'no_such': unknown name"),
        ("rematerialise", {}, r"rematerialise = \{\}: is neither true nor false"),
        ("dropout_rate", 10**400, "is no number in"),
        ("collapipe_task", "no_such", "collapipe_task = 'no_such': unknown name"),
        ("collapipe_task", "no_such:X", "cannot be imported"),
    ],
)
def test_a_wrong_key_is_named(copy, key, value, message):
    path = copy / "config.json"
    document = json.loads(path.read_text())
    if value is MISSING:
        del document[key]
    else:
        document[key] = value
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=message):
        cp.load(copy)


def test_a_damaged_tokenizer_is_named(copy):
    (copy / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer\.json.*cannot be read"):
        cp.load(copy)
