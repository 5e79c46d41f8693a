"""Classifier and tagger against `transformers`: stored logits, and live where it is installed."""

import json
import shutil
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from support import tiny_corpora
from support.compilations import compiles
from support.tiny_predictors import FOLDERS, TEXTS, peers_logits

import collapipe_jax as cp
from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models import bert

KINDS = list(FOLDERS)


@pytest.fixture(scope="module")
def models():
    return {kind: cp.load(folder) for kind, folder in FOLDERS.items()}


def expected_logits(kind):
    with np.load(FOLDERS[kind] / "expected.npz") as golden:
        return golden["logits"], golden["token_ids"]


def assert_real_tokens_close(logits, expected, token_ids):
    real = token_ids != 0 if logits.ndim == 3 else slice(None)
    np.testing.assert_allclose(logits[real], expected[real], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_model_gives_what_transformers_computed(models, kind):
    logits, token_ids = expected_logits(kind)
    task, params = models[kind].task, models[kind].params
    batch = bert.LabelledBatch(token_ids, None)
    ours = np.log(bert.label_probabilities(task.model, params, batch))
    assert_real_tokens_close(ours, np.asarray(jax.nn.log_softmax(logits)), token_ids)


def test_texts_get_the_labels_of_the_stored_logits(models):
    logits, _ = expected_logits("classification")
    model, texts = models["classification"], TEXTS["classification"]
    found = model.predict(texts, probabilities=True)
    assert [each.label for each in found] == [model.task.data.labels[i] for i in logits.argmax(-1)]
    assert {each.label for each in found[:2]} == {"place", "metal"}
    np.testing.assert_allclose(
        [list(each.probabilities.values()) for each in found], jax.nn.softmax(logits), atol=1e-6
    )
    assert found[0].probability == max(found[0].probabilities.values())
    assert model.predict(texts[:1])[0].probabilities is None


def test_words_get_the_tags_of_the_stored_logits(models):
    """A text, and the list of its words."""
    logits, token_ids = expected_logits("tagging")
    model, texts = models["tagging"], TEXTS["tagging"]
    for text, row, ids in zip(texts, logits, token_ids, strict=True):
        (found,) = model.predict([text])
        pieces = model.task.data.tokenizer.encode_words(found.words)
        starts = np.cumsum([1, *map(len, pieces)])[:-1]
        fits = starts < np.sum(ids != 0) - 1
        tags = [model.task.data.labels[i] for i in row[starts[fits]].argmax(-1)]
        assert list(found.tags[: len(tags)]) == tags
        assert model.predict([list(found.words)])[0].tags == found.tags
    (found,) = model.predict(texts[:1])
    assert found.words == tuple(texts[0].split())
    assert [tuple(each) for each in found.entities] == [
        ("Metal", "zinc iron", 8, 17),
        ("Place", "oslo", 21, 25),
    ]


def test_characters_are_those_of_the_text(models):
    text = "  We sell\tZINC  lead in oslo!"
    (found,) = models["tagging"].predict([text])
    assert [text[each.start : each.end] for each in found.entities] == [
        each.text for each in found.entities
    ]
    assert ("Metal", "ZINC  lead") in [each[:2] for each in found.entities]
    assert ("Place", "oslo") in [each[:2] for each in found.entities]
    assert models["tagging"].task.line(found).startswith("10-20 Metal ZINC lead\t")


def test_a_long_text_is_tagged_to_its_end(models):
    text = "we sell zinc iron in oslo " * 9
    (found,) = models["tagging"].predict([text])
    assert len(found.tags) == 54
    assert found.entities[-1].start > len(text) - 20


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_texts_in_one_compilation(models, kind):
    model = models[kind]
    assert model.predict([]) == []
    (one,) = model.predict(TEXTS[kind][:1])
    with compiles(bert.predict, 0), compiles(bert.label_probabilities, 0):
        found = model.predict(TEXTS[kind][:1] * 70)
    assert [each[:1] for each in found] == [one[:1]] * 70


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_training(models, kind, tmp_path):
    files = tiny_corpora.write_sets(tmp_path, kind)
    scores = models[kind].evaluate(files["test"])
    assert scores["span_f1" if kind == "tagging" else "accuracy"] > 95.0
    assert scores["loss"] < 0.5
    with pytest.raises(InputError, match="data = 'no/such"):
        models[kind].evaluate("no/such.tsv")


def test_labels_that_the_model_lacks_are_refused(models, tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nof oslo,river\n")
    with pytest.raises(InputError, match=r"data = .*training has no 'river'"):
        models["classification"].evaluate(tmp_path / "a.csv")
    (tmp_path / "a.tsv").write_text("oslo\tB-River\n")
    with pytest.raises(InputError, match=r"data = .*training has no 'B-River'"):
        models["tagging"].evaluate(tmp_path / "a.tsv")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("vocab.txt", "[PAD]\n", "lacks"),
        ("tokenizer_config.json", '{"model_max_length": 2}', "model_max_length"),
        ("model.safetensors", "no tensors", "cannot be read"),
        ("config.json", "[]", "holds no JSON object"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, file, content, message):
    folder = shutil.copytree(FOLDERS["tagging"], tmp_path / "copy")
    (folder / file).write_text(content)
    with pytest.raises(InputError, match=rf"{file}.*{message}"):
        cp.load(folder)


def test_a_tagger_may_lack_the_outside_tag(models, tmp_path):
    folder = Path(shutil.copytree(FOLDERS["tagging"], tmp_path / "copy"))
    document = json.loads((folder / "config.json").read_text())
    names = document["id2label"]
    document["id2label"] = {number: names[number].replace("O", "I-Rest") for number in names}
    (folder / "config.json").write_text(json.dumps(document))
    (found,), (expected,) = (m.predict(["we"]) for m in (cp.load(folder), models["tagging"]))
    assert found.tags == tuple(tag.replace("O", "I-Rest") for tag in expected.tags)


def test_a_model_of_another_kind_is_refused(tmp_path):
    folder = shutil.copytree(FOLDERS["tagging"], tmp_path / "copy")
    config = (folder / "config.json").read_text().replace('"tagging"', '"classification"')
    (folder / "config.json").write_text(config)
    with pytest.raises(InputError, match="holds a model for tags"):
        cp.load(folder)


@pytest.fixture
def transformers():
    """The library, whose imports and calls may warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torch")
        yield pytest.importorskip("transformers")


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_still_computes_what_is_stored(transformers, kind):
    logits, token_ids = expected_logits(kind)
    found, ids = peers_logits(transformers, kind)
    np.testing.assert_array_equal(ids, token_ids)
    assert_real_tokens_close(found, logits, token_ids)


def test_pipelines_of_transformers_give_the_same_labels(transformers, models):
    texts = TEXTS["classification"]
    pipe = transformers.pipeline("text-classification", model=str(FOLDERS["classification"]))
    theirs = pipe(texts, truncation=True)
    ours = models["classification"].predict(texts)
    assert [each["label"] for each in theirs] == [each.label for each in ours]
    scores = [each["score"] for each in theirs]
    np.testing.assert_allclose([each.probability for each in ours], scores, atol=1e-5)


def test_pipelines_of_transformers_find_the_same_entities(transformers, models):
    texts = ["we sell zinc iron in oslo", "gold in cairo , and lima ."]
    options = {"model": str(FOLDERS["tagging"]), "aggregation_strategy": "first"}
    theirs = transformers.pipeline("token-classification", **options)(texts)
    ours = [
        [(e.type, e.start, e.end) for e in t.entities] for t in models["tagging"].predict(texts)
    ]
    keys = "entity_group", "start", "end"
    assert [[tuple(e[key] for key in keys) for e in text] for text in theirs] == ours


def test_a_vocabulary_that_is_not_the_tokenizers_is_refused(tmp_path):
    folder = shutil.copytree(FOLDERS["classification"], tmp_path / "model")
    pieces = (folder / "vocab.txt").read_text().splitlines()
    pieces[-1], pieces[-2] = pieces[-2:]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    with pytest.raises(InputError, match=rf"line {len(pieces) - 1} is another piece"):
        cp.load(folder)
