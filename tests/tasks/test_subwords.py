import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collapipe_jax.errors import InputError
from collapipe_jax.models.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from collapipe_jax.tasks.corpora import resolve_corpus
from collapipe_jax.tasks.parallel_text import normalise
from collapipe_jax.tasks.subwords import (
    SPECIAL_PIECES,
    BpeTokenizer,
    WordPiece,
    pad_rows,
    train_bpe,
    train_wordpiece,
)
from collapipe_jax.tasks.synthetic import generate_parallel_text

PIECES = [*SPECIAL_PIECES, "un", "##aff", "##able", "##a", "run", "runn", "##ing", "!", "[", "]"]
PIECES += ["cls", "caf", "##e", "\u6f22", "\u5b57", "a"]
LINES = [line for pair in generate_parallel_text(0, 300) for line in pair]
BPE_LINES = [line for pair in generate_parallel_text(0, 400) for line in pair]
ALPHABET = " abcdefghijklmnopqrstuvwxyz.,!?'\"()<>/\u00e4\u00f6\u00df0123456789"


@pytest.fixture(scope="module")
def hand_made():
    return WordPiece(PIECES)


@pytest.fixture(scope="module")
def learnt():
    return train_wordpiece(LINES, 300)


def pieces(wordpiece, text):
    return [wordpiece.pieces[i] for i in wordpiece.encode_words([text])[0]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unaffable", ["un", "##aff", "##able"]),  # the longest piece first: not ##a, ##ff ...
        ("running", ["runn", "##ing"]),
        ("runa", ["run", "##a"]),
        ("runx", ["[UNK]"]),  # the whole word, not its end
        ("UN run!", ["un", "run", "!"]),
        ("Caf\u00e9 cafe\u0301", ["caf", "##e", "caf", "##e"]),
        ("\u6f22\u5b57", ["\u6f22", "\u5b57"]),  # CJK characters are words
        ("run\u00a0\trun\u0000", ["run", "run"]),
        ("[CLS]", ["[", "cls", "]"]),
        ("run" + "a" * 97, ["run"] + ["##a"] * 97),
        ("run" + "a" * 98, ["[UNK]"]),  # longer than 100 characters
        ("\u0301\u200d", ["[UNK]"]),  # nothing is left of it
        ("", ["[UNK]"]),
    ],
)
def test_against_berts_rules(hand_made, text, expected):
    assert pieces(hand_made, text) == expected


def test_case_and_accents_stay_where_asked():
    cased = WordPiece([*SPECIAL_PIECES, "Caf", "##\u00e9"], lowercase=False)
    assert pieces(cased, "Caf\u00e9") == ["Caf", "##\u00e9"]
    assert pieces(cased, "caf\u00e9") == ["[UNK]"]


def test_texts_are_enclosed_padded_cut_and_counted(hand_made):
    encoded = hand_made.encode_texts(["unaffable", "", "run run run run", "a a a"], 5)
    un, run, a = (PIECES.index(piece) for piece in ("un", "run", "a"))
    assert encoded.token_ids.tolist() == [
        [2, un, un + 1, un + 2, 3],
        [2, 3, 0, 0, 0],
        [2, run, run, run, 3],
        [2, a, a, a, 3],
    ]
    assert encoded.token_ids.dtype == np.int32
    assert encoded.cut == 1
    with pytest.raises(InputError, match=r"task\.source_length = 2: no room"):
        hand_made.encode_texts(["a"], 2)


def test_rows_are_filled_up():
    assert pad_rows([[1], [], [2, 3]], 2, -1).tolist() == [[1, -1], [-1, -1], [2, 3]]
    assert pad_rows([], 4, 0).shape == (0, 4)


@given(st.lists(st.text(max_size=12), max_size=8))
def test_a_text_is_encoded_as_its_words(learnt, words):
    (row,) = learnt.encode_texts([" ".join(words)], 400).token_ids
    ids = [i for pieces in learnt.encode_words(words) for i in pieces]
    # a word of which nothing is left is unknown among words and nothing in a text
    known = [i for i in row[1 : list(row).index(3)] if i != 1]
    assert known == [i for i in ids if i != 1]


def test_training_keeps_characters_and_merges_what_is_frequent(learnt):
    assert learnt.pieces[:4] == SPECIAL_PIECES
    assert learnt.vocabulary_size == len(learnt.pieces) == len(set(learnt.pieces)) == 300
    words = sorted({word for line in LINES for word in line.split()})
    rows = learnt.encode_words(words)
    assert not any(1 in row for row in rows)
    for word, row in zip(words, rows, strict=True):
        assert "".join(learnt.pieces[i].removeprefix("##") for i in row) == word.lower()
    assert len(learnt.encode_words(["the"])[0]) == 1
    assert max(map(len, rows)) > 1


def test_training_on_an_example_small_enough_to_do_by_hand():
    # 4 specials, ##b ##c, a c; "ab" comes 3 times, "ab" + "##c" twice, "c" + "##a" never
    assert train_wordpiece(["ab abc", "abc c"], 100).pieces == (
        *SPECIAL_PIECES,
        "##b",
        "##c",
        "a",
        "b",
        "c",
        "ab",
        "abc",
    )


def test_training_is_deterministic_across_processes(learnt, tmp_path):
    # hash seeds differ between processes, and so would any order taken from a hash map
    script = (
        "import sys\n"
        "from collapipe_jax.tasks.synthetic import generate_parallel_text\n"
        "from collapipe_jax.tasks.subwords import train_wordpiece\n"
        "lines = [line for pair in generate_parallel_text(0, 300) for line in pair]\n"
        "train_wordpiece(lines, 300).save(sys.argv[1])\n"
    )
    learnt.save(tmp_path / "this.txt")
    for name in ("one.txt", "two.txt"):
        subprocess.run([sys.executable, "-c", script, str(tmp_path / name)], check=True)
        assert (tmp_path / name).read_bytes() == (tmp_path / "this.txt").read_bytes()


def test_save_and_read(learnt, tmp_path):
    learnt.save(tmp_path / "vocab.txt")
    loaded = WordPiece.from_file(tmp_path / "vocab.txt")
    assert loaded.pieces == learnt.pieces
    assert loaded.encode_words(LINES[:20]) == learnt.encode_words(LINES[:20])
    windows = (tmp_path / "vocab.txt").read_bytes().replace(b"\n", b"\r\n")
    (tmp_path / "vocab.txt").write_bytes(windows)
    assert WordPiece.from_file(tmp_path / "vocab.txt").pieces == learnt.pieces


@pytest.mark.parametrize(
    ("lines", "size", "message"),
    [
        (["ab"], 6, r"task\.vocabulary_size = 6: .* alone take 7\. Use 7 or more"),
        ([], 100, "no text to learn it from"),
        ([" "], 100, "no text to learn it from"),
    ],
)
def test_impossible_vocabularies(lines, size, message):
    with pytest.raises(InputError, match=message):
        train_wordpiece(lines, size)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("[PAD]\n[UNK]\n[CLS]\na\n", r"it lacks \[SEP\]"),
        ("", r"it lacks \[PAD\], \[UNK\], \[CLS\], \[SEP\]"),
        ("a\n[PAD]\n[UNK]\n[CLS]\n[SEP]\n", r"\[PAD\] stands in line 2, and padding must have"),
        ("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\na\n", "line 7 repeats line 5"),
        ("[PAD]\n[UNK]\n\n[CLS]\n[SEP]\n", "line 3 is empty"),
    ],
)
def test_unreadable_vocabularies(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        WordPiece.from_file(path)
    assert caught.value.key == "task.vocabulary"


def test_the_case_of_a_vocabulary_must_fit(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_PIECES, "[MASK]", "[", "run", "Run"]), encoding="utf-8")
    with pytest.raises(InputError, match=r"task\.lowercase = True: .* has capitals, as in 'Run'"):
        WordPiece.from_file(path)
    assert WordPiece.from_file(path, lowercase=False).encode_words(["Run"]) == [[7]]
    path.write_text("\n".join([*SPECIAL_PIECES, "[MASK]", "[", "run"]), encoding="utf-8")
    with pytest.raises(InputError, match=r"task\.lowercase = False: .* has no capitals"):
        WordPiece.from_file(path, lowercase=False)
    # a script without case fits either way
    path.write_text("\n".join([*SPECIAL_PIECES, "\u6f22"]), encoding="utf-8")
    assert WordPiece.from_file(path, lowercase=False).encode_words(["\u6f22"]) == [[4]]


@pytest.mark.skipif("COLLAPIPE_DATA" not in os.environ, reason="COLLAPIPE_DATA is not set")
def test_the_published_vocabularies():
    uncased = WordPiece.from_file(resolve_corpus("vocab_bert/bert-base-uncased-vocab.txt"))
    assert uncased.vocabulary_size == 30522
    # ids that BERT's authors and their users quote everywhere
    assert uncased.encode_texts(["Hello, world!"], 8).token_ids.tolist() == [
        [101, 7592, 1010, 2088, 999, 102, 0, 0]
    ]
    path = resolve_corpus("vocab_bert/bert-base-cased-vocab.txt")
    cased = WordPiece.from_file(path, lowercase=False)
    assert cased.encode_texts(["Hello world"], 4).token_ids.tolist() == [[101, 8667, 1362, 102]]


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe([*BPE_LINES, *ALPHABET.replace(" ", "")], 300)


def test_special_ids_are_reserved(tokenizer):
    assert (PAD_ID, BOS_ID, EOS_ID, UNK_ID) == (0, 1, 2, 3)
    ids = [i for row in tokenizer.encode_batch(BPE_LINES) for i in row]
    assert min(ids) > UNK_ID
    assert max(ids) < tokenizer.vocabulary_size == 300


def test_frequent_words_become_one_token(tokenizer):
    assert [len(row) for row in tokenizer.encode_batch(["the", "will", "xqzj"])] == [1, 1, 5]


@given(st.text(alphabet=ALPHABET, max_size=60))
def test_round_trip_of_normalised_text(tokenizer, text):
    text = normalise(text)
    assert tokenizer.decode_batch(tokenizer.encode_batch([text])) == [text]


def test_spelt_out_special_tokens_are_text(tokenizer):
    text = "say </s> and <pad> or <unk>"
    (ids,) = tokenizer.encode_batch([text])
    assert min(ids) > UNK_ID
    assert tokenizer.decode_batch([ids]) == [text]


def test_decode_stops_at_the_end_and_skips_what_is_no_word(tokenizer):
    (ids,) = tokenizer.encode_batch(["the old cat"])
    row = [BOS_ID, *ids, UNK_ID, 10_000, EOS_ID, *ids, PAD_ID]
    assert tokenizer.decode_batch(np.array([row, [EOS_ID] * len(row)])) == ["the old cat", ""]


def test_punctuation_never_joins_a_word(tokenizer):
    # every sentence of the lines ends in a full stop, so merging it would pay
    for line, row in zip(BPE_LINES, tokenizer.encode_batch(BPE_LINES), strict=True):
        (before,) = tokenizer.encode_batch([line.removesuffix(".")])
        assert row[:-1] == before


def test_unknown_characters_become_the_unknown_id(tokenizer):
    (ids,) = tokenizer.encode_batch(["\u6f22"])
    assert UNK_ID in ids


def test_bpe_training_is_deterministic_across_processes(tokenizer, tmp_path):
    # hash seeds differ between processes, and so would any order taken from a hash map
    script = (
        "import sys\n"
        "from collapipe_jax.tasks.synthetic import generate_parallel_text\n"
        "from collapipe_jax.tasks.subwords import train_bpe\n"
        "lines = [line for pair in generate_parallel_text(0, 400) for line in pair]\n"
        f"train_bpe([*lines, *{ALPHABET.replace(' ', '')!r}], 300).save(sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "other.json")], check=True)
    tokenizer.save(tmp_path / "this.json")
    assert (tmp_path / "other.json").read_bytes() == (tmp_path / "this.json").read_bytes()


def test_bpe_save_and_load(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "vocabulary.json")
    loaded = BpeTokenizer.load(tmp_path / "vocabulary.json")
    lines = [*BPE_LINES[:50], "say </s> twice"]
    assert loaded.encode_batch(lines) == tokenizer.encode_batch(lines)
    assert loaded.vocabulary_size == tokenizer.vocabulary_size


def test_a_small_corpus_yields_a_smaller_vocabulary():
    # 4 specials, the mark of a space, a to d, and the merges that occur twice: "▁a" and "▁ab"
    assert train_bpe(["ab ab", "a a", "cd"], 1000).vocabulary_size == 11


@pytest.mark.parametrize(
    ("lines", "size", "message"),
    [
        (["abc"], 4, r"task\.vocabulary_size = 4: no room beside the 4 special"),
        (["abcdefgh"], 10, r"the characters of the corpus alone take 13. Use 13 or more"),
        ([], 100, "no text to learn it from"),
    ],
)
def test_bpe_impossible_vocabularies(lines, size, message):
    with pytest.raises(InputError, match=message):
        train_bpe(lines, size)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("{}", "not a vocabulary"),
        ('{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}', "not a voc"),
    ],
)
def test_bpe_unreadable_vocabularies(tmp_path, content, message):
    path = tmp_path / "v.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        BpeTokenizer.load(path)
