import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collapipe_jax.errors import InputError
from collapipe_jax.tasks.parallel_text import normalise
from collapipe_jax.tasks.synthetic import generate_parallel_text
from collapipe_jax.tasks.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer, train_bpe

LINES = [line for pair in generate_parallel_text(0, 400) for line in pair]
ALPHABET = " abcdefghijklmnopqrstuvwxyz.,!?'\"()<>/\u00e4\u00f6\u00df0123456789"


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe([*LINES, *ALPHABET.replace(" ", "")], 300)


def test_special_ids_are_reserved(tokenizer):
    assert (PAD_ID, BOS_ID, EOS_ID, UNK_ID) == (0, 1, 2, 3)
    ids = [i for row in tokenizer.encode_batch(LINES) for i in row]
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
    for line, row in zip(LINES, tokenizer.encode_batch(LINES), strict=True):
        (before,) = tokenizer.encode_batch([line.removesuffix(".")])
        assert row[:-1] == before


def test_unknown_characters_become_the_unknown_id(tokenizer):
    (ids,) = tokenizer.encode_batch(["\u6f22"])
    assert UNK_ID in ids


def test_training_is_deterministic_across_processes(tokenizer, tmp_path):
    # hash seeds differ between processes, and so would any order taken from a hash map
    script = (
        "import sys\n"
        "from collapipe_jax.tasks.synthetic import generate_parallel_text\n"
        "from collapipe_jax.tasks.tokenizer import train_bpe\n"
        "lines = [line for pair in generate_parallel_text(0, 400) for line in pair]\n"
        f"train_bpe([*lines, *{ALPHABET.replace(' ', '')!r}], 300).save(sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "other.json")], check=True)
    tokenizer.save(tmp_path / "this.json")
    assert (tmp_path / "other.json").read_bytes() == (tmp_path / "this.json").read_bytes()


def test_save_and_load(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "vocabulary.json")
    loaded = Tokenizer.load(tmp_path / "vocabulary.json")
    lines = [*LINES[:50], "say </s> twice"]
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
def test_impossible_vocabularies(lines, size, message):
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
def test_unreadable_vocabularies(tmp_path, content, message):
    path = tmp_path / "v.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        Tokenizer.load(path)
