import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collapipe_jax.errors import InputError
from collapipe_jax.tasks.conll import TaggedSentence, entity_type, is_bio_tag, read_conll
from collapipe_jax.tasks.corpora import resolve_corpus


@pytest.fixture
def read(tmp_path):
    def write_and_read(content):
        path = tmp_path / "corpus.conll"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_conll(path)

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


words = st.text(st.characters(codec="utf-8", exclude_categories=("Z", "C")), min_size=1)
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
    assert read_conll(path) == sentences


def test_tags():
    assert all(map(is_bio_tag, ("O", "B-a", "I-a-b")))
    assert not any(map(is_bio_tag, ("", "B-", "o", "E-a", "B-a ")))
    assert (entity_type("O"), entity_type("B-creative-work")) == ("", "creative-work")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tO\n\nb\n", "line 3 has one column"),
        ("a\tO\nb\t\n", "line 2 has one column"),
        (b"a\tO\nGr\xfc\xdfe\tO\n", "line 2 holds bytes that are not UTF-8"),
        ("a\tO\nb\tB\n", "line 2 has the tag 'B', which is none of O, B-type and I-type"),
        ("a\tB-x,B-y z\n", "line 1 has the tag 'B-x,B-y z'"),
        ("a\tI-x\n", "line 1 has I-x after O"),
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
    with pytest.raises(InputError, match=r"task\.test = .*nowhere.*No such file"):
        read_conll(tmp_path / "nowhere", "task.test")


@pytest.mark.skipif("COLLAPIPE_DATA" not in os.environ, reason="COLLAPIPE_DATA is not set")
@pytest.mark.parametrize(
    ("name", "sentences", "tokens", "spans"),
    [
        ("ner_bc5cdr/train.tsv", 4560, 118170, 9385),
        ("ner_bc5cdr/test.tsv", 4797, 124750, 9809),
        ("ner_wnut17/wnut17train.conll", 3394, 62730, 1975),
        ("ner_wnut17/emerging.test.annotated", 1287, 23394, 1079),
    ],
)
def test_the_real_corpora_hold_what_their_papers_say(name, sentences, tokens, spans):
    read = read_conll(resolve_corpus(name))
    assert len(read) == sentences
    assert sum(len(s.tokens) for s in read) == tokens
    assert sum(tag.startswith("B-") for s in read for tag in s.tags) == spans
