"""A translation task from end to end: corpus, split, vocabulary, padded arrays."""

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from collapipe_jax.errors import InputError
from collapipe_jax.tasks.corpora import resolve_corpus
from collapipe_jax.tasks.parallel_text import (
    GroupSplit,
    Pair,
    ParallelText,
    read_parallel_text,
    split_by_group,
)
from collapipe_jax.tasks.synthetic import generate_parallel_text
from collapipe_jax.tasks.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizer, train_bpe

SYNTHETIC = "synthetic"
MAX_LABELS = 8

CorpusName = str | os.PathLike[str]


class ParallelArrays(NamedTuple):
    """Padded token ids of n sentence pairs."""

    source_ids: np.ndarray  # [n, source_length] int32: tokens, end, padding
    target_ids: np.ndarray  # [n, target_length + 1] int32: begin, tokens, end, padding


class ParallelSentences(NamedTuple):
    """The n sentence pairs themselves, normalised, for scores and for reading."""

    sources: tuple[str, ...]
    references: tuple[str, ...]


class DroppedPairs(NamedTuple):
    """Pairs that were left out: empty ones, and too long ones by set."""

    empty: int
    train: int
    validation: int
    test: int


class TranslationData(NamedTuple):
    """Everything that training and scoring a translation model needs.

    ``keys [n]`` labels the n training pairs for a non-IID split: see ``length_labels``.
    Row i of ``validation`` and of ``test`` belongs to sentence i of its text.
    """

    tokenizer: Tokenizer
    train: ParallelArrays
    validation: ParallelArrays
    test: ParallelArrays
    validation_text: ParallelSentences
    test_text: ParallelSentences
    keys: np.ndarray
    dropped: DroppedPairs


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
    """Read or generate a corpus and turn it into arrays.

    The sets share no source sentence, not even up to case and punctuation; validation and test
    hold one reference a source. The vocabulary is learnt from the training text alone. A pair
    that does not fit the lengths is dropped and counted, never cut: the sets are smaller than
    asked by these counts.

    Args:
      corpus: ``"synthetic"``, or a file as in ``corpora.resolve_corpus``, or two aligned
        files.
      pairs: pairs in all, training, validation and test together; a random part of the
        corpus. None takes all of a file.
      validation_pairs: pairs to choose by, from 1.
      test_pairs: pairs to report on, from 1.
      vocabulary_size: upper limit of the joint vocabulary.
      source_length: ids of a source, its end id included, from 2.
      target_length: ids that the decoder predicts, the end id included, from 2.
      seed: of the synthetic text and of the split, from 0.
      reverse: translate from the second column to the first; the split then goes by the
        sentences of the second.

    Returns:
      The task; the same arguments and corpus give the same arrays.

    Raises:
      InputError: a missing or broken corpus, sizes that it cannot serve, or lengths that
        leave a set empty.
    """
    _check(pairs, validation_pairs, test_pairs, source_length, target_length, seed)
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
        keys=length_labels(np.sum(train.source_ids != PAD_ID, axis=1)),
        dropped=_dropped(text.empty_lines, split, train, validation, test),
    )


def source_key(pair: Pair) -> str:
    """Group of a pair: its source sentence without case and punctuation.

    Sentences without any letter or digit are their own group.
    """
    return " ".join(re.findall(r"\w+", pair[0].casefold())) or pair[0]


def length_labels(lengths: np.ndarray) -> np.ndarray:
    """Labels 0, 1, ... of samples by length: short sentences first.

    The bounds are the quantiles of the lengths, 8 classes of about equal size. Samples of equal
    length always share a label, so where few lengths occur neighbouring classes merge and
    fewer labels, 1 at least, remain: mostly 5 to 8.

    Args:
      lengths: tokens of each sample, integers ``[n]``.

    Returns:
      Labels without gaps, int32 ``[n]``.
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
    tokenizer: Tokenizer, pairs: Sequence[Pair], lengths: tuple[int, int], name: str
) -> tuple[ParallelArrays, ParallelSentences]:
    """Padded ids of the pairs that fit, and these pairs."""
    sources = tokenizer.encode_batch([source for source, _ in pairs])
    targets = tokenizer.encode_batch([target for _, target in pairs])
    # one place of each length is the end id's; begin has the extra place of the target
    fits = [
        i
        for i in range(len(pairs))
        if len(sources[i]) < lengths[0] and len(targets[i]) < lengths[1]
    ]
    if not fits:
        problem = f"none of the {len(pairs)} {name} pairs fits these numbers of tokens"
        remedy = "Raise them or task.vocabulary_size"
        raise InputError("(task.source_length, task.target_length)", lengths, problem, remedy)
    source_ids = _pad([[*sources[i], EOS_ID] for i in fits], lengths[0])
    target_ids = _pad([[BOS_ID, *targets[i], EOS_ID] for i in fits], lengths[1] + 1)
    kept = ParallelSentences(tuple(pairs[i][0] for i in fits), tuple(pairs[i][1] for i in fits))
    return ParallelArrays(source_ids, target_ids), kept


def _pad(rows: Sequence[Sequence[int]], length: int) -> np.ndarray:
    padded = np.full((len(rows), length), PAD_ID, dtype=np.int32)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded


def _dropped(empty_lines: int, split: GroupSplit, *kept: ParallelArrays) -> DroppedPairs:
    lost = (len(p) - len(a.source_ids) for p, a in zip(split, kept, strict=True))
    return DroppedPairs(empty_lines, *lost)


def _check(
    pairs: int | None, validation: int, test: int, source_length: int, target_length: int, seed: int
) -> None:
    if seed < 0:
        raise InputError("seed", seed, "a negative seed", "Use an integer from 0")
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
