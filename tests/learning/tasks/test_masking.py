"""Hidden pieces: how many, which, and what takes their place."""

import numpy as np
import pytest

from collapipe_jax.learning.models.bert import UNLABELLED
from collapipe_jax.learning.tasks.masked_lm import Masking
from collapipe_jax.learning.tasks.sampling import seeded_generator
from collapipe_jax.learning.tasks.subwords import WordPiece

LETTERS = tuple("abcdefghij")
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS, *(f"##{each}" for each in LETTERS))
WORDPIECE = WordPiece((*PIECES, "[MASK]"))
MASK, ORDINARY = len(PIECES), set(range(4, len(PIECES)))


def texts(count, length=22, share_of_continuing=0.0):
    """Rows of pieces of all lengths from 0 to ``length - 2``, an unknown word in some."""
    rng = np.random.default_rng(0)
    ids = rng.integers(4, 14, (count, length)) + 10 * (
        rng.random((count, length)) < share_of_continuing
    )
    ids[:, 0], ids[:, 1] = 2, np.where(rng.random(count) < 0.3, 1, 5)
    ends = 1 + np.arange(count) % (length - 1)
    places = np.arange(length)
    ids = np.where(places == ends[:, None], 3, np.where(places > ends[:, None], 0, ids))
    return ids.astype(np.int32)


@pytest.mark.parametrize("whole_words", [False, True])
def test_the_original_text_is_text_and_labels(whole_words):
    ids = texts(200, share_of_continuing=0.4)
    found = Masking(WORDPIECE, 0.15, whole_words).hide(ids, seeded_generator(0))
    restored, taken = found.token_ids.copy(), found.labels != UNLABELLED
    rows, _ = np.nonzero(taken)
    restored[rows, found.positions[taken]] = found.labels[taken]
    np.testing.assert_array_equal(restored, ids)
    assert set(found.labels[taken].tolist()) <= ORDINARY
    assert found.positions.shape == (200, 3)  # 15 % of what is between the ends
    places = [p[t].tolist() for p, t in zip(found.positions, taken, strict=True)]
    assert all(each == sorted(set(each)) for each in places)


def test_their_number_is_the_share_rounded():
    ids = texts(200)
    found = Masking(WORDPIECE, 0.15).hide(ids, seeded_generator(0))
    there = np.isin(ids, list(ORDINARY)).sum(1)
    expected = np.minimum(np.clip(np.rint(0.15 * there), 1, 3), there)
    np.testing.assert_array_equal((found.labels != UNLABELLED).sum(1), expected)


def test_80_10_10():
    ids = texts(21 * 2_000)
    found = Masking(WORDPIECE, 0.5).hide(ids, seeded_generator(1))
    taken = found.labels != UNLABELLED
    shown = found.token_ids[np.nonzero(taken)[0], found.positions[taken]]
    labels = found.labels[taken]
    shares = [np.mean(shown == MASK), np.mean(shown == labels)]
    # Of the random tenth, one in 20 ordinary pieces is the right one.
    np.testing.assert_allclose(shares, [0.8, 0.1 + 0.1 / 20], atol=0.005)
    others = shown[(shown != MASK) & (shown != labels)]
    counts = np.bincount(others, minlength=MASK)[4:]
    np.testing.assert_allclose(counts / counts.sum(), 1 / 20, atol=0.01)


def test_all_pieces_are_hidden_alike():
    ids = np.repeat(np.array([[2, 4, 15, 6, 7, 3]], np.int32), 4_000, 0)
    found = Masking(WORDPIECE, 0.5).hide(ids, seeded_generator(2))
    counts = np.bincount(found.positions[found.labels != UNLABELLED], minlength=5)
    np.testing.assert_allclose(counts[1:5] / 4_000, 0.5, atol=0.03)
    assert counts[0] == 0


def test_whole_words_are_whole():
    """a##b c##d e f, two of six pieces."""
    ids = np.repeat(np.array([[2, 4, 15, 6, 17, 8, 9, 3]], np.int32), 500, 0)
    found = Masking(WORDPIECE, 1 / 3, whole_words=True).hide(ids, seeded_generator(3))
    places = {
        tuple(p[label >= 0].tolist())
        for p, label in zip(found.positions, found.labels, strict=True)
    }
    # A word of two pieces does not fit after another, which then is alone.
    assert places == {(1, 2), (3, 4), (5,), (6,), (5, 6)}


def test_it_is_a_function_of_the_seed():
    masking, ids = Masking(WORDPIECE, 0.15), texts(50)
    first, again, other = (masking.hide(ids, seeded_generator((1, r))) for r in (5, 5, 6))
    np.testing.assert_array_equal(first.token_ids, again.token_ids)
    assert (first.token_ids != other.token_ids).any()
