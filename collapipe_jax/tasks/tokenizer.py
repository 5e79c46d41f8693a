"""Joint subword vocabulary of both languages: byte-pair encoding over characters."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from collapipe_jax.errors import InputError

PAD_ID, BOS_ID, EOS_ID, UNK_ID = 0, 1, 2, 3
SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")


class Tokenizer:
    """Text to subword ids and back; ids 0 to 3 are padding, begin, end and unknown.

    Subwords never cross a space or join a punctuation mark. Spaces are part of the subwords,
    so a decoded sentence is plain text, ready for BLEU. Normalised text
    (``parallel_text.normalise``) whose characters are all known comes back unchanged; a
    character never seen in training becomes the unknown id and is lost.
    """

    def __init__(self, model: tokenizers.Tokenizer):
        # a sentence that spells out "</s>" is text, not the end of a sentence
        model.encode_special_tokens = True
        self._model = model

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, the special ones included; at most what training was asked for."""
        return self._model.get_vocab_size()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Subword ids of each text, without begin, end or padding; empty for empty text."""
        encodings = self._model.encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode_batch(self, ids: np.ndarray | Sequence[Sequence[int]]) -> list[str]:
        """Plain text of each row of ids, up to its first end id.

        Args:
          ids: rows of ids, ``[n, length]`` or ragged. Padding, begin and unknown ids are
            skipped, and so are ids beyond the vocabulary, which a model sized by the
            asked vocabulary may emit.
        """
        return self._model.decode_batch([self._words(row) for row in ids])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the vocabulary as one JSON file; its directory must exist."""
        self._model.save(str(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Read what ``save`` wrote.

        Raises:
          InputError: no such file, or a file that is no vocabulary with these special ids.
        """
        problem = "no such file"
        if Path(path).is_file():
            problem = "not a vocabulary of this package"
            # the library raises a bare Exception for any malformed file
            try:
                model = tokenizers.Tokenizer.from_file(str(path))
            except Exception as error:
                raise _unreadable(path, problem) from error
            if all(model.token_to_id(token) == i for i, token in enumerate(SPECIAL_TOKENS)):
                return cls(model)
        raise _unreadable(path, problem)

    def _words(self, row: np.ndarray | Sequence[int]) -> list[int]:
        ids = [int(i) for i in row]
        if EOS_ID in ids:
            ids = ids[: ids.index(EOS_ID)]
        return [i for i in ids if UNK_ID < i < self.vocabulary_size]


def train_bpe(lines: Iterable[str], vocabulary_size: int) -> Tokenizer:
    """Learn a byte-pair encoding; a deterministic function of the lines.

    Every character of the lines is kept, and the most frequent pairs are merged until the
    vocabulary is full or no pair comes twice.

    Args:
      lines: normalised sentences of both languages; use training text only.
      vocabulary_size: upper limit on the ids, the four special ones included. A small
        corpus may yield fewer: see ``Tokenizer.vocabulary_size``.

    Raises:
      InputError: a vocabulary too small for the characters, or no text at all.

    Source: Sennrich, Haddow and Birch, Neural machine translation of rare words with subword
    units (ACL 2016).
    """
    if vocabulary_size <= len(SPECIAL_TOKENS):
        problem = f"no room beside the {len(SPECIAL_TOKENS)} special tokens"
        raise InputError("task.vocabulary_size", vocabulary_size, problem, "Use 100 or more")
    model = tokenizers.Tokenizer(models.BPE(unk_token=SPECIAL_TOKENS[UNK_ID]))
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
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    model.train_from_iterator(lines, trainer)
    size = model.get_vocab_size()
    if size == len(SPECIAL_TOKENS):
        problem = "no text to learn it from"
        raise InputError("task.vocabulary_size", vocabulary_size, problem, "Use a larger corpus")
    if size > vocabulary_size:
        problem = f"the characters of the corpus alone take {size}"
        remedy = f"Use {size} or more, far more to have whole words"
        raise InputError("task.vocabulary_size", vocabulary_size, problem, remedy)
    return Tokenizer(model)


def _unreadable(path: str | os.PathLike[str], problem: str) -> InputError:
    return InputError("tokenizer", str(path), problem, "Give a file that Tokenizer.save wrote")
