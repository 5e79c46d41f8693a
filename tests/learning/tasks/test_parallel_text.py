"""Parallel text as read, normalised and split by source."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import needs_corpora

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.tasks.sampling import text_key
from collapipe_jax.learning.tasks.translation import normalise, read_parallel_text, split_by_source

ODD = "\u00a0\u202f\u200b\u00ad\u2019\u201e\u201c\u2581\u0301e\t\r\n\u2028 \u3000\u1fef\ufeff"


def test_normalise_on_each_kind_of_oddity():
    assert normalise("\u201eIt\u2019s\u201c\u00a0 so\u202f\tmu\u00adch ") == '"It\'s" so much'
    assert normalise("e\u0301") == "\u00e9"
    assert normalise("a\u2581b") == "a_b"


@given(st.text(alphabet=st.one_of(st.sampled_from(ODD), st.characters(codec="utf-8"))))
def test_normalise_is_idempotent(text):
    once = normalise(text)
    assert normalise(once) == once
    assert unicodedata.is_normalized("NFC", once)
    assert once == " ".join(once.split(" ")).strip()


def test_normalise_is_idempotent_on_every_character():
    for character in map(chr, range(sys.maxunicode + 1)):
        # None is normalised that is unassigned, private or half of a pair.
        if unicodedata.category(character) not in ("Cn", "Co", "Cs"):
            once = normalise(character)
            assert normalise(once) == once


def test_text_key_ignores_case_and_punctuation():
    assert text_key("Run!") == text_key("run.") != text_key("Runs.")
    assert text_key("?!") == "?!"
    assert text_key("Hi \u263a\ufe0f!") == text_key("hi")
    for one, other in (("กิน", "กัน"), ("कि", "की"), ("e\u0301", "e\u0300")):
        assert text_key(one) != text_key(other)
    assert text_key("กิน!") == text_key("กิน")


def test_reads_two_columns_and_counts_empty_pairs(tmp_path):
    path = tmp_path / "corpus.tsv"
    text = "\ufeffHi.\tHallo.\tignored\r\n\nBye.\t \n  \nSo\u2028what?\tNa und?"
    path.write_bytes(text.encode())
    assert read_parallel_text(str(path)) == ([("Hi.", "Hallo."), ("So what?", "Na und?")], 3)


def test_a_mark_of_byte_order_is_no_text(tmp_path):
    path = tmp_path / "corpus.tsv"
    path.write_bytes("\ufeff\na\tb\n".encode())
    assert read_parallel_text(str(path)) == ([("a", "b")], 1)


def test_reads_two_aligned_files(tmp_path):
    (tmp_path / "a").write_text("one\n\nthree\n", encoding="utf-8")
    (tmp_path / "b").write_text("eins\nzwei\ndrei\n", encoding="utf-8")
    pairs, empty = read_parallel_text(f"{tmp_path}/a|{tmp_path}/b")
    assert (pairs, empty) == ([("one", "eins"), ("three", "drei")], 1)
    with pytest.raises(InputError, match="more than two files"):
        read_parallel_text("a|b|c")


def test_misaligned_files_tell_both_counts(tmp_path):
    (tmp_path / "a").write_text("one\ntwo\n", encoding="utf-8")
    (tmp_path / "b").write_text("eins\nzwei\ndrei\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"task\.corpus = .*the files have 2 and 3 lines"):
        read_parallel_text(f"{tmp_path}/a|{tmp_path}/b")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\n\nno tab here\n", "line 3 has no tab"),
        (b"a\tb\nGr\xfc\xdfe\tx\n", "line 2 holds bytes that are not UTF-8"),
    ],
)
def test_broken_lines_are_numbered(tmp_path, content, message):
    path = tmp_path / "corpus.tsv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_parallel_text(str(path))
    assert caught.value.key == "task.corpus"
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"task\.corpus = .*nowhere.*no such file"):
        read_parallel_text(f"{tmp_path}/nowhere.tsv")


@given(
    st.lists(st.integers(0, 30), min_size=20, max_size=80),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 5),
)
def test_split_is_disjoint_by_source(sources, validation, test, seed):
    pairs = [(str(s), f"{s}/{i}") for i, s in enumerate(sources)]
    groups = {s for s, _ in pairs}
    if len(groups) <= validation + test:
        return
    everything = split_by_source(pairs, (0, validation, test), seed)
    held_out = {s for part in everything[1:] for s, _ in part}
    train = sum(s not in held_out for s, _ in pairs)
    split = split_by_source(pairs, (train, validation, test), seed)
    parts = [{s for s, _ in part} for part in split]
    assert parts[0] | parts[1] | parts[2] == groups
    assert sum(map(len, parts)) == len(groups)
    assert (len(split.validation), len(split.test)) == (validation, test)
    # training keeps every pair of its groups, the others the first of the corpus
    assert sorted(split.train) == sorted(p for p in pairs if p[0] in parts[0])
    for pair in split.validation + split.test:
        assert pair == next(p for p in pairs if p[0] == pair[0])
    assert split == split_by_source(pairs, (train, validation, test), seed)


def test_split_takes_the_asked_sizes_and_is_shuffled():
    pairs = [(str(i), "x") for i in range(500)]
    split = split_by_source(pairs, (100, 20, 30), 0)
    assert [len(part) for part in split] == [100, 20, 30]
    assert split.train != sorted(split.train, key=lambda p: int(p[0]))
    assert split != split_by_source(pairs, (100, 20, 30), 1)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((1, 5, 5), "10 distinct source sentences, too few to hold out 5"),
        ((9, 1, 1), "only 8 pairs for training"),
    ],
)
def test_impossible_splits(sizes, message):
    with pytest.raises(InputError, match=message):
        split_by_source([(str(i), "x") for i in range(10)], sizes, 0)


@pytest.mark.slow
@needs_corpora
def test_the_real_corpus_reads_clean():
    pairs, empty = read_parallel_text("mt_tatoeba_deu_eng/deu.txt")
    assert (len(pairs), empty) == (169813, 0)
    text = " ".join(side for pair in pairs for side in pair)
    assert not set(text) & set("\u00a0\u202f\u2019\u201e\u201c\u200b\u00ad\u2581\n\t")
