import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collapipe_jax.errors import InputError
from collapipe_jax.models.bert import LabelledBatch
from collapipe_jax.tasks.scores import memorised_tag_baseline, span_f1
from collapipe_jax.tasks.subwords import SPECIAL_PIECES
from collapipe_jax.tasks.tagging_data import (
    TaggedText,
    cut_at_words,
    load_tagging,
    word_tags,
)

VOCABULARY = [*SPECIAL_PIECES, "we", "met", "mary", "in", "new", "york", "##er", "##s", "with", "."]
TRAIN = (
    "We\tO\nmet\tO\nMary\tB-person\n.\tO\n\n"
    "In\tO\nNew\tB-place\nYork\tI-place\nwith\tO\nMary\tB-person\nin\tO\nYork\tB-place\n\n"
    "met\tO\n\n"
    "Mary\tB-person\nYork\tB-place\n"
)
TEST = "New\tB-place\nYorkers\tI-place\nmet\tO\nMary\tB-person\nwith\tO\nwe\tO\n\nqqq\tO\n"


@pytest.fixture
def files(tmp_path):
    contents = {"train": TRAIN, "validation": TEST, "test": TEST}
    for name, text in contents.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return tmp_path


def load(folder, **changes):
    arguments = {
        "train": folder / "train",
        "validation": folder / "validation",
        "test": folder / "test",
        "vocabulary": folder / "vocab.txt",
        "vocabulary_size": 0,
        "length": 12,
        "samples": 0,
        "seed": 0,
    }
    return load_tagging(**{**arguments, **changes})


def ids(text):
    return [VOCABULARY.index(piece) for piece in text.split()]


def test_labels_stand_on_first_subwords(files):
    data = load(files)
    assert data.labels == ("O", "B-person", "I-person", "B-place", "I-place")
    row = ids("[CLS] new york ##er ##s met mary with we [SEP]")
    assert data.test.token_ids.tolist() == [[*row, 0, 0], ids("[CLS] [UNK] [SEP]") + [0] * 9]
    assert data.test.labels.tolist() == [
        [-1, 3, 4, -1, -1, 0, 1, 0, 0, -1, -1, -1],
        [-1, 0] + [-1] * 10,
    ]
    for arrays in (data.train, data.validation, data.test):
        assert arrays.token_ids.dtype == arrays.labels.dtype == np.int32


def test_windows_end_between_words_and_lose_none(files):
    data = load(files, length=5)
    assert data.test.token_ids.tolist() == [
        ids("[CLS] new [SEP] [PAD] [PAD]"),  # the next word has three pieces
        ids("[CLS] york ##er ##s [SEP]"),
        ids("[CLS] met mary with [SEP]"),
        ids("[CLS] we [SEP] [PAD] [PAD]"),
        ids("[CLS] [UNK] [SEP] [PAD] [PAD]"),
    ]
    assert data.test_text.sentence_of_window.tolist() == [0, 0, 0, 0, 1]


def test_a_word_longer_than_a_window_keeps_its_first_pieces(files):
    data = load(files, length=4)
    assert ids("[CLS] york ##er [SEP]") in data.test.token_ids.tolist()
    assert np.sum(data.test.labels != -1) == 7
    assert np.sum(load(files, length=3).test.labels != -1) == 7


@pytest.mark.parametrize("length", [3, 4, 5, 12])
def test_tags_come_back_on_the_words(files, length):
    data = load(files, length=length)
    sets = (
        (data.train, data.train_text),
        (data.validation, data.validation_text),
        (data.test, data.test_text),
    )
    for arrays, text in sets:
        tags = [list(sentence.tags) for sentence in text.sentences]
        assert word_tags(data.labels, arrays, text, arrays.labels) == tags
        # what stands elsewhere is not read
        noise = np.where(arrays.labels == -1, 99, 0)
        outside = [["O"] * len(row) for row in tags]
        assert word_tags(data.labels, arrays, text, noise) == outside


@given(st.lists(st.integers(1, 7), min_size=1, max_size=30), st.integers(7, 12))
def test_windows_partition_the_words_greedily(sizes, room):
    windows = cut_at_words(sizes, room)
    assert [i for start, stop in windows for i in range(start, stop)] == list(range(len(sizes)))
    assert all(0 < sum(sizes[start:stop]) <= room for start, stop in windows)
    assert all(sum(sizes[start : stop + 1]) > room for start, stop in windows[:-1])


def test_keys_name_the_dominant_type_of_the_sentence(files):
    data = load(files)
    assert data.entity_types == ("person", "place")
    # one person; two places and a person; nothing; one of each: the first type
    assert data.split_keys.tolist() == [1, 2, 0, 1]
    windows = load(files, length=3)
    owners = windows.train_text.sentence_of_window
    assert windows.split_keys.tolist() == [[1, 2, 0, 1][owner] for owner in owners]
    assert windows.split_keys.dtype == np.int32


def test_a_part_of_training_is_drawn_by_seed(files):
    draws = [load(files, samples=2, seed=seed).train_text.sentences for seed in range(8)]
    whole = load(files).train_text.sentences
    assert len(set(draws)) > 1
    for draw in draws:
        first, second = (whole.index(sentence) for sentence in draw)
        assert first < second
    assert draws[3] == load(files, samples=2, seed=3).train_text.sentences
    assert load(files, samples=99).train_text.sentences == whole
    # tags are those of the whole file, whatever was drawn
    assert load(files, samples=1).labels == load(files).labels


def test_a_vocabulary_is_learnt_from_the_training_words_alone(files):
    data = load(files, vocabulary="", vocabulary_size=60)
    characters = {piece.removeprefix("##") for piece in data.wordpiece.pieces}
    assert {"w", "y", "."} <= characters
    assert "q" not in characters  # of the test set
    assert "W" not in characters
    assert "W" in load(files, vocabulary="", vocabulary_size=60, lowercase=False).wordpiece.pieces


def test_names_below_the_data_directory(files, monkeypatch):
    monkeypatch.setenv("COLLAPIPE_DATA", str(files))
    names = {name: name for name in ("train", "validation", "test")}
    data = load(files, **names, vocabulary="vocab.txt")
    assert np.array_equal(data.test.labels, load(files).test.labels)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 2}, r"task\.source_length = 2: no room"),
        ({"samples": -1}, r"task\.samples = -1"),
        ({"seed": -1}, r"seed = -1"),
        ({"train": "no/such"}, r"task\.train = 'no/such': no such file"),
        ({"validation": "no/such"}, r"task\.validation = 'no/such': no such file"),
        ({"test": "no/such"}, r"task\.test = 'no/such': no such file"),
        ({"vocabulary": "no/such"}, r"task\.vocabulary = 'no/such': no such file"),
        ({"vocabulary": "", "vocabulary_size": 5}, r"task\.vocabulary_size = 5"),
    ],
)
def test_wrong_arguments_are_named(files, change, message):
    with pytest.raises(InputError, match=message):
        load(files, **change)


def test_a_type_that_training_lacks_is_refused(files):
    (files / "validation").write_text("a\tB-group\nb\tI-place\n".replace("I-place", "O"))
    with pytest.raises(InputError, match=r"task\.validation = .*training has no 'B-group'"):
        load(files)
    # an I- tag is known where its type is, seen or not
    (files / "validation").write_text("a\tB-person\nb\tI-person\n")
    assert load(files).validation.labels[0, :3].tolist() == [-1, 1, 2]


def test_predictions_of_another_form_are_refused():
    arrays = LabelledBatch(np.array([[2, 5, 3]]), np.array([[-1, 0, -1]]))
    text = TaggedText((), np.array([0]))
    with pytest.raises(InputError, match=r"predicted = \(1, 2\): the windows have the shape"):
        word_tags(("O",), arrays, text, np.zeros((1, 2), int))
    for wrong in (-1, 1):
        with pytest.raises(InputError, match="there are only 1 tags"):
            word_tags(
                ("O",), arrays, TaggedText((((), ()),), np.array([0])), np.full((1, 3), wrong)
            )


@pytest.mark.skipif("COLLAPIPE_DATA" not in os.environ, reason="COLLAPIPE_DATA is not set")
def test_the_real_corpus():
    data = load_tagging(
        train="ner_wnut17/wnut17train.conll",
        validation="ner_wnut17/emerging.dev.conll",
        test="ner_wnut17/emerging.test.annotated",
        vocabulary="vocab_bert/bert-base-cased-vocab.txt",
        vocabulary_size=0,
        length=32,
        samples=0,
        seed=0,
        lowercase=False,
    )
    assert len(data.labels) == 13
    assert np.sum(data.test.labels != -1) == 23394
    assert np.mean(data.test.token_ids == 100) < 0.005
    true = [sentence.tags for sentence in data.test_text.sentences]
    tags = word_tags(data.labels, data.test, data.test_text, data.test.labels)
    assert span_f1(true, tags).value == 100
    train, test = data.train_text.sentences, data.test_text.sentences
    columns = [[getattr(s, c) for s in text] for text in (train, test) for c in ("tokens", "tags")]
    assert 0 < memorised_tag_baseline(*columns).value < 20
