"""Hidden pieces of texts, for a masked language model: a function of texts and random generator.

Source: Devlin et al. 1810.04805, section 3.1, drawn anew for every pass as in Liu et al.
1907.11692; whole words as in the model cards of google-research/bert (2019).
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from collapipe_jax.learning.models.bert import UNLABELLED
from collapipe_jax.learning.tasks.subwords import CONTINUES, MASK, WordPiece, is_special

_MASKED, _RANDOM = 0.8, 0.1
"""Shares of hidden pieces that become the mask, and another piece; the others stay."""


def most_hidden(length: int, share: float) -> int:
    """Most hidden pieces of a row of this length, two of which are the ends."""
    return max(1, round(share * (length - 2)))


class Hidden(NamedTuple):
    """Texts ``[n, S]`` with hidden pieces; these and their places ``[n, P]``."""

    token_ids: np.ndarray
    positions: np.ndarray  # increasing, 0 where a text has fewer
    labels: np.ndarray  # UNLABELLED where a text has fewer


@dataclasses.dataclass(frozen=True, eq=False)
class Masking:
    """How pieces are hidden.

    Special pieces, such as unknown words, never are.

    Args:
      wordpiece: the vocabulary, with ``[MASK]``.
      share: of a text's pieces that are hidden, rounded, one at least.
      whole_words: draw words in place of pieces. A word that exceeds the share is left out,
        unless it is the first to be drawn: then its first pieces are hidden.
    """

    wordpiece: WordPiece
    share: float
    whole_words: bool = False

    def hide(self, token_ids: np.ndarray, rng: np.random.Generator) -> Hidden:
        """Hide pieces of texts ``[n, S]``, padded behind."""
        positions = self._draw(token_ids, rng)
        taken, rows = positions < token_ids.shape[1], np.arange(len(token_ids))[:, None]
        positions = np.where(taken, positions, 0)
        labels = np.where(taken, token_ids[rows, positions], UNLABELLED)
        lot, others = rng.random(positions.shape), rng.choice(self._kinds[2], positions.shape)
        shown = np.where(lot < _MASKED + _RANDOM, others, labels)
        shown = np.where(lot < _MASKED, self.wordpiece.pieces.index(MASK), shown)
        hidden = token_ids.copy()
        hidden[np.nonzero(taken)[0], positions[taken]] = shown[taken]
        as_ids = (each.astype(np.int32) for each in (hidden, positions, labels))
        return Hidden(*as_ids)

    def _draw(self, token_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Increasing places to hide ``[n, P]``, the length of a row where there are fewer."""
        can_hide, continues, _ = self._kinds
        length, open_to = token_ids.shape[1], can_hide[token_ids]
        most, there = most_hidden(length, self.share), open_to.sum(1)
        counts = np.minimum(np.clip(np.rint(self.share * there).astype(int), 1, most), there)
        # A word is the place of its first piece, or every piece is one.
        words = np.broadcast_to(np.arange(length), token_ids.shape)
        if self.whole_words:
            words = np.maximum.accumulate(np.where(continues[token_ids], 0, words), axis=1)
        turn = np.take_along_axis(rng.random(token_ids.shape), words, axis=1)
        order = np.argsort(np.where(open_to, turn, 2.0), axis=1, kind="stable")[:, : most + 1]
        drawn = np.take_along_axis(words, order, axis=1)
        beyond = np.take_along_axis(drawn, counts[:, None], axis=1)
        is_whole = (drawn != beyond) | (drawn == drawn[:, :1])
        chosen = (np.arange(most + 1) < counts[:, None]) & is_whole
        return np.sort(np.where(chosen, order, length), axis=1)[:, :most]

    @functools.cached_property
    def _kinds(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each piece whether it may be hidden and whether it continues; ordinary pieces."""
        pieces = self.wordpiece.pieces
        special = np.array([is_special(piece) for piece in pieces])
        continues = np.array([piece.startswith(CONTINUES) for piece in pieces])
        return ~special, continues, np.flatnonzero(~special)
