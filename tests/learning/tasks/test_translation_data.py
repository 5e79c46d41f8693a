"""Parallel text as arrays: lengths, splits, vocabulary, and what is refused."""

import numpy as np
import pytest
from support import needs_corpora
from support.tiny_corpora import load_data

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.tasks.sampling import text_key
from collapipe_jax.learning.tasks.scores import bleu
from collapipe_jax.learning.tasks.translation import (
    MAX_LABELS,
    Translation,
    length_labels,
    normalise,
)

SMALL = {
    "corpus": "synthetic",
    "reverse": False,
    "pairs": 600,
    "validation_pairs": 40,
    "test_pairs": 60,
    "vocabulary_size": 300,
    "source_length": 64,
    "target_length": 72,
}
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


@pytest.fixture(scope="module")
def small():
    return load_data(Translation, **SMALL)


@pytest.fixture
def corpus(tmp_path):
    """Sources of 2 to 11 words, each with two translations; one empty pair."""
    path = tmp_path / "corpus.tsv"
    rows = [
        (f"{i} " + " ".join(WORDS[: i % 10 + 1]), f"x {i} y" + " y" * (i % 7)) for i in range(60)
    ]
    text = "".join(f"{s}\t{t}\n{s}!\t{t} z\n" for s, t in rows)
    path.write_text(text + "lonely\t\n", encoding="utf-8")
    return path


def arrays_of(data):
    return data.train, data.validation.arrays, data.test.arrays


def rows_of(arrays):
    return [bytes(row) for row in arrays.source_ids]


def test_shapes_and_types(small):
    for arrays, count in zip(arrays_of(small), (500, 40, 60), strict=True):
        assert arrays.source_ids.shape == (count, 64)
        assert arrays.target_ids.shape == (count, 73)
        assert arrays.source_ids.dtype == arrays.target_ids.dtype == np.int32
        assert arrays.target_ids.max() < small.tokenizer.model.get_vocab_size() <= 300
    assert small.counts["dropped_pairs"] == {"empty": 0, "train": 0, "validation": 0, "test": 0}
    assert small.split_keys.shape == (500,)


@pytest.mark.parametrize("side", ["source_ids", "target_ids"])
def test_rows_are_begin_tokens_end_padding(small, side):
    for row in getattr(small.train, side):
        (end,) = np.flatnonzero(row == 2)
        start = 1 if side == "target_ids" else 0
        assert np.all(row[:start] == 1)
        assert end > start
        assert np.all(row[start:end] > 3)
        assert np.all(row[end + 1 :] == 0)


def test_arrays_hold_the_sentences_of_the_text(small):
    for arrays, text, _ in (small.validation, small.test):
        assert tuple(small.tokenizer.decode_batch(arrays.source_ids)) == text.sources
        assert tuple(small.tokenizer.decode_batch(arrays.target_ids)) == text.references


def test_no_source_leaks(small):
    sets = [set(rows_of(arrays)) for arrays in arrays_of(small)]
    assert len(set.union(*sets)) == sum(map(len, sets)) == 600


def test_the_same_arguments_give_the_same_arrays(small):
    again, other = load_data(Translation, **SMALL), load_data(Translation, seed=1, **SMALL)
    for one, two in zip(small.train, again.train, strict=True):
        assert np.array_equal(one, two)
    assert small.test.text == again.test.text
    assert small.test.text != other.test.text


def test_reverse_swaps_the_sides(small):
    mirror = load_data(Translation, **{**SMALL, "reverse": True})
    forward = dict(zip(*small.test.text, strict=True)) | dict(
        zip(*small.validation.text, strict=True)
    )
    sources = {source.split()[-1] for source in mirror.test.text.sources}
    assert not sources & set(" ".join(forward).split())
    assert set(" ".join(mirror.test.text.references).split()) & set(" ".join(forward).split())


def load_file(corpus, **changes):
    sizes = {"pairs": 110, "validation_pairs": 5, "test_pairs": 5, "vocabulary_size": 200}
    return load_data(Translation, **{**SMALL, **sizes, "corpus": corpus, **changes})


def test_long_pairs_are_dropped_and_counted_never_cut(corpus):
    whole, short = load_file(str(corpus)), load_file(str(corpus), source_length=8)
    assert whole.counts["dropped_pairs"] == {"empty": 1, "train": 0, "validation": 0, "test": 0}
    assert short.counts["dropped_pairs"]["empty"] == 1
    assert short.counts["dropped_pairs"]["train"] > 0
    sets = zip(("train", "validation", "test"), arrays_of(whole), arrays_of(short), strict=True)
    for name, full, kept in sets:
        fits = np.sum(full.source_ids != 0, axis=1) <= 8
        assert np.array_equal(full.source_ids[fits, :8], kept.source_ids)
        assert short.counts["dropped_pairs"][name] == np.sum(~fits)
    assert len(short.split_keys) == len(short.train.source_ids)
    assert len(short.test.text.sources) == len(short.test.arrays.source_ids)


def test_the_longest_pair_fits_exactly(corpus):
    whole = load_file(str(corpus))
    source, target = (int(np.sum(ids != 0, axis=1).max()) for ids in whole.train)
    exact = load_file(str(corpus), source_length=source, target_length=target - 1)
    assert exact.counts["dropped_pairs"]["train"] == 0
    assert load_file(str(corpus), source_length=source - 1).counts["dropped_pairs"]["train"] > 0
    assert load_file(str(corpus), target_length=target - 2).counts["dropped_pairs"]["train"] > 0


def test_translations_of_one_sentence_stay_in_one_set(corpus):
    data = load_file(str(corpus))
    keys = [
        {text_key(text) for text in data.tokenizer.decode_batch(arrays.source_ids)}
        for arrays in arrays_of(data)
    ]
    assert [len(k) for k in keys] == [50, 5, 5]
    assert len(set.union(*keys)) == 60
    assert len(data.train.source_ids) == 100


def test_pairs_limits_the_corpus(corpus):
    assert len(load_file(str(corpus), pairs=45).train.source_ids) == 35


def test_two_aligned_files_and_relative_names(corpus, monkeypatch):
    lines = [line.split("\t") for line in corpus.read_text(encoding="utf-8").splitlines()]
    for column, name in enumerate(("a.txt", "b.txt")):
        text = "".join(line[column] + "\n" for line in lines)
        (corpus.parent / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv("COLLAPIPE_DATA", str(corpus.parent))
    two, one = load_file("a.txt|b.txt"), load_file("corpus.tsv")
    assert np.array_equal(two.train.target_ids, one.train.target_ids)
    assert two.counts["dropped_pairs"] == one.counts["dropped_pairs"]


def test_the_vocabulary_is_learnt_from_training_text_alone(corpus):
    # every one of these sources has a character of its own
    rare = "".join(f"{chr(0x6F00 + i)}\tx\n" for i in range(60))
    corpus.write_text(corpus.read_text(encoding="utf-8") + rare, encoding="utf-8")
    data = load_file(str(corpus))
    held_out = np.concatenate([data.validation.arrays.source_ids, data.test.arrays.source_ids])
    assert np.any(held_out == 3)
    assert not np.any(data.train.source_ids == 3)


def test_length_labels_are_ordered_classes_of_about_equal_size():
    lengths = np.random.default_rng(0).permutation(np.arange(800))
    labels = length_labels(lengths)
    assert np.all(np.diff(labels[np.argsort(lengths)]) >= 0)
    counts = np.bincount(labels)
    assert len(counts) == MAX_LABELS
    assert np.all(np.abs(counts - 100) <= 1)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([5, 5, 5], [0, 0, 0]), ([9, 3, 3, 9], [1, 0, 0, 1]), ([3] * 90 + [8], [0] * 90 + [1])],
)
def test_equal_lengths_share_a_label_and_labels_have_no_gaps(lengths, expected):
    assert length_labels(np.array(lengths)).tolist() == expected


def test_keys_follow_the_length_of_the_source(small):
    lengths = np.sum(small.train.source_ids != 0, axis=1)
    assert 4 <= len(np.unique(small.split_keys)) <= MAX_LABELS
    for label in range(1, small.split_keys.max() + 1):
        assert (
            lengths[small.split_keys == label].min() > lengths[small.split_keys == label - 1].max()
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pairs": 100}, r"task\.pairs = 100: validation and test take 100 of them"),
        ({"target_length": 3}, r"= \(64, 3\): none of the 500 pairs for train fits"),
        ({"vocabulary_size": 20}, r"task\.vocabulary_size = 20: the characters"),
        ({"corpus": "no/such.tsv"}, r"task\.corpus = 'no/such\.tsv': no such file"),
    ],
)
def test_wrong_arguments_are_named_with_a_remedy(change, message):
    with pytest.raises(InputError, match=message) as caught:
        load_data(Translation, **{**SMALL, **change})
    assert caught.value.remedy in str(caught.value)


@pytest.mark.slow
@needs_corpora
def test_the_real_corpus_in_arrays():
    data = load_data(
        Translation,
        **{
            **SMALL,
            "corpus": "mt_tatoeba_deu_eng/deu.txt",
            "pairs": 30_000,
            "validation_pairs": 1000,
            "test_pairs": 1000,
            "vocabulary_size": 4000,
            "source_length": 24,
            "target_length": 28,
        },
    )
    assert data.tokenizer.model.get_vocab_size() == 4000
    kept = len(data.train.source_ids)
    assert kept + data.counts["dropped_pairs"]["train"] == 28_000
    assert 0.97 < kept / 28_000 < 1
    sources = data.tokenizer.decode_batch(data.train.source_ids)
    held_out = {*data.test.text.sources, *data.validation.text.sources}
    assert not held_out & set(sources)
    assert all(normalise(text) == text for text in held_out)
    assert bleu(*data.test.text, "13a").value < 2
    assert 4 <= len(np.unique(data.split_keys)) <= MAX_LABELS
