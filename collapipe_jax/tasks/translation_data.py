"""Data of translation: a corpus, its sets, the joint vocabulary and padded arrays."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from collapipe_jax.errors import InputError
from collapipe_jax.models.config import BOS_ID, EOS_ID, PAD_ID
from collapipe_jax.models.transformer import TranslationBatch
from collapipe_jax.tasks.corpora import CorpusName, resolve_corpus
from collapipe_jax.tasks.parallel_text import (
    Pair,
    ParallelText,
    read_parallel_text,
    split_by_group,
)
from collapipe_jax.tasks.subwords import BpeTokenizer, pad_rows, train_bpe
from collapipe_jax.tasks.synthetic import generate_parallel_text

SYNTHETIC = "synthetic"
MAX_LABELS = 8


class ParallelSentences(NamedTuple):
    """The n sentence pairs of a set, normalised."""

    sources: tuple[str, ...]
    references: tuple[str, ...]


class TranslationData(NamedTuple):
    """Arrays and vocabulary of a translation task.

    Attributes:
      tokenizer: the joint vocabulary.
      train, validation, test: padded token ids, NumPy leaves ``[n, ...]``: tokens and end of
        the source; begin, tokens and end of the target.
      validation_text, test_text: the sentences, row by row.
      split_keys: class of every training source by length, see ``length_labels``, ``[n]``.
      dropped: number of pairs left out: empty ones, and too long ones by set.
    """

    tokenizer: BpeTokenizer
    train: TranslationBatch
    validation: TranslationBatch
    test: TranslationBatch
    validation_text: ParallelSentences
    test_text: ParallelSentences
    split_keys: np.ndarray
    dropped: dict[str, int]


def load_translation(
    *,
    corpus: CorpusName | tuple[CorpusName, CorpusName],
    pairs: int | None,
    validation_pairs: int,
    test_pairs: int,
    vocabulary_size: int,
    source_length: int,
    target_length: int,
    seed: int,
    reverse: bool = False,
) -> TranslationData:
    """Read or generate a corpus and turn it into arrays; a deterministic function.

    The sets share no source sentence, not even up to case and punctuation; validation and test
    hold one reference a source. The vocabulary is learnt from the training text alone. A pair
    that does not fit the lengths is dropped and counted, never cut.

    Args:
      corpus: ``"synthetic"``, a file as in ``resolve_corpus``, or two aligned files.
      pairs: random part of the corpus for all three sets; None takes all of a file.
      validation_pairs, test_pairs: sizes of these sets, from 1.
      vocabulary_size: upper limit of the joint vocabulary.
      source_length: ids of a source, its end id included, from 2.
      target_length: ids that the decoder predicts, the end id included, from 2.
      seed: of the synthetic text and of the split, from 0.
      reverse: translate from the second column to the first, and split by the second.

    Raises:
      InputError: a missing or broken corpus, sizes that it cannot serve, or lengths that
        leave a set empty.
    """
    _check_sizes(pairs, validation_pairs, test_pairs, source_length, target_length)
    text = _read(corpus, pairs, seed)
    if reverse:
        text = text._replace(pairs=[(target, source) for source, target in text.pairs])
    train_pairs = None if pairs is None else pairs - validation_pairs - test_pairs
    sizes = (train_pairs, validation_pairs, test_pairs)
    split = split_by_group(text.pairs, source_key, sizes, seed)
    tokenizer = train_bpe((line for pair in split.train for line in pair), vocabulary_size)
    lengths = (source_length, target_length)
    train, _ = _arrays(tokenizer, split.train, lengths, "training")
    validation, validation_text = _arrays(tokenizer, split.validation, lengths, "validation")
    test, test_text = _arrays(tokenizer, split.test, lengths, "test")
    return TranslationData(
        tokenizer=tokenizer,
        train=train,
        validation=validation,
        test=test,
        validation_text=validation_text,
        test_text=test_text,
        split_keys=length_labels(np.sum(train.source_ids != PAD_ID, axis=1)),
        dropped={
            "empty": text.empty_lines,
            "train": len(split.train) - len(train.source_ids),
            "validation": len(split.validation) - len(validation.source_ids),
            "test": len(split.test) - len(test.source_ids),
        },
    )


def source_key(pair: Pair) -> str:
    """Source sentence without case and punctuation, or as it is without any letter."""
    return " ".join(re.findall(r"\w+", pair[0].casefold())) or pair[0]


def length_labels(lengths: np.ndarray) -> np.ndarray:
    """Classes 0, 1, ... ``[n]`` of samples by length ``[n]``, short sentences first, without gaps.

    The bounds are the quantiles of the lengths, 8 classes of about equal size. Samples of equal
    length share a class, so where few lengths occur neighbouring classes merge: mostly 5 to 8
    remain, at least 1.
    """
    bounds = np.quantile(lengths, np.arange(1, MAX_LABELS) / MAX_LABELS, method="lower")
    _, labels = np.unique(np.searchsorted(bounds, lengths, side="left"), return_inverse=True)
    return labels.astype(np.int32)


def _read(
    corpus: CorpusName | tuple[CorpusName, CorpusName], pairs: int | None, seed: int
) -> ParallelText:
    if corpus == SYNTHETIC:
        if pairs is None:
            remedy = "Say how many, e.g. 20000"
            raise InputError("task.pairs", pairs, "synthetic text has no natural size", remedy)
        return ParallelText(generate_parallel_text(seed, pairs), empty_lines=0)
    if isinstance(corpus, tuple):
        source, target = corpus
        return read_parallel_text((resolve_corpus(source), resolve_corpus(target)))
    return read_parallel_text(resolve_corpus(corpus))


def _arrays(
    tokenizer: BpeTokenizer, pairs: Sequence[Pair], lengths: tuple[int, int], name: str
) -> tuple[TranslationBatch, ParallelSentences]:
    """Padded ids of the pairs that fit, and these pairs."""
    sources = tokenizer.encode_batch([source for source, _ in pairs])
    targets = tokenizer.encode_batch([target for _, target in pairs])
    # Both lengths include the end id; begin has the extra place of the target.
    fits = [
        i
        for i in range(len(pairs))
        if len(sources[i]) < lengths[0] and len(targets[i]) < lengths[1]
    ]
    if not fits:
        problem = f"none of the {len(pairs)} {name} pairs fits these numbers of tokens"
        remedy = "Raise them or task.vocabulary_size"
        raise InputError("(task.source_length, task.target_length)", lengths, problem, remedy)
    source_ids = pad_rows([[*sources[i], EOS_ID] for i in fits], lengths[0], PAD_ID)
    target_ids = pad_rows([[BOS_ID, *targets[i], EOS_ID] for i in fits], lengths[1] + 1, PAD_ID)
    kept = ParallelSentences(tuple(pairs[i][0] for i in fits), tuple(pairs[i][1] for i in fits))
    return TranslationBatch(source_ids, target_ids), kept


def _check_sizes(
    pairs: int | None, validation: int, test: int, source_length: int, target_length: int
) -> None:
    for key, value in (("validation_pairs", validation), ("test_pairs", test)):
        if value < 1:
            raise InputError(f"task.{key}", value, "the set would be empty", "Use 1 or more")
    for key, value in (("source_length", source_length), ("target_length", target_length)):
        if value < 2:
            problem = "no room for a token beside the end id"
            raise InputError(f"task.{key}", value, problem, "Use 2 or more")
    if pairs is not None and pairs <= validation + test:
        problem = f"validation and test take {validation + test} of them, none are left to train on"
        remedy = "Raise it, or lower task.validation_pairs and task.test_pairs"
        raise InputError("task.pairs", pairs, problem, remedy)
