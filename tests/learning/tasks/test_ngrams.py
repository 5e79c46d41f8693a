"""N-grams of words, from the ids of their pieces."""

import dataclasses

import numpy as np

from collapipe_jax.learning.models.config import BertConfig
from collapipe_jax.learning.tasks.bert_tasks import MOST, WordNgrams, fnv1a, ngrams
from collapipe_jax.learning.tasks.subwords import WordPiece

PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "where", "whe", "##re", "##r", "##e", "A")
WORDPIECE = WordPiece(PIECES, lowercase=False)
BUCKETS = 1_000
SIZES = BertConfig(
    width=8,
    heads=2,
    feed_forward_width=8,
    encoder_blocks=1,
    vocabulary_size=len(PIECES),
    ngram_buckets=BUCKETS,
)


def test_those_of_a_word_are_the_papers():
    """The example of Bojanowski et al., section 3.2, for n = 3, and the whole word."""
    found = ngrams("Where")
    assert {each for each in found if len(each) == 3} == {"<wh", "whe", "her", "ere", "re>"}
    assert found[0] == "<where>"
    assert len(found) == len(set(found)) == 1 + 5 + 4 + 3 + 2
    assert ngrams("a") == ["<a>"]


def test_a_long_word_keeps_those_at_its_ends():
    found = ngrams("abcdefghijklmnopqrstuvwxyz")
    assert len(found) == MOST
    assert {"<ab", "<abcde", "yz>", "vwxyz>"} < set(found)
    assert "mno" not in found


def test_the_hash_is_fnv_1a():
    """Vectors of RFC 9923, appendix C."""
    assert [fnv1a(text) for text in ("", "a", "foobar")] == [0x811C9DC5, 0xE40C292C, 0xBF9CF968]


def test_a_word_has_the_same_n_grams_however_it_is_cut():
    table = WordNgrams(WORDPIECE, SIZES)
    whole, cut, letters = table.of(np.array([[2, 5, 3, 0], [2, 6, 7, 3], [6, 8, 9, 3]]))
    np.testing.assert_array_equal(whole[1], cut[1])
    np.testing.assert_array_equal(whole[1], letters[0])
    expected = [1 + fnv1a(each) % BUCKETS for each in ngrams("where")]
    assert whole[1][whole[1] > 0].tolist() == expected


def test_only_first_pieces_of_words_have_any():
    buckets = WordNgrams(WORDPIECE, SIZES).of(np.array([[[2, 6, 7, 10, 4, 1, 3, 0]]]))
    assert (buckets > 0).any(-1).tolist() == [[[False, True, False, True] + [False] * 4]]


def test_n_grams_of_words_are_at_their_last_word():
    """Special pieces are in those of later words, however the words are cut."""
    sizes = dataclasses.replace(SIZES, word_ngrams=3)
    ids = np.array([[2, 6, 7, 10, 4, 5, 3, 0], [2, 5, 10, 4, 6, 8, 9, 3]])
    buckets = WordNgrams(WORDPIECE, sizes).of(ids)
    expected = {
        1: ["[cls] where", None],
        3: ["where a", "[cls] where a"],
        5: ["[mask] where", "a [mask] where"],
    }
    for place, texts in expected.items():
        hashed = [0 if text is None else 1 + fnv1a(text) % BUCKETS for text in texts]
        assert buckets[0, place, MOST:].tolist() == hashed
    np.testing.assert_array_equal(buckets[0, [1, 3, 5]], buckets[1, [1, 2, 4]])
    np.testing.assert_array_equal(buckets[..., :MOST], WordNgrams(WORDPIECE, SIZES).of(ids))
