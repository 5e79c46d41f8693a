"""Hashed character n-grams of the words that pieces make up, as fastText has them.

Source: Bojanowski, Grave, Joulin and Mikolov, Enriching word vectors with subword information
(TACL 2017, arXiv:1607.04606), section 3.2.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from collapipe_jax.tasks.subwords import CONTINUES, WordPiece, is_special

SHORTEST, LONGEST = 3, 6
"""Lengths of n-grams in characters, boundary marks included."""
MOST = 48
"""Most n-grams of a word. A word of up to 13 characters has no more."""


class WordNgrams:
    """Buckets of the n-grams of words, a function of the ids of their pieces alone.

    A word is a piece and those that continue it. It is put into lower case and between the marks
    ``<`` and ``>``. The whole of it counts as an n-gram too. A special piece, such as an unknown
    or masked word, has none.

    Args:
      wordpiece: the vocabulary.
      buckets: number of rows that n-grams are hashed to; 0 for a model without n-grams.
    """

    def __init__(self, wordpiece: WordPiece, buckets: int):
        self.buckets = buckets
        self._pieces = wordpiece.pieces
        self._continues = np.array([piece.startswith(CONTINUES) for piece in self._pieces])
        self._begins = ~self._continues & ~np.array([is_special(piece) for piece in self._pieces])
        self._known: dict[tuple[int, ...], np.ndarray] = {}

    def added(self, batch: Any) -> Any:
        """A batch with the n-grams of its ``token_ids`` as ``ngrams``; unchanged without any."""
        return batch._replace(ngrams=self.of(batch.token_ids)) if self.buckets else batch

    def of(self, token_ids: np.ndarray) -> np.ndarray:
        """Buckets ``[..., S, G]`` of texts ``[..., S]``, from 1 on, then 0.

        Those of a word are at its first piece.
        """
        rows = token_ids.reshape(-1, token_ids.shape[-1])
        found = np.zeros((*rows.shape, MOST), np.min_scalar_type(self.buckets))
        for row, begins, continues, own in zip(
            rows, self._begins[rows], self._continues[rows], found, strict=True
        ):
            for start in np.flatnonzero(begins):
                end = start + 1
                while end < len(row) and continues[end]:
                    end += 1
                own[start] = self._of_word(tuple(row[start:end].tolist()))
        return found.reshape(*token_ids.shape, MOST)

    def _of_word(self, ids: tuple[int, ...]) -> np.ndarray:
        if ids not in self._known:
            word = "".join(self._pieces[i].removeprefix(CONTINUES) for i in ids)
            hashed = [1 + fnv1a(each) % self.buckets for each in ngrams(word)]
            self._known[ids] = np.pad(hashed, (0, MOST - len(hashed)))
        return self._known[ids]


def ngrams(word: str) -> list[str]:
    """At most ``MOST`` n-grams of a word: the whole, then from both ends inwards."""
    marked = f"<{word.lower()}>"
    return list(dict.fromkeys([marked, *_from_ends(marked)]))[:MOST]


def _from_ends(text: str) -> Iterator[str]:
    for offset in range(len(text)):
        for length in range(SHORTEST, min(LONGEST, len(text) - offset) + 1):
            yield text[offset : offset + length]
            yield text[len(text) - offset - length : len(text) - offset]


def fnv1a(text: str) -> int:
    """The 32-bit hash FNV-1a of a text in UTF-8, which fastText uses.

    Source: Fowler, Noll, Vo and Eastlake, The FNV non-cryptographic hash algorithm (RFC 9923).
    """
    value = 0x811C9DC5
    for byte in text.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value
