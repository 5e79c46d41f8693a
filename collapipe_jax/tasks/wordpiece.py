"""WordPiece as BERT uses it: text to subwords of a vocabulary, from a file or learnt."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import write_text
from collapipe_jax.tasks.corpora import read_lines

PAD, UNKNOWN, CLASSIFY, SEPARATE = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
PAD_ID = 0
UNLABELLED = -1  # of a piece that has no label of its own
LONGEST_WORD = 100  # characters; a longer word is unknown, as in BERT

CONTINUES = "##"


class EncodedTexts(NamedTuple):
    """Token ids ``[n, length]`` int32, and how many of the n texts were cut to the length."""

    token_ids: np.ndarray
    cut: int


class WordPiece:
    """Text to subword ids of one vocabulary.

    Text is cleaned, lowercased and stripped of accents where ``lowercase`` says so, cut at
    white space, around punctuation and around CJK characters; each word becomes the longest
    piece of the vocabulary that it starts with, then the longest that goes on from there, or
    one unknown id where that fails. A text that spells out ``[SEP]`` is text.

    Source: Schuster and Nakajima, Japanese and Korean voice search (ICASSP 2012); Devlin et
    al., BERT (NAACL 2019).
    """

    def __init__(self, pieces: Sequence[str], lowercase: bool = True):
        self.pieces = tuple(pieces)
        self.lowercase = lowercase
        self._model = _model({piece: i for i, piece in enumerate(self.pieces)}, lowercase)
        self._unknown_id, self._classify_id, self._separate_id = (
            self.pieces.index(token) for token in (UNKNOWN, CLASSIFY, SEPARATE)
        )

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], lowercase: bool = True, key: str = "task.vocabulary"
    ) -> "WordPiece":
        """Read a vocabulary, one piece a line, its id the number of the line from 0.

        Args:
          path: UTF-8 file, ``vocab.txt`` of BERT.
          lowercase: whether the vocabulary is of lowercase text without accents.
          key: under which the file stands in the configuration, for errors.

        Raises:
          InputError: an unreadable file, an empty or repeated piece, a missing special
            piece (``[PAD]`` must be the first), or pieces of the other case, with which
            most words would silently become unknown.
        """
        pieces = [line.rstrip("\r") for line in read_lines(path, key)]
        _check_pieces(pieces, path, key)
        _check_case(pieces, path, lowercase)
        return cls(pieces, lowercase)

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, the special ones included."""
        return len(self.pieces)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the vocabulary for ``from_file``; its directory must exist."""
        write_text(Path(path), "".join(f"{piece}\n" for piece in self.pieces))

    def encode_texts(self, texts: Sequence[str], length: int) -> EncodedTexts:
        """Ids of whole texts: begin ``[CLS]``, pieces, end ``[SEP]``, padding 0.

        Args:
          texts: n texts; one with more pieces than fit keeps the first ones and is counted.
          length: ids of a row, ``[CLS]`` and ``[SEP]`` included, from 3.

        Raises:
          InputError: a length without room for a piece.
        """
        check_length(length)
        rows = [encoding.ids for encoding in self._encodings(texts)]
        room = length - 2
        token_ids = pad_rows([self.enclose(row[:room]) for row in rows], length, PAD_ID)
        return EncodedTexts(token_ids, sum(len(row) > room for row in rows))

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Ids of the pieces of each word, at least one: nothing to read is the unknown id.

        A word is what an annotator took for one and may fall into several by BERT's rules.
        """
        return [encoding.ids or [self._unknown_id] for encoding in self._encodings(words)]

    def enclose(self, ids: Sequence[int]) -> list[int]:
        """The ids between those of ``[CLS]`` and ``[SEP]``."""
        return [self._classify_id, *ids, self._separate_id]

    def _encodings(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        return self._model.encode_batch(list(texts), add_special_tokens=False)


def train_wordpiece(
    lines: Iterable[str], vocabulary_size: int, lowercase: bool = True
) -> WordPiece:
    """Learn a vocabulary; a deterministic function of the lines.

    Every character of the lines is kept, and the most frequent pairs of pieces are merged, as
    in byte-pair encoding, until the vocabulary is full or no pair comes twice.

    Args:
      lines: texts; use training text only.
      vocabulary_size: upper limit on the ids, the four special ones included.
      lowercase: lowercase and strip accents first.

    Raises:
      InputError: a vocabulary too small for the characters, or no text at all.
    """
    lines = list(lines)
    model = _model({UNKNOWN: 0}, lowercase)
    endings = _continuing_characters(model, lines)
    # The trainer numbers continuing characters in the order of a hash map that differs from
    # run to run, and breaks ties by these numbers. As special pieces they are numbered first.
    fixed = [*SPECIAL_TOKENS, *(CONTINUES + character for character in endings)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        min_frequency=2,
        special_tokens=fixed,
        continuing_subword_prefix=CONTINUES,
        show_progress=False,
    )
    model.train_from_iterator(lines, trainer)
    ids = model.get_vocab()
    _check_size(len(ids), len(SPECIAL_TOKENS), vocabulary_size)
    return WordPiece(sorted(ids, key=ids.__getitem__), lowercase)


def check_length(length: int) -> None:
    """Refuse rows without room for a piece.

    Raises:
      InputError: a length below 3.
    """
    if length < 3:
        problem = "no room for a piece between [CLS] and [SEP]"
        raise InputError("task.source_length", length, problem, "Use 3 or more")


def pad_rows(rows: Sequence[Sequence[int]], length: int, filling: int) -> np.ndarray:
    """Rows of at most that length as int32 ``[n, length]``, filled up behind."""
    padded = np.full((len(rows), length), filling, dtype=np.int32)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded


def _model(vocabulary: dict[str, int], lowercase: bool) -> tokenizers.Tokenizer:
    pieces = models.WordPiece(
        vocabulary,
        unk_token=UNKNOWN,
        continuing_subword_prefix=CONTINUES,
        max_input_chars_per_word=LONGEST_WORD,
    )
    model = tokenizers.Tokenizer(pieces)
    model.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    model.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return model


def _continuing_characters(model: tokenizers.Tokenizer, lines: Sequence[str]) -> list[str]:
    """Characters that stand behind another one in some word, sorted."""
    words = {
        word
        for line in lines
        for word, _ in model.pre_tokenizer.pre_tokenize_str(model.normalizer.normalize_str(line))
    }
    return sorted(set().union(*(word[1:] for word in words)))


def _check_size(size: int, specials: int, wanted: int) -> None:
    if size == specials:
        remedy = "Use a larger corpus"
        raise InputError("task.vocabulary_size", wanted, "no text to learn it from", remedy)
    if size > wanted:
        problem = f"the special pieces and the characters of the corpus alone take {size}"
        remedy = f"Use {size} or more, far more to have whole words"
        raise InputError("task.vocabulary_size", wanted, problem, remedy)


def _check_pieces(pieces: Sequence[str], path: str | os.PathLike[str], key: str) -> None:
    remedy = "Give the vocab.txt of a BERT model, one piece a line"
    first_at: dict[str, int] = {}
    for number, piece in enumerate(pieces, start=1):
        earlier = first_at.setdefault(piece, number)
        if not piece or earlier != number:
            problem = (
                f"line {number} repeats line {earlier}" if piece else f"line {number} is empty"
            )
            raise InputError(key, str(path), problem, remedy)
    missing = [token for token in SPECIAL_TOKENS if token not in first_at]
    if missing:
        raise InputError(key, str(path), f"it lacks {', '.join(missing)}", remedy)
    if first_at[PAD] != PAD_ID + 1:
        problem = f"{PAD} stands in line {first_at[PAD]}, and padding must have id {PAD_ID}"
        raise InputError(key, str(path), problem, f"Put {PAD} in the first line")


def _check_case(pieces: Sequence[str], path: str | os.PathLike[str], lowercase: bool) -> None:
    own = [piece for piece in pieces if piece not in SPECIAL_TOKENS and piece[0] != "["]
    capitals = [piece for piece in own if piece != piece.lower()]
    if lowercase and capitals:
        problem = f"{path} has capitals, as in {capitals[0]!r}, which lowercase text never meets"
        raise InputError("task.lowercase", True, problem, "Use False with this vocabulary")
    if not lowercase and not capitals and any(piece.islower() for piece in own):
        problem = f"{path} has no capitals, so that every word with one would be unknown"
        raise InputError("task.lowercase", False, problem, "Use True with this vocabulary")
