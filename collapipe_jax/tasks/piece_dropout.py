"""Random segmentation of training words, different in every pass over the texts.

A vocabulary learnt from a small corpus holds most of its words whole, so training hardly meets
the pieces that new words fall into. Random cuts of known words train these pieces.

Source: Hiraoka, MaxMatch-Dropout: subword regularization for WordPiece (COLING 2022).
"""

from collections.abc import Sequence

import numpy as np

from collapipe_jax.errors import InputError
from collapipe_jax.models.bert import UNLABELLED
from collapipe_jax.models.config import PAD_ID
from collapipe_jax.tasks.subwords import CONTINUES, pad_rows


class PieceDropout:
    """WordPiece that skips pieces of its vocabulary at random.

    Args:
      pieces: the vocabulary.
      rate: probability of skipping a match, 0 to 1; single characters are never skipped.

    Raises:
      InputError: a rate out of its range.
    """

    def __init__(self, pieces: Sequence[str], rate: float):
        if not 0.0 <= rate <= 1.0:
            raise InputError("task.piece_dropout", rate, "no rate", "Use 0 to 1")
        self.pieces, self.rate = pieces, rate
        self._number = {piece: number for number, piece in enumerate(pieces)}

    def __call__(
        self, token_ids: np.ndarray, labels: np.ndarray | None, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Segment texts anew. One that gets too long loses its end, except the closing piece.

        Args:
          token_ids: ``[..., S]`` int32 as ``WordPiece`` makes them, padded behind.
          labels: of every piece ``[..., S]``, or None where pieces have none. The first of
            the pieces that one is cut into keeps its label.
          rng: decides which pieces are skipped.

        Returns:
          Ids and labels in the shape of ``token_ids``.
        """
        *outer, length = token_ids.shape
        if labels is None:
            labels = np.full_like(token_ids, UNLABELLED)
        ids, marks = [], []
        for row, own in zip(token_ids.reshape(-1, length), labels.reshape(-1, length), strict=True):
            *text, closing = row[row != PAD_ID]
            cuts = [self._cut(piece, rng) for piece in text]
            found = [piece for pieces in cuts for piece in pieces]
            ids.append([*found[: length - 1], closing])
            first = np.cumsum([0, *map(len, cuts)])[:-1]
            marked = np.full(len(found), UNLABELLED)
            marked[first] = own[: len(text)]
            marks.append(marked[: length - 1])
        return (
            pad_rows(ids, length, PAD_ID).reshape(*outer, length),
            pad_rows(marks, length, UNLABELLED).reshape(*outer, length),
        )

    def _cut(self, number: int, rng: np.random.Generator) -> list[int]:
        """The longest piece that is not skipped, then the longest that continues from there."""
        piece = self.pieces[number]
        if piece.startswith("[") and piece.endswith("]"):  # special ones are no text
            return [number]
        text = piece.removeprefix(CONTINUES)
        prefix = piece[: len(piece) - len(text)]
        found, start = [], 0
        while start < len(text):
            for end in range(len(text), start, -1):
                match = self._number.get(prefix + text[start:end])
                if match is not None and (end == start + 1 or rng.random() >= self.rate):
                    break
            else:  # the vocabulary lacks this character
                return [number]
            found.append(match)
            start, prefix = end, CONTINUES
        return found
