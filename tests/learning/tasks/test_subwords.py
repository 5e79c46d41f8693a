import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import needs_corpora
from tokenizers import Tokenizer

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.bert import UNLABELLED
from collapipe_jax.learning.models.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from collapipe_jax.learning.tasks.subwords import (
    BPE_SPECIALS,
    SPECIAL_PIECES,
    WordPiece,
    pad_rows,
    train_bpe,
    train_wordpiece,
)
from collapipe_jax.learning.tasks.synthetic import generate_parallel_text
from collapipe_jax.learning.tasks.translation import normalise

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
    token_ids, cut = hand_made.encode_texts(["unaffable", "", "run run run run", "a a a"], 5)
    un, run, a = (PIECES.index(piece) for piece in ("un", "run", "a"))
    assert token_ids.tolist() == [
        [2, un, un + 1, un + 2, 3],
        [2, 3, 0, 0, 0],
        [2, run, run, run, 3],
        [2, a, a, a, 3],
    ]
    assert token_ids.dtype == np.int32
    assert cut == 1


def test_rows_are_filled_up():
    assert pad_rows([[1], [], [2, 3]], 2, -1).tolist() == [[1, -1], [-1, -1], [2, 3]]
    assert pad_rows([], 4, 0).shape == (0, 4)


@given(st.lists(st.text(max_size=12), max_size=8))
def test_a_text_is_encoded_as_its_words(learnt, words):
    ((row,), _) = learnt.encode_texts([" ".join(words)], 400)
    ids = [i for pieces in learnt.encode_words(words) for i in pieces]
    # a word of which nothing is left is unknown among words and nothing in a text
    known = [i for i in row[1 : list(row).index(3)] if i != 1]
    assert known == [i for i in ids if i != 1]


def test_training_keeps_characters_and_merges_what_is_frequent(learnt):
    assert learnt.pieces[:4] == SPECIAL_PIECES
    assert len(learnt.pieces) == len(set(learnt.pieces)) == 300
    words = sorted({word for line in LINES for word in line.split()})
    rows = learnt.encode_words(words)
    assert not any(1 in row for row in rows)
    for word, row in zip(words, rows, strict=True):
        assert "".join(learnt.pieces[i].removeprefix("##") for i in row) == word.lower()
    assert len(learnt.encode_words(["the"])[0]) == 1
    assert max(map(len, rows)) > 1


def test_training_on_an_example_small_enough_to_do_by_hand():
    # 4 specials, ##b ##c, a c; "ab" comes 3 times, "ab" + "##c" twice, "c" + "##a" never; [MASK]
    assert train_wordpiece(["ab abc", "abc c"], 100).pieces == (
        *SPECIAL_PIECES,
        "##b",
        "##c",
        "a",
        "b",
        "c",
        "ab",
        "abc",
        "[MASK]",
    )
    # A full vocabulary loses its last piece to [MASK].
    assert train_wordpiece(["ab abc", "abc c"], 11).pieces[8:] == ("c", "ab", "[MASK]")


@pytest.mark.slow
def test_training_is_deterministic_across_processes(learnt, tmp_path):
    # hash seeds differ between processes, and so would any order taken from a hash map
    script = (
        "import sys\n"
        "from collapipe_jax.learning.tasks.synthetic import generate_parallel_text\n"
        "from collapipe_jax.learning.tasks.subwords import train_wordpiece\n"
        "lines = [line for pair in generate_parallel_text(0, 300) for line in pair]\n"
        "train_wordpiece(lines, 300).save(sys.argv[1])\n"
    )
    learnt.save(tmp_path / "this.txt")
    for name in ("one.txt", "two.txt"):
        subprocess.run([sys.executable, "-c", script, str(tmp_path / name)], check=True)
        assert (tmp_path / name).read_bytes() == (tmp_path / "this.txt").read_bytes()


def test_save_and_read(learnt, tmp_path):
    learnt.save(tmp_path / "vocab.txt")
    loaded = WordPiece.from_file(f"{tmp_path}/vocab.txt")
    assert loaded.pieces == learnt.pieces
    assert loaded.encode_words(LINES[:20]) == learnt.encode_words(LINES[:20])
    windows = (tmp_path / "vocab.txt").read_bytes().replace(b"\n", b"\r\n")
    (tmp_path / "vocab.txt").write_bytes(windows)
    assert WordPiece.from_file(f"{tmp_path}/vocab.txt").pieces == learnt.pieces
    learnt.save_pretrained(tmp_path, 9)
    (tmp_path / "vocab.txt").write_bytes(windows)
    assert WordPiece.from_pretrained(tmp_path, 512)[0].pieces == learnt.pieces


def test_words_are_found_where_they_stand(hand_made):
    text = "  runx, caf\u00e9! \u6f22\u5b57 \u0000"
    (places,) = hand_made.find_words([text])
    words = ["runx", ",", "caf\u00e9", "!", "\u6f22", "\u5b57"]
    assert [text[start:end] for start, end in places] == words
    assert hand_made.find_words([""]) == [[]]


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_vocabulary_for_other_programs_is_read_back(tmp_path, lowercase):
    ours = train_wordpiece(["El Ni\u00f1o reverses [SEP] IgG"] * 2, 100, lowercase)
    ours.save_pretrained(tmp_path, 9)
    again, length = WordPiece.from_pretrained(tmp_path, 512)
    assert (again.pieces, again.lowercase, length) == (ours.pieces, lowercase, 9)
    theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    theirs.encode_special_tokens = True  # as split_special_tokens says
    for text in ("El Ni\u00f1o [SEP] IgG", "reverses [MASK] x", ""):
        expected = [int(i) for i in ours.encode_texts([text], 50)[0][0] if i]
        assert theirs.encode(text).ids == expected
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert WordPiece.from_pretrained(tmp_path, 512)[1] == 512
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 2}')
    with pytest.raises(InputError, match="model_max_length"):
        WordPiece.from_pretrained(tmp_path, 512)


@pytest.mark.parametrize(
    ("lines", "size", "message"),
    [
        (["ab"], 6, r"task\.vocabulary_size = 6: .* alone take 8\. Use 8 or more"),
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
        (None, "no such file"),
        ("[PAD]\n[UNK]\n[CLS]\na\n", r"it lacks \[SEP\]"),
        ("", r"it lacks \[PAD\], \[UNK\], \[CLS\], \[SEP\]"),
        ("a\n[PAD]\n[UNK]\n[CLS]\n[SEP]\n", r"\[PAD\] is in line 2, and padding must have"),
        ("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\na\n", "line 7 repeats line 5"),
        ("[PAD]\n[UNK]\n\n[CLS]\n[SEP]\n", "line 3 is empty"),
    ],
)
def test_unreadable_vocabularies(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        WordPiece.from_file(str(path))
    assert caught.value.key == "task.vocabulary"


def test_the_case_of_a_vocabulary_must_fit(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_PIECES, "[MASK]", "[", "run", "Run"]), encoding="utf-8")
    with pytest.raises(InputError, match=r"task\.lowercase = True: .* has capitals, as in 'Run'"):
        WordPiece.from_file(str(path))
    assert WordPiece.from_file(str(path), lowercase=False).encode_words(["Run"]) == [[7]]
    path.write_text("\n".join([*SPECIAL_PIECES, "[MASK]", "[", "run"]), encoding="utf-8")
    with pytest.raises(InputError, match=r"task\.lowercase = False: .* has no capitals"):
        WordPiece.from_file(str(path), lowercase=False)
    # a script without case fits either way
    path.write_text("\n".join([*SPECIAL_PIECES, "\u6f22"]), encoding="utf-8")
    assert WordPiece.from_file(str(path), lowercase=False).encode_words(["\u6f22"]) == [[4]]


@needs_corpora
def test_the_published_vocabularies():
    uncased = WordPiece.from_file("vocab_bert/bert-base-uncased-vocab.txt")
    assert len(uncased.pieces) == 30522
    # ids that BERT's authors and their users quote everywhere
    assert uncased.encode_texts(["Hello, world!"], 8)[0].tolist() == [
        [101, 7592, 1010, 2088, 999, 102, 0, 0]
    ]
    cased = WordPiece.from_file("vocab_bert/bert-base-cased-vocab.txt", lowercase=False)
    assert cased.encode_texts(["Hello world"], 4)[0].tolist() == [[101, 8667, 1362, 102]]


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe([*BPE_LINES, *ALPHABET.replace(" ", "")], 300)


def test_special_ids_are_reserved(tokenizer):
    assert (PAD_ID, BOS_ID, EOS_ID, UNK_ID) == (0, 1, 2, 3)
    ids = [i for row in tokenizer.encode_batch(BPE_LINES) for i in row]
    assert min(ids) > UNK_ID
    assert max(ids) < tokenizer.model.get_vocab_size() == 300


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
        "from collapipe_jax.learning.tasks.synthetic import generate_parallel_text\n"
        "from collapipe_jax.learning.tasks.subwords import train_bpe\n"
        "lines = [line for pair in generate_parallel_text(0, 400) for line in pair]\n"
        f"train_bpe([*lines, *{ALPHABET.replace(' ', '')!r}], 300).model.save(sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "other.json")], check=True)
    tokenizer.model.save(f"{tmp_path}/this.json")
    assert (tmp_path / "other.json").read_bytes() == (tmp_path / "this.json").read_bytes()


def test_the_library_reads_what_is_saved(tokenizer, tmp_path):
    tokenizer.model.save(f"{tmp_path}/vocabulary.json")
    loaded = Tokenizer.from_file(f"{tmp_path}/vocabulary.json")
    found = [encoding.ids for encoding in loaded.encode_batch(BPE_LINES[:50])]
    assert found == tokenizer.encode_batch(BPE_LINES[:50])
    assert [loaded.token_to_id(token) for token in BPE_SPECIALS] == [0, 1, 2, 3]


def test_a_small_corpus_yields_a_smaller_vocabulary():
    # 4 specials, the mark of a space, a to d, and the merges that occur twice: "▁a" and "▁ab"
    assert train_bpe(["ab ab", "a a", "cd"], 1000).model.get_vocab_size() == 11


@pytest.mark.parametrize(
    ("lines", "size", "message"),
    [
        (["abc"], 4, r"task\.vocabulary_size = 4: the characters of the corpus alone take 8"),
        (["abcdefgh"], 10, r"the characters of the corpus alone take 13. Use 13 or more"),
        ([], 100, "no text to learn it from"),
    ],
)
def test_bpe_impossible_vocabularies(lines, size, message):
    with pytest.raises(InputError, match=message):
        train_bpe(lines, size)


CHARACTERS = "abc"
CUT_PIECES = (
    *SPECIAL_PIECES,
    *CHARACTERS,
    *(f"##{character}" for character in CHARACTERS),
    *("ab", "abc", "##bc", "##ca", "##cab", "(x"),
)
NUMBER = {piece: number for number, piece in enumerate(CUT_PIECES)}
CLOSED = NUMBER["[SEP]"]


def padded(pieces, length):
    row = [NUMBER["[CLS]"], *(NUMBER[piece] for piece in pieces), CLOSED]
    return np.array([row + [PAD_ID] * (length - len(row))], np.int32)


def cut(rate, token_ids, labels=None, seed=0):
    labels = np.full_like(token_ids, UNLABELLED) if labels is None else labels
    return WordPiece(CUT_PIECES).drop_pieces(token_ids, labels, rate, np.random.default_rng(seed))


def spelt(row):
    return "".join(CUT_PIECES[i].removeprefix("##") for i in row[row != PAD_ID])


@st.composite
def texts(draw):
    """Words as WordPiece may leave them."""
    begins = st.sampled_from([*CHARACTERS, "ab", "abc", "[UNK]"])
    goes_on = st.sampled_from(["##a", "##b", "##c", "##bc", "##ca", "##cab"])
    words = draw(st.lists(st.tuples(begins, st.lists(goes_on, max_size=2)), max_size=4))
    return [piece for first, rest in words for piece in (first, *rest)]


@given(texts(), st.floats(0.0, 1.0), st.integers(0, 100))
def test_the_text_and_the_places_of_labels_stay(pieces, rate, seed):
    ids = padded(pieces, 60)
    labels = np.where(ids > 3, ids, UNLABELLED)
    found, marks = cut(rate, ids, labels, seed)
    assert found.shape == marks.shape == ids.shape
    assert spelt(found[0]) == spelt(ids[0])
    assert found[0, 0] == NUMBER["[CLS]"]
    np.testing.assert_array_equal(marks[marks != UNLABELLED], labels[labels != UNLABELLED])
    for place in np.flatnonzero(marks[0] != UNLABELLED):
        piece, cut_piece = CUT_PIECES[marks[0, place]], CUT_PIECES[found[0, place]]
        assert piece.startswith(cut_piece)
    rest = found[0][(marks[0] == UNLABELLED) & (found[0] > 3)]
    assert all(CUT_PIECES[piece].startswith("##") for piece in rest)


def test_nothing_overlooked_changes_nothing():
    ids = padded(["abc", "##cab", "a", "[UNK]"], 8)
    np.testing.assert_array_equal(cut(0.0, ids)[0], ids)


def test_everything_overlooked_leaves_characters():
    ids = padded(["abc", "##ca", "[UNK]"], 10)
    expected = padded(["a", "##b", "##c", "##c", "##a", "[UNK]"], 10)
    np.testing.assert_array_equal(cut(1.0, ids)[0], expected)


def test_matches_are_overlooked_at_the_rate():
    """Of abc: whole with 0.7, ab and c with 0.3 x 0.7, else a, and then bc or b and c."""
    ids = np.repeat(padded(["abc"], 6), 20_000, axis=0)
    found, _ = cut(0.3, ids)
    cuts, counts = np.unique(found, axis=0, return_counts=True)
    share = {
        tuple(CUT_PIECES[i] for i in row[1:4]): n / len(ids)
        for row, n in zip(cuts, counts, strict=True)
    }
    expected = {
        ("abc", "[SEP]", "[PAD]"): 0.7,
        ("ab", "##c", "[SEP]"): 0.3 * 0.7,
        ("a", "##bc", "[SEP]"): 0.3 * 0.3 * 0.7,
        ("a", "##b", "##c"): 0.3**3,
    }
    assert share.keys() == expected.keys()
    for pieces, chance in expected.items():
        assert share[pieces] == pytest.approx(chance, abs=0.02)


def test_what_is_too_long_loses_its_end():
    ids = padded(["abc", "ab"], 4)
    labels = np.array([[UNLABELLED, 1, 2, UNLABELLED]], np.int32)
    found, marks = cut(1.0, ids, labels)
    np.testing.assert_array_equal(found, padded(["a", "##b"], 4))
    np.testing.assert_array_equal(marks, [[UNLABELLED, 1, UNLABELLED, UNLABELLED]])


def test_a_piece_with_an_unknown_character_stays():
    ids = padded(["(x", "ab"], 8)
    found, _ = cut(1.0, ids)
    np.testing.assert_array_equal(found, padded(["(x", "a", "##b"], 8))


@pytest.mark.parametrize("train", [train_bpe, train_wordpiece])
def test_one_very_long_word_takes_no_square_of_time(train):
    lines = ["the cat sat on the mat"] * 4
    start_s = time.monotonic()
    train([*lines, "z" * 200_000], 60)
    assert time.monotonic() - start_s < 5.0  # as a whole it took a minute
