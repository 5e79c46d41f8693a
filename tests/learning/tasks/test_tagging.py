import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import needs_corpora
from support.tiny_corpora import load_data

from collapipe_jax.core.errors import InputError, InputWarning
from collapipe_jax.learning.tasks.corpora import TextFile
from collapipe_jax.learning.tasks.scores import memorised_tags, span_f1
from collapipe_jax.learning.tasks.subwords import SPECIAL_PIECES
from collapipe_jax.learning.tasks.tagging import (
    TaggedSentence,
    Tagging,
    cut_at_words,
    read_tagged_text,
    word_tags,
)
from collapipe_jax.learning.tasks.task import ScoredSet

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
        "train": f"{folder}/train",
        "validation": f"{folder}/validation",
        "test": f"{folder}/test",
        "vocabulary": f"{folder}/vocab.txt",
        "vocabulary_size": 0,
        "source_length": 12,
        "samples": 0,
        "lowercase": True,
        "validation_samples": 0,
    }
    return load_data(Tagging, **{**arguments, **changes})


def ids(text):
    return [VOCABULARY.index(piece) for piece in text.split()]


def test_labels_stand_on_first_subwords(files):
    data = load(files)
    assert data.labels == ("O", "B-person", "I-person", "B-place", "I-place")
    row = ids("[CLS] new york ##er ##s met mary with we [SEP]")
    assert data.test.arrays.token_ids.tolist() == [[*row, 0, 0], ids("[CLS] [UNK] [SEP]") + [0] * 9]
    assert data.test.arrays.labels.tolist() == [
        [-1, 3, 4, -1, -1, 0, 1, 0, 0, -1, -1, -1],
        [-1, 0] + [-1] * 10,
    ]
    for arrays in (data.train, data.validation.arrays, data.test.arrays):
        assert arrays.token_ids.dtype == arrays.labels.dtype == np.int32


def test_windows_end_between_words_and_lose_none(files):
    data = load(files, source_length=5)
    assert data.test.arrays.token_ids.tolist() == [
        ids("[CLS] new [SEP] [PAD] [PAD]"),  # the next word has three pieces
        ids("[CLS] york ##er ##s [SEP]"),
        ids("[CLS] met mary with [SEP]"),
        ids("[CLS] we [SEP] [PAD] [PAD]"),
        ids("[CLS] [UNK] [SEP] [PAD] [PAD]"),
    ]
    assert data.test.text.sentence_of_window.tolist() == [0, 0, 0, 0, 1]


def test_a_word_longer_than_a_window_keeps_its_first_pieces(files):
    data = load(files, source_length=4)
    assert ids("[CLS] york ##er [SEP]") in data.test.arrays.token_ids.tolist()
    assert np.sum(data.test.arrays.labels != -1) == 7
    assert np.sum(load(files, source_length=3).test.arrays.labels != -1) == 7


@pytest.mark.parametrize("length", [3, 4, 5, 12])
def test_tags_come_back_on_the_words(files, length):
    data = load(files, source_length=length)
    for samples in (ScoredSet(data.train, data.train_text), data.validation, data.test):
        arrays = samples.arrays
        tags = [list(sentence.tags) for sentence in samples.text.sentences]
        assert word_tags(data.labels, samples, arrays.labels) == tags
        # other fields are not read
        noise = np.where(arrays.labels == -1, 99, 0)
        outside = [["O"] * len(row) for row in tags]
        assert word_tags(data.labels, samples, noise) == outside


@given(st.lists(st.integers(1, 7), min_size=1, max_size=30), st.integers(7, 12))
def test_windows_partition_the_words_greedily(sizes, room):
    windows = cut_at_words(sizes, room)
    assert [i for start, stop in windows for i in range(start, stop)] == list(range(len(sizes)))
    assert all(0 < sum(sizes[start:stop]) <= room for start, stop in windows)
    assert all(sum(sizes[start : stop + 1]) > room for start, stop in windows[:-1])


def test_keys_name_the_dominant_type_of_the_sentence(files):
    data = load(files)
    # one person; two places and a person; nothing; one of each: the first type
    assert data.split_keys.tolist() == [1, 2, 0, 1]
    windows = load(files, source_length=3)
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
    characters = {piece.removeprefix("##") for piece in data.tokenizer.pieces}
    assert {"w", "y", "."} <= characters
    assert "q" not in characters  # of the test set
    assert "W" not in characters
    assert "W" in load(files, vocabulary="", vocabulary_size=60, lowercase=False).tokenizer.pieces


def test_names_below_the_data_directory(files, monkeypatch):
    monkeypatch.setenv("COLLAPIPE_DATA", str(files))
    names = {name: name for name in ("train", "validation", "test")}
    data = load(files, **names, vocabulary="vocab.txt")
    assert np.array_equal(data.test.arrays.labels, load(files).test.arrays.labels)


@pytest.mark.parametrize(
    ("change", "message"),
    [
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
    assert load(files).validation.arrays.labels[0, :3].tolist() == [-1, 1, 2]


@pytest.mark.parametrize("name", ["validation", "test"])
def test_held_out_text_without_entities_is_no_text_to_score(files, name):
    (files / name).write_text("qqq\tO\n")
    with pytest.raises(InputError, match=rf"task\.{name} = .*the file holds no entity to score"):
        load(files)


@pytest.mark.slow
@needs_corpora
def test_the_real_corpus():
    data = load_data(
        Tagging,
        train="ner_wnut17/wnut17train.conll",
        validation="ner_wnut17/emerging.dev.conll",
        test="ner_wnut17/emerging.test.annotated",
        vocabulary="vocab_bert/bert-base-cased-vocab.txt",
        vocabulary_size=0,
        source_length=32,
        samples=0,
        lowercase=False,
    )
    assert len(data.labels) == 13
    assert np.sum(data.test.arrays.labels != -1) == 23394
    assert np.mean(data.test.arrays.token_ids == 100) < 0.005
    tags = word_tags(data.labels, data.test, data.test.arrays.labels)
    train, test = data.train_text.sentences, data.test.text.sentences
    assert span_f1(test, tags).value == 100
    assert 0 < span_f1(test, memorised_tags(train, test)).value < 20


@pytest.fixture
def read(tmp_path):
    def write_and_read(content):
        path = tmp_path / "corpus.conll"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_tagged_text(TextFile("task.train", str(path)))

    return write_and_read


def test_words_tags_and_every_kind_of_break(read):
    text = (
        "\ufeff-DOCSTART-\tO\n\nAspro\tB-Drug\nforte\tI-Drug\nhelps\tO\n\t\nOslo\tB-Place\r\n\r\n"
        "\n \t \nend\tO"
    )
    assert read(text) == [
        TaggedSentence(("Aspro", "forte", "helps"), ("B-Drug", "I-Drug", "O")),
        TaggedSentence(("Oslo",), ("B-Place",)),
        TaggedSentence(("end",), ("O",)),
    ]


def test_a_document_ends_its_sentence(read):
    assert [s.tokens for s in read("a O\n-DOCSTART- -X- O O\nb O\n")] == [("a",), ("b",)]


def test_the_first_and_the_last_of_blank_or_tab_separated_columns_count(read):
    assert read("Oslo NNP  B-Place \nnice JJ O\n")[0] == (("Oslo", "nice"), ("B-Place", "O"))
    # a blank, or a separator of Unicode, may stand in a word between tabs
    assert read("New York\t\tB-Place\na\u00a0b\u2028c\tO\n")[0].tokens == (
        "New York",
        "a\u00a0b\u2028c",
    )


words = st.text(st.characters(codec="utf-8", exclude_categories=("Z", "C")), min_size=1).filter(
    lambda word: not word.startswith("-DOCSTART-")
)
spans = st.tuples(st.sampled_from(["", "x", "y-z"]), st.lists(words, min_size=1, max_size=3))


def tagged(sentence):
    """A sentence of (type, words), no type outside of entities."""
    tokens, tags = [], []
    for name, span in sentence:
        tokens += span
        tags += [f"{'I' if i else 'B'}-{name}" if name else "O" for i in range(len(span))]
    return TaggedSentence(tuple(tokens), tuple(tags))


@given(st.lists(st.lists(spans, min_size=1, max_size=5).map(tagged), min_size=1, max_size=4))
def test_what_was_written_is_read(tmp_path_factory, sentences):
    path = tmp_path_factory.mktemp("conll") / "corpus"
    rows = ["".join(f"{a}\t{b}\n" for a, b in zip(*s, strict=True)) for s in sentences]
    path.write_text("\n".join(rows), encoding="utf-8", newline="")
    assert read_tagged_text(TextFile("task.train", str(path))) == sentences


COMMENTS = "# sent_id = 1\n# text = Vitamin O\n"


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        (COMMENTS + "Vitamin\tO\n\n" + COMMENTS + "\n#tag\tO\n", ["Vitamin", "#tag"]),
        (COMMENTS + "a O\n#tag O\n\n# O\n\n#end document\n", ["a #tag", "#"]),
        ("-DOCSTART- -X- -X- O\n\n# text = O\n# NN O O\na NN O O\n", ["# a"]),
        ("#begin document (bc/x); part 000\na - O\n\n#end document\n", ["a"]),
        ("#tag\tO\n#\tO\n", ["#tag #"]),
        ("# text O\n#\u00a0x O\n", ["#\u00a0x"]),
        ("#tag O\n", ["#tag"]),
    ],
)
def test_comments_between_sentences_are_no_words(read, content, tokens):
    assert [" ".join(sentence.tokens) for sentence in read(content)] == tokens


def test_a_comment_in_a_sentence_is_a_broken_line(read):
    with pytest.raises(InputError, match="line 2 has the tag 'text'"):
        read("a O\n# text\n")


IOB2 = ["O B-x I-x B-x I-x B-y O B-x", "O", "B-y B-y"]


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("IOB1", ["O I-x I-x B-x I-x I-y O I-x", "O", "I-y B-y"]),
        ("BIOES", ["O B-x E-x B-x E-x S-y O S-x", "O", "S-y S-y"]),
        ("BILOU", ["O B-x L-x B-x L-x U-y O U-x", "O", "U-y U-y"]),
        ("BMES", ["O B-x E-x B-x E-x S-y O S-x", "O", "S-y S-y", "B-x M-x E-x"]),
    ],
)
def test_other_schemes_are_converted_and_told(tmp_path, scheme, tags):
    expected = [*IOB2, "B-x I-x I-x"][: len(tags)]
    conll = "".join("".join(f"w\t{tag}\n" for tag in row.split()) + "\n" for row in tags)
    rows = [{"tokens": ["w"] * len(row.split()), "tags": row.split()} for row in tags]
    (tmp_path / "a.conll").write_text(conll)
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name in ("a.conll", "a.jsonl"):
        with pytest.warns(InputWarning, match=f"task.train = .*{name}.*in the scheme {scheme}"):
            found = read_tagged_text(TextFile("task.train", f"{tmp_path}/{name}"))
        assert [" ".join(sentence.tags) for sentence in found] == expected


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ("S-x B-x E-x B-x O", "line 5 has O in an entity of type x without an end"),
        ("S-x B-x E-x E-x S-x", "line 4 has E-x, which continues no entity"),
        ("S-x B-x E-x B-x", "line 4 has B-x at the end of a sentence"),
        ("B-x B-y B-z S-x", "line 4 has the tag 'S-x', which is none of O, B-type and I-type"),
        ("I-x O I-x B-x O B-x", "line 6 has B-x behind no entity of its type"),
        ("B-x I-x O B-y I-x", "line 5 has I-x after B-y"),
    ],
)
def test_the_nearest_scheme_says_what_is_broken(read, tags, message):
    with pytest.raises(InputError, match=message):
        read("".join(f"w\t{tag}\n" for tag in tags.split()))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tO\n\nb\n", "line 3 has one column"),
        ("a\tO\nb\t\n", "line 2 has one column"),
        (b"a\tO\nGr\xfc\xdfe\tO\n", "line 2 holds bytes that are not UTF-8"),
        ("a\tO\nb\tB\n", "line 2 has the tag 'B', which is none of O, B-type and I-type"),
        ("a\tO\nb\to\n", "line 2 has the tag 'o'"),
        ("a\tE-x\n", "line 1 has the tag 'E-x'"),
        ("a\tB-\n", "line 1 has the tag 'B-'"),
        ("a\tB-x,B-y z\n", "line 1 has the tag 'B-x,B-y z'"),
        ("a\tB-x\nb\tO\nc\tI-x\n", "line 3 has I-x after O"),
        ("a\tB-x\nb\tI-y\n", "line 2 has I-y after B-x"),
        ("a\tB-x\n\nb\tI-x\n", "line 3 has I-x after O"),
        ("\n\t\n", "the file holds no word"),
        ("", "the file holds no word"),
    ],
)
def test_broken_files_are_named_with_the_line(read, content, message):
    with pytest.raises(InputError, match=message) as caught:
        read(content)
    assert caught.value.key == "task.train"
    assert "corpus.conll" in str(caught.value)


def test_a_missing_file_is_named_under_its_key(tmp_path):
    with pytest.raises(InputError, match=r"task\.test = .*nowhere.*no such file"):
        read_tagged_text(TextFile("task.test", f"{tmp_path}/nowhere"))


@needs_corpora
@pytest.mark.parametrize(
    ("name", "sentences", "tokens", "spans"),
    [
        pytest.param("ner_bc5cdr/train.tsv", 4560, 118170, 9385, marks=pytest.mark.slow),
        pytest.param("ner_bc5cdr/test.tsv", 4797, 124750, 9809, marks=pytest.mark.slow),
        ("ner_wnut17/wnut17train.conll", 3394, 62730, 1975),
        ("ner_wnut17/emerging.test.annotated", 1287, 23394, 1079),
    ],
)
def test_the_real_corpora_hold_what_their_papers_say(name, sentences, tokens, spans):
    read = read_tagged_text(TextFile("task.train", name))
    assert len(read) == sentences
    assert sum(len(s.tokens) for s in read) == tokens
    assert sum(tag.startswith("B-") for s in read for tag in s.tags) == spans
