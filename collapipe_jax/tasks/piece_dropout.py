"""Words cut into other pieces in every pass over the training texts.

A vocabulary learnt from a small corpus holds most of its words whole, so the pieces that new
words fall into are hardly met in training. Cut at random now and then, known words teach them.

Source: Hiraoka, MaxMatch-Dropout: subword regularization for WordPiece (COLING 2022).
"""

from collections.abc import Sequence

import numpy as np

from collapipe_jax.errors import InputError
from collapipe_jax.tasks.wordpiece import CONTINUES, PAD_ID, UNLABELLED


class PieceDropout:
    """Cuts pieces further, as WordPiece would if it overlooked some pieces of its vocabulary.

    Args:
        pieces: the vocabulary.
        rate: how often a match is overlooked, 0 to 1. Characters never are.

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
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Texts cut anew. What then is too long loses its end, but for the closing piece.

        Args:
            token_ids: ``[..., S]`` int32 as `WordPiece` makes them, padded behind.
            labels: of every piece ``[..., S]``, or None. The first of the pieces that one is
                cut into keeps its label, the others have none.
            rng: which pieces are overlooked.

        Returns:
            Both in the shapes of the arguments.
        """
        rows = token_ids.reshape(-1, token_ids.shape[-1])
        ids = np.full_like(rows, PAD_ID)
        marks = None if labels is None else np.full_like(rows, UNLABELLED)
        room = rows.shape[-1] - 1
        for number, row in enumerate(rows):
            row = row[row != PAD_ID]
            cut = [self._cut(piece, rng) for piece in row[:-1]]
            found = [piece for pieces in cut for piece in pieces][:room]
            ids[number, : len(found) + 1] = [*found, row[-1]]
            if marks is not None:
                first = np.cumsum([0, *(len(pieces) for pieces in cut)])[:-1]
                kept = first < room
                marks[number, first[kept]] = labels.reshape(rows.shape)[number, : len(cut)][kept]
        shape = token_ids.shape
        return ids.reshape(shape), None if marks is None else marks.reshape(shape)

    def _cut(self, number: int, rng: np.random.Generator) -> list[int]:
        """The longest piece that is not overlooked, then the longest that goes on from there."""
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
