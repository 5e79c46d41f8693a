import os
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collapipe_jax.errors import InputError
from collapipe_jax.tasks.corpora import resolve_corpus
from collapipe_jax.tasks.parallel_text import normalise, read_parallel_text, split_by_group

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
    for code in range(0x110000):
        if not 0xD800 <= code < 0xE000:
            once = normalise(chr(code))
            assert normalise(once) == once


def test_reads_two_columns_and_counts_empty_pairs(tmp_path):
    path = tmp_path / "corpus.tsv"
    text = "\ufeffHi.\tHallo.\tignored\r\n\nBye.\t \n  \nSo\u2028what?\tNa und?"
    path.write_bytes(text.encode())
    corpus = read_parallel_text(path)
    assert corpus.pairs == [("Hi.", "Hallo."), ("So what?", "Na und?")]
    assert corpus.empty_lines == 3


def test_a_mark_of_byte_order_is_no_text(tmp_path):
    path = tmp_path / "corpus.tsv"
    path.write_bytes("\ufeff\na\tb\n".encode())
    assert read_parallel_text(path) == ([("a", "b")], 1)


def test_reads_two_aligned_files(tmp_path):
    (tmp_path / "a").write_text("one\n\nthree\n", encoding="utf-8")
    (tmp_path / "b").write_text("eins\nzwei\ndrei\n", encoding="utf-8")
    corpus = read_parallel_text((tmp_path / "a", tmp_path / "b"))
    assert corpus.pairs == [("one", "eins"), ("three", "drei")]
    assert corpus.empty_lines == 1


def test_misaligned_files_tell_both_counts(tmp_path):
    (tmp_path / "a").write_text("one\ntwo\n", encoding="utf-8")
    (tmp_path / "b").write_text("eins\nzwei\ndrei\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"task\.corpus = .*the files have 2 and 3 lines"):
        read_parallel_text((tmp_path / "a", tmp_path / "b"))


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
        read_parallel_text(path)
    assert caught.value.key == "task.corpus"
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"task\.corpus = .*nowhere.*No such file"):
        read_parallel_text(tmp_path / "nowhere.tsv")


def test_resolve_finds_paths_and_names(tmp_path, monkeypatch):
    (tmp_path / "data" / "deep").mkdir(parents=True)
    file = tmp_path / "data" / "deep" / "c.tsv"
    file.write_text("a\tb\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLLAPIPE_DATA", raising=False)
    assert resolve_corpus(str(file)) == file
    assert resolve_corpus("data/deep/c.tsv").samefile(file)
    monkeypatch.setenv("COLLAPIPE_DATA", str(tmp_path / "data"))
    assert resolve_corpus("deep/c.tsv").samefile(file)


def test_the_working_directory_wins(tmp_path, monkeypatch):
    for place in ("data", "here"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "c").write_text(place, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COLLAPIPE_DATA", str(tmp_path / "data"))
    assert resolve_corpus("c").read_text(encoding="utf-8") == "here"


def test_resolve_tells_how_to_set_the_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("COLLAPIPE_DATA", raising=False)
    with pytest.raises(InputError, match=r"'no/c\.tsv'.*COLLAPIPE_DATA is not set.*export"):
        resolve_corpus("no/c.tsv")
    monkeypatch.setenv("COLLAPIPE_DATA", str(tmp_path))
    with pytest.raises(InputError, match=f"nor in COLLAPIPE_DATA .{tmp_path}"):
        resolve_corpus("no/c.tsv")
    with pytest.raises(InputError, match="no such file"):
        resolve_corpus(tmp_path)  # a directory is no corpus


def first(pair):
    return pair[0]


@given(
    st.lists(st.integers(0, 30), min_size=20, max_size=80),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 5),
)
def test_split_is_disjoint_by_group(sources, validation, test, seed):
    pairs = [(str(s), f"{s}/{i}") for i, s in enumerate(sources)]
    groups = {s for s, _ in pairs}
    if len(groups) <= validation + test:
        return
    split = split_by_group(pairs, first, (None, validation, test), seed)
    parts = [{s for s, _ in part} for part in split]
    assert parts[0] | parts[1] | parts[2] == groups
    assert sum(map(len, parts)) == len(groups)
    assert (len(split.validation), len(split.test)) == (validation, test)
    # training keeps every pair of its groups, the others the first of the corpus
    assert sorted(split.train) == sorted(p for p in pairs if p[0] in parts[0])
    for pair in split.validation + split.test:
        assert pair == next(p for p in pairs if p[0] == pair[0])
    assert split == split_by_group(pairs, first, (None, validation, test), seed)


def test_split_takes_the_asked_sizes_and_is_shuffled():
    pairs = [(str(i), "x") for i in range(500)]
    split = split_by_group(pairs, first, (100, 20, 30), 0)
    assert [len(part) for part in split] == [100, 20, 30]
    assert split.train != sorted(split.train, key=lambda p: int(p[0]))
    assert split != split_by_group(pairs, first, (100, 20, 30), 1)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((None, 5, 5), "10 distinct source sentences, too few to hold out 5"),
        ((9, 1, 1), "only 8 pairs for training"),
        ((0, 1, 1), "nothing of it is left for training"),
        ((1, -1, 1), r"task\.validation_pairs = -1"),
    ],
)
def test_impossible_splits(sizes, message):
    with pytest.raises(InputError, match=message):
        split_by_group([(str(i), "x") for i in range(10)], first, sizes, 0)


@pytest.mark.skipif("COLLAPIPE_DATA" not in os.environ, reason="COLLAPIPE_DATA is not set")
def test_the_real_corpus_reads_clean():
    corpus = read_parallel_text(resolve_corpus("mt_tatoeba_deu_eng/deu.txt"))
    assert len(corpus.pairs) == 169813
    assert corpus.empty_lines == 0
    text = " ".join(side for pair in corpus.pairs for side in pair)
    assert not set(text) & set("\u00a0\u202f\u2019\u201e\u201c\u200b\u00ad\u2581\n\t")
