"""Subword vocabularies: byte-pair encoding of parallel text, and WordPiece as BERT uses it."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import write_text
from collapipe_jax.models.config import EOS_ID, PAD_ID, UNK_ID
from collapipe_jax.tasks.corpora import CorpusName, read_lines, resolve_corpus

BPE_SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")

PAD, UNKNOWN, CLASSIFY, SEPARATE = SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
LONGEST_WORD = 100  # characters; a longer word is unknown, as in BERT
CONTINUES = "##"


class BpeTokenizer:
    """Text to subword ids and back; ids 0 to 3 are padding, begin, end and unknown.

    Subwords never cross a space or join a punctuation mark. Spaces are part of the subwords, so a
    decoded sentence is plain text, ready for BLEU. Normalised text (``parallel_text.normalise``) of
    known characters comes back unchanged; others become the unknown id and are lost.
    """

    def __init__(self, model: tokenizers.Tokenizer):
        # a sentence that spells out "</s>" is text, not the end of a sentence
        model.encode_special_tokens = True
        self._model = model

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, the special ones included."""
        return self._model.get_vocab_size()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Subword ids of each text, without begin, end or padding; empty for empty text."""
        encodings = self._model.encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode_batch(self, ids: np.ndarray | Sequence[Sequence[int]]) -> list[str]:
        """Plain text of rows of ids, up to the first end id, without special and unknown ids."""
        return self._model.decode_batch([self._words(row) for row in ids])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the vocabulary as one JSON file; its directory must exist."""
        self._model.save(str(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "BpeTokenizer":
        """Read the file that ``save`` wrote.

        Raises:
          InputError: no such file, or no vocabulary with these special ids.
        """
        problem = "no such file"
        if Path(path).is_file():
            problem = "not a vocabulary of this package"
            # the library raises a bare Exception for any malformed file
            try:
                model = tokenizers.Tokenizer.from_file(str(path))
            except Exception as error:
                raise _unreadable(path, problem) from error
            if all(model.token_to_id(token) == i for i, token in enumerate(BPE_SPECIALS)):
                return cls(model)
        raise _unreadable(path, problem)

    def _words(self, row: np.ndarray | Sequence[int]) -> list[int]:
        ids = [int(i) for i in row]
        if EOS_ID in ids:
            ids = ids[: ids.index(EOS_ID)]
        return [i for i in ids if UNK_ID < i < self.vocabulary_size]


def train_bpe(lines: Iterable[str], vocabulary_size: int) -> BpeTokenizer:
    """Learn a byte-pair encoding; a deterministic function of the lines.

    Every character of the lines is kept, and the most frequent pairs are merged until the
    vocabulary is full or no pair occurs twice.

    Args:
      lines: normalised training sentences of both languages.
      vocabulary_size: upper limit on the ids, the four special ones included.

    Raises:
      InputError: a vocabulary too small for the characters, or no text at all.

    Source: Sennrich, Haddow and Birch, Neural machine translation of rare words with subword
    units (ACL 2016).
    """
    if vocabulary_size <= len(BPE_SPECIALS):
        problem = f"no room beside the {len(BPE_SPECIALS)} special tokens"
        raise InputError("task.vocabulary_size", vocabulary_size, problem, "Use 100 or more")
    model = tokenizers.Tokenizer(models.BPE(unk_token=BPE_SPECIALS[UNK_ID]))
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="always"),
            pre_tokenizers.Punctuation(behavior="isolated"),
        ]
    )
    model.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=2,
        special_tokens=list(BPE_SPECIALS),
        show_progress=False,
    )
    model.train_from_iterator(lines, trainer)
    _check_size(model.get_vocab_size(), len(BPE_SPECIALS), vocabulary_size)
    return BpeTokenizer(model)


class EncodedTexts(NamedTuple):
    """Token ids ``[n, length]`` int32, and the number of cut texts."""

    token_ids: np.ndarray
    cut: int


class WordPiece:
    """Text to subword ids of one vocabulary.

    Text is cleaned, lowercased and stripped of accents if ``lowercase``, and cut at white
    space, around punctuation and around CJK characters. Each word becomes the longest piece of
    the vocabulary that it starts with, then the longest that continues from there, or one
    unknown id where that fails. A text that spells out ``[SEP]`` is text.

    Source: Schuster and Nakajima, Japanese and Korean voice search (ICASSP 2012); Devlin et
    al., BERT (NAACL 2019).
    """

    def __init__(self, pieces: Sequence[str], lowercase: bool = True):
        self.pieces = tuple(pieces)
        self.lowercase = lowercase
        self._model = _wordpiece_model({piece: i for i, piece in enumerate(self.pieces)}, lowercase)
        self._unknown_id, self._classify_id, self._separate_id = (
            self.pieces.index(token) for token in (UNKNOWN, CLASSIFY, SEPARATE)
        )

    @classmethod
    def from_file(
        cls, path: CorpusName, lowercase: bool = True, key: str = "task.vocabulary"
    ) -> "WordPiece":
        """Read a vocabulary, one piece a line, its id the number of the line from 0.

        Args:
          path: UTF-8 file, ``vocab.txt`` of BERT.
          lowercase: whether the vocabulary is of lowercase text without accents.
          key: key of the file in the configuration, for errors.

        Raises:
          InputError: an unreadable file, an empty or repeated piece, a missing special piece
            (``[PAD]`` must be the first), or pieces of the other case, with which most words would
            silently become unknown.
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
        """Ids of texts with ``[CLS]``, ``[SEP]`` and padding; long ones are cut and counted."""
        check_length(length)
        rows = [encoding.ids for encoding in self._encodings(texts)]
        room = length - 2
        token_ids = pad_rows([self.enclose(row[:room]) for row in rows], length, PAD_ID)
        return EncodedTexts(token_ids, sum(len(row) > room for row in rows))

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Ids of the pieces of each word; a word without pieces is the unknown id.

        Words are the annotator's, and may fall into several by BERT's rules.
        """
        return [encoding.ids or [self._unknown_id] for encoding in self._encodings(words)]

    def enclose(self, ids: Sequence[int]) -> list[int]:
        """The ids between those of ``[CLS]`` and ``[SEP]``."""
        return [self._classify_id, *ids, self._separate_id]

    def _encodings(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        return self._model.encode_batch(list(texts), add_special_tokens=False)


def make_wordpiece(
    vocabulary: CorpusName, lines: Iterable[str], vocabulary_size: int, lowercase: bool
) -> WordPiece:
    """Read a vocabulary, or learn one where no file is named.

    Args:
      vocabulary: file as in ``WordPiece.from_file``, or empty.
      lines: training texts.
      vocabulary_size: upper limit on a learnt vocabulary.
      lowercase: whether case and accents are ignored; as the vocabulary was made.
    """
    if vocabulary:
        return WordPiece.from_file(resolve_corpus(vocabulary, "task.vocabulary"), lowercase)
    return train_wordpiece(lines, vocabulary_size, lowercase)


def train_wordpiece(
    lines: Iterable[str], vocabulary_size: int, lowercase: bool = True
) -> WordPiece:
    """Learn a vocabulary as ``train_bpe`` does; a deterministic function of the lines.

    Args:
      lines: training texts.
      vocabulary_size: upper limit on the ids, the four special ones included.
      lowercase: lowercase and strip accents first.

    Raises:
      InputError: a vocabulary too small for the characters, or no text at all.
    """
    lines = list(lines)
    model = _wordpiece_model({UNKNOWN: 0}, lowercase)
    endings = _continuing_characters(model, lines)
    # The trainer numbers continuing characters in the order of a hash map that differs from
    # run to run, and breaks ties by these numbers. As special pieces they are numbered first.
    fixed = [*SPECIAL_PIECES, *(CONTINUES + character for character in endings)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        min_frequency=2,
        special_tokens=fixed,
        continuing_subword_prefix=CONTINUES,
        show_progress=False,
    )
    model.train_from_iterator(lines, trainer)
    ids = model.get_vocab()
    _check_size(len(ids), len(SPECIAL_PIECES), vocabulary_size)
    return WordPiece(sorted(ids, key=ids.__getitem__), lowercase)


def check_length(length: int) -> None:
    """Refuse, by an ``InputError``, rows without room for a piece."""
    if length < 3:
        problem = "no room for a piece between [CLS] and [SEP]"
        raise InputError("task.source_length", length, problem, "Use 3 or more")


def pad_rows(rows: Sequence[Sequence[int]], length: int, filling: int) -> np.ndarray:
    """Rows of at most that length, padded behind to int32 ``[n, length]``."""
    padded = np.full((len(rows), length), filling, dtype=np.int32)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded


def _wordpiece_model(vocabulary: dict[str, int], lowercase: bool) -> tokenizers.Tokenizer:
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
    """Characters that follow another one in some word, sorted."""
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
        problem = f"the characters of the corpus alone take {size}"
        remedy = f"Use {size} or more, far more to have whole words"
        raise InputError("task.vocabulary_size", wanted, problem, remedy)


def _check_pieces(pieces: Sequence[str], path: CorpusName, key: str) -> None:
    remedy = "Give the vocab.txt of a BERT model, one piece a line"
    first_at: dict[str, int] = {}
    for number, piece in enumerate(pieces, start=1):
        earlier = first_at.setdefault(piece, number)
        if not piece or earlier != number:
            repeats = f"line {number} repeats line {earlier}"
            problem = repeats if piece else f"line {number} is empty"
            raise InputError(key, str(path), problem, remedy)
    missing = [token for token in SPECIAL_PIECES if token not in first_at]
    if missing:
        raise InputError(key, str(path), f"it lacks {', '.join(missing)}", remedy)
    if first_at[PAD] != PAD_ID + 1:
        problem = f"{PAD} stands in line {first_at[PAD]}, and padding must have id {PAD_ID}"
        raise InputError(key, str(path), problem, f"Put {PAD} in the first line")


def _check_case(pieces: Sequence[str], path: CorpusName, lowercase: bool) -> None:
    own = [piece for piece in pieces if piece not in SPECIAL_PIECES and piece[0] != "["]
    capitals = [piece for piece in own if piece != piece.lower()]
    if lowercase and capitals:
        problem = f"{path} has capitals, as in {capitals[0]!r}, which lowercase text never meets"
        raise InputError("task.lowercase", True, problem, "Use False with this vocabulary")
    if not lowercase and not capitals and any(piece.islower() for piece in own):
        problem = f"{path} has no capitals, so that every word with one would be unknown"
        raise InputError("task.lowercase", False, problem, "Use True with this vocabulary")


def _unreadable(path: str | os.PathLike[str], problem: str) -> InputError:
    return InputError("tokenizer", str(path), problem, "Give a file that save() wrote")
