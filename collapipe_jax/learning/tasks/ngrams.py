"""Hashed n-grams of characters and of words, as fastText has them.

Sources: Bojanowski, Grave, Joulin and Mikolov, Enriching word vectors with subword information
(TACL 2017, arXiv:1607.04606), section 3.2, for characters; Joulin, Grave, Bojanowski and Mikolov,
Bag of tricks for efficient text classification (EACL 2017, arXiv:1607.01759), for words.
"""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from collapipe_jax.learning.models.config import BertConfig
from collapipe_jax.learning.tasks.subwords import CONTINUES, WordPiece, is_special

SHORTEST, LONGEST = 3, 6
"""Lengths of n-grams in characters, boundary marks included."""
MOST = 48
"""Most n-grams of characters of a word. A word of up to 13 characters has no more."""


def most_ngrams(word_ngrams: int) -> int:
    """Most n-grams of a word, those of words included, which end with it."""
    return MOST + word_ngrams - 1


class WordNgrams:
    """Buckets of the n-grams of words, a function of the ids of their pieces alone.

    A word is a piece and those that continue it. It is put into lower case and between the marks
    ``<`` and ``>``. The whole of it counts as an n-gram too. N-grams of words count at their last
    one. A special piece, such as an unknown or masked word, has none, but is in those of the words
    after it.

    Args:
      wordpiece: the vocabulary.
      sizes: number of rows that n-grams are hashed to, 0 for a model without n-grams, and longest
        n-gram of words.
    """

    def __init__(self, wordpiece: WordPiece, sizes: BertConfig):
        self.buckets, self.word_ngrams = sizes.ngram_buckets, sizes.word_ngrams
        self._pieces = wordpiece.pieces
        self._continues = np.array([piece.startswith(CONTINUES) for piece in self._pieces])
        self._begins = ~self._continues & ~np.array([is_special(piece) for piece in self._pieces])
        self._known: dict[tuple[int, ...], _Word] = {}

    def added(self, batch: Any) -> Any:
        """A batch with the n-grams of its ``token_ids`` as ``ngrams``; unchanged without any."""
        return batch._replace(ngrams=self.of(batch.token_ids)) if self.buckets else batch

    def of(self, token_ids: np.ndarray) -> np.ndarray:
        """Buckets ``[..., S, G]`` of texts ``[..., S]``, from 1 on, and 0 for none.

        Those of a word are at its first piece.
        """
        rows = token_ids.reshape(-1, token_ids.shape[-1])
        most = most_ngrams(self.word_ngrams)
        found = np.zeros((*rows.shape, most), np.min_scalar_type(self.buckets))
        for row, begins, continues, own in zip(
            rows.tolist(), self._begins[rows], self._continues[rows], found, strict=True
        ):
            starts = np.flatnonzero(~continues).tolist()
            cuts = itertools.pairwise([*starts, len(row)])
            words = [self._word(tuple(row[start:end])) for start, end in cuts]
            for number, start in enumerate(starts):
                if begins[start]:
                    own[start, :MOST] = words[number].buckets
                    for n in range(2, min(self.word_ngrams, number + 1) + 1):
                        last = words[number + 1 - n : number + 1]
                        own[start, MOST + n - 2] = self._bucket(" ".join(w.text for w in last))
        return found.reshape(*token_ids.shape, most)

    def _word(self, ids: tuple[int, ...]) -> "_Word":
        if ids not in self._known:
            text = "".join(self._pieces[i].removeprefix(CONTINUES) for i in ids).lower()
            hashed = [self._bucket(each) for each in ngrams(text)]
            self._known[ids] = _Word(text, np.pad(hashed, (0, MOST - len(hashed))))
        return self._known[ids]

    def _bucket(self, text: str) -> int:
        return 1 + fnv1a(text) % self.buckets


class _Word(NamedTuple):
    """A word, and the buckets ``[MOST]`` of its n-grams of characters."""

    text: str  # in lower case
    buckets: np.ndarray


def ngrams(word: str) -> list[str]:
    """At most ``MOST`` n-grams of characters of a word: the whole, then from both ends inwards."""
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
