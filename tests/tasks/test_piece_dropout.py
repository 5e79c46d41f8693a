import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collapipe_jax.errors import InputError
from collapipe_jax.models.bert import UNLABELLED
from collapipe_jax.models.config import PAD_ID
from collapipe_jax.tasks.piece_dropout import PieceDropout
from collapipe_jax.tasks.subwords import SPECIAL_PIECES

CHARACTERS = "abc"
PIECES = (
    *SPECIAL_PIECES,
    *CHARACTERS,
    *(f"##{character}" for character in CHARACTERS),
    *("ab", "abc", "##bc", "##ca", "##cab", "(x"),
)
NUMBER = {piece: number for number, piece in enumerate(PIECES)}
CLOSED = NUMBER["[SEP]"]


def padded(pieces, length):
    row = [NUMBER["[CLS]"], *(NUMBER[piece] for piece in pieces), CLOSED]
    return np.array([row + [PAD_ID] * (length - len(row))], np.int32)


def cut(rate, token_ids, labels=None, seed=0):
    return PieceDropout(PIECES, rate)(token_ids, labels, np.random.default_rng(seed))


def spelt(row):
    return "".join(PIECES[i].removeprefix("##") for i in row[row != PAD_ID])


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
        piece, cut_piece = PIECES[marks[0, place]], PIECES[found[0, place]]
        assert piece.startswith(cut_piece)
    rest = found[0][(marks[0] == UNLABELLED) & (found[0] > 3)]
    assert all(PIECES[piece].startswith("##") for piece in rest)


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
        tuple(PIECES[i] for i in row[1:4]): n / len(ids)
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


@pytest.mark.parametrize("rate", [-0.1, 1.1, np.nan])
def test_a_rate_out_of_range_is_told(rate):
    with pytest.raises(InputError, match=r"task\.piece_dropout"):
        PieceDropout(PIECES, rate)
