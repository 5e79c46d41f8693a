import json
import os
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collapipe_jax.errors import InputError
from collapipe_jax.tasks.classification_data import load_classification, stratified_draw
from collapipe_jax.tasks.subwords import SPECIAL_PIECES

CLASSES = {"light on": 12, "pay bill": 8, "block card": 4}
DOMAINS = {"home": ["light on"], "bank": ["pay bill", "block card"], "unused": ["other"]}


@pytest.fixture
def files(tmp_path):
    entries = [[f"please {c} number {i}", c] for c, count in CLASSES.items() for i in range(count)]
    held_out = [[f"do {c} now", c] for c in CLASSES]
    content = {"train": entries, "val": held_out, "test": [*held_out, ["zzz", "pay bill"]]}
    (tmp_path / "data.json").write_text(json.dumps(content), encoding="utf-8")
    letters = string.ascii_lowercase.replace("z", "") + string.digits
    pieces = [*SPECIAL_PIECES, *letters, *(f"##{letter}" for letter in letters)]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    (tmp_path / "domains.json").write_text(json.dumps(DOMAINS), encoding="utf-8")
    return tmp_path


def load(folder, **changes):
    arguments = {
        "train": f"{folder}/data.json#train",
        "validation": f"{folder}/data.json#val",
        "test": f"{folder}/data.json#test",
        "domains": "",
        "vocabulary": folder / "vocab.txt",
        "vocabulary_size": 0,
        "length": 32,
        "seed": 0,
    }
    return load_classification(**{**arguments, **changes})


def texts(data, arrays):
    """Texts again, but for spaces."""
    return [
        "".join(data.wordpiece.pieces[i] for i in row if i > 3).replace("##", "")
        for row in arrays.token_ids
    ]


def test_arrays_hold_texts_and_sorted_classes(files):
    data = load(files)
    assert data.labels == ("block card", "light on", "pay bill")
    assert data.train.token_ids.shape == (24, 32)
    assert data.train.labels.tolist() == [1] * 12 + [2] * 8 + [0] * 4
    assert data.test.labels.tolist() == [1, 2, 0, 2]
    assert texts(data, data.validation) == ["dolightonnow", "dopaybillnow", "doblockcardnow"]
    assert np.all(data.train.token_ids[:, 0] == 2)
    assert list(data.cut.values()) == [0, 0, 0]
    for arrays in (data.train, data.validation, data.test):
        assert arrays.token_ids.dtype == arrays.labels.dtype == np.int32
    assert 1 in data.test.token_ids[3]  # "z" is no piece


def test_long_texts_are_cut_and_counted(files):
    whole, short = load(files), load(files, length=6)
    sizes = [np.sum(a.token_ids != 0, axis=1) for a in (whole.train, whole.validation, whole.test)]
    assert list(short.cut.values()) == [np.sum(s > 6) for s in sizes]
    assert short.cut["train"] > 0
    assert np.array_equal(short.train.token_ids[:, :5], whole.train.token_ids[:, :5])


def test_a_vocabulary_is_learnt_from_the_training_texts_alone(files):
    data = load(files, vocabulary="", vocabulary_size=80)
    characters = {piece.removeprefix("##") for piece in data.wordpiece.pieces}
    assert {"p", "1"} <= characters
    assert not {"z", "w"} & characters


def test_keys_are_classes_or_domains(files):
    assert np.array_equal(load(files).split_keys, load(files).train.labels)
    assert load(files).key_names == load(files).labels
    data = load(files, domains=files / "domains.json")
    assert data.key_names == ("bank", "home")
    assert data.split_keys.tolist() == [1] * 12 + [0] * 12
    assert data.split_keys.dtype == np.int32


def test_validation_can_be_taken_from_training(files):
    whole = load(files)
    data = load(files, validation="", validation_samples=6)
    assert np.bincount(data.validation.labels).tolist() == [1, 3, 2]
    assert np.bincount(data.train.labels).tolist() == [3, 9, 6]
    together = texts(data, data.train) + texts(data, data.validation)
    assert sorted(together) == sorted(texts(whole, whole.train))
    other = load(files, validation="", validation_samples=6, seed=1)
    assert texts(other, other.validation) != texts(data, data.validation)
    again = load(files, validation="", validation_samples=6)
    assert np.array_equal(again.validation.token_ids, data.validation.token_ids)


def test_a_part_of_training_is_stratified_and_apart_from_validation(files):
    data = load(files, validation="", validation_samples=6, samples=6)
    assert np.bincount(data.train.labels).tolist() == [1, 3, 2]
    assert not set(texts(data, data.train)) & set(texts(data, data.validation))
    assert len(load(files, samples=99).train.labels) == 24
    assert load(files, samples=1).labels == load(files).labels


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60), st.floats(0, 1), st.integers(0, 5))
def test_a_stratified_draw_gives_each_label_its_share(labels, share, seed):
    labels = np.array(labels)
    size = round(share * len(labels))
    drawn = stratified_draw(labels, size, seed)
    assert len(drawn) == len(set(drawn.tolist())) == size
    assert np.all(np.diff(drawn) > 0)
    for label in np.unique(labels):
        exact = size * np.mean(labels == label)
        assert abs(np.sum(labels[drawn] == label) - exact) < 1
    assert np.array_equal(drawn, stratified_draw(labels, size, seed))


def test_a_stratified_draw_is_random_within_labels_and_in_its_ties():
    labels = np.repeat(np.arange(4), 50)
    draws = [stratified_draw(labels, 6, seed) for seed in range(40)]
    assert {tuple(np.bincount(labels[d], minlength=4)) for d in draws} > {
        (1, 1, 2, 2),
        (2, 2, 1, 1),
    }
    assert abs(np.mean(np.concatenate(draws)) - 99.5) < 12  # 3 deviations


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 2}, r"task\.source_length = 2: no room"),
        ({"samples": -1}, r"task\.samples = -1"),
        ({"seed": -1}, r"seed = -1"),
        ({"validation": ""}, r"task\.validation_samples = 0: there is no task\.validation"),
        ({"validation_samples": 3}, r"validation_samples = 3: task\.validation names a file"),
        ({"validation": "", "validation_samples": 24}, "none would be left to train on"),
        ({"train": "no/such.csv"}, r"task\.train = 'no/such\.csv': no such file"),
        ({"test": "no/such.csv"}, r"task\.test = 'no/such\.csv': no such file"),
        ({"domains": "no/such.json"}, r"task\.domains = 'no/such\.json': no such file"),
        ({"vocabulary": "no/such"}, r"task\.vocabulary = 'no/such': no such file"),
        ({"vocabulary": "", "vocabulary_size": 9}, r"task\.vocabulary_size = 9"),
    ],
)
def test_wrong_arguments_are_named(files, change, message):
    with pytest.raises(InputError, match=message):
        load(files, **change)


def test_a_class_that_training_lacks_is_refused(files):
    (files / "new.csv").write_text("text,label\nhello,greeting\nx,pay bill\n", encoding="utf-8")
    for key in ("validation", "test"):
        with pytest.raises(InputError, match=f"task.{key} = .*training has no 'greeting'"):
            load(files, **{key: files / "new.csv"})


def test_a_class_without_a_domain_is_refused(files):
    (files / "domains.json").write_text('{"home": ["light on"]}', encoding="utf-8")
    with pytest.raises(InputError, match="2 classes have no domain, the first 'block card'"):
        load(files, domains=files / "domains.json")


@pytest.mark.skipif("COLLAPIPE_DATA" not in os.environ, reason="COLLAPIPE_DATA is not set")
def test_the_real_corpora():
    bert = {"vocabulary": "vocab_bert/bert-base-uncased-vocab.txt", "vocabulary_size": 0}
    file = "cls_clinc150/data_full.json"
    data = load_classification(
        train=f"{file}#train",
        validation=f"{file}#val",
        test=f"{file}#test",
        domains="cls_clinc150/domains.json",
        length=32,
        seed=0,
        **bert,
    )
    assert [len(a.labels) for a in (data.train, data.validation, data.test)] == [15000, 3000, 4500]
    assert np.all(np.bincount(data.train.labels) == 100)
    assert np.all(np.bincount(data.split_keys) == 1500)
    assert sum(data.cut.values()) < 5
    data = load_classification(
        train="cls_banking77/train.csv",
        validation="",
        test="cls_banking77/test.csv",
        domains="",
        length=64,
        seed=0,
        validation_samples=1000,
        **bert,
    )
    assert (len(data.train.labels), len(data.validation.labels)) == (9003, 1000)
    share = np.bincount(data.validation.labels) / np.bincount(data.train.labels)
    assert np.all(np.abs(share - 1 / 9) < 0.04)
    assert np.all(np.bincount(data.test.labels) == 40)
