"""A classification task from end to end: labelled texts, splits, vocabulary, arrays."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from collapipe_jax.errors import InputError
from collapipe_jax.tasks.corpora import resolve_corpus
from collapipe_jax.tasks.labelled_text import (
    LabelledText,
    read_domains,
    read_labelled_text,
    split_name,
)
from collapipe_jax.tasks.wordpiece import WordPiece, check_length, train_wordpiece

CorpusName = str | os.PathLike[str]


class ClassificationArrays(NamedTuple):
    """n texts and their classes."""

    token_ids: np.ndarray  # [n, S] int32: [CLS], pieces, [SEP], padding
    labels: np.ndarray  # [n] int32: number of the class


class LabelledSets(NamedTuple):
    """Labelled texts to train on, to choose by and to report on; the classes, sorted."""

    labels: tuple[str, ...]
    train: list[LabelledText]
    validation: list[LabelledText]
    test: list[LabelledText]


class CutTexts(NamedTuple):
    """How many texts of each set were cut to the length."""

    train: int
    validation: int
    test: int


class ClassificationData(NamedTuple):
    """Everything that training and scoring a classifier needs.

    ``labels`` are the names of the classes, sorted. ``keys [n]`` int32 says for the n training
    texts which of ``key_names`` they are of, the domains, or without domains the classes: for
    a non-IID split.
    """

    wordpiece: WordPiece
    labels: tuple[str, ...]
    train: ClassificationArrays
    validation: ClassificationArrays
    test: ClassificationArrays
    keys: np.ndarray
    key_names: tuple[str, ...]
    cut: CutTexts


def load_classification(
    *,
    train: CorpusName,
    validation: CorpusName,
    test: CorpusName,
    domains: CorpusName,
    vocabulary: CorpusName,
    vocabulary_size: int,
    length: int,
    seed: int,
    samples: int = 0,
    validation_samples: int = 0,
    lowercase: bool = True,
) -> ClassificationData:
    """Read labelled texts and turn them into arrays.

    Args:
      train: file, as in ``read_sets``, and so are ``validation`` and ``test``.
      validation: file to choose by; empty takes ``validation_samples`` from ``train``.
      test: file to report on.
      domains: JSON file ``{domain: [label, ...]}``, or empty.
      vocabulary: ``vocab.txt`` as in ``WordPiece.from_file``; empty learns one from the
        training texts.
      vocabulary_size: upper limit on a learnt vocabulary, unused by one from a file.
      length: S, ids of a row, ``[CLS]`` and ``[SEP]`` included, from 3; longer texts are cut
        and counted.
      seed: of the draws of ``read_sets``, from 0.
      samples: most texts to train on; 0 takes all.
      validation_samples: texts taken from ``train`` for validation.
      lowercase: whether case and accents are ignored; as the vocabulary was made.

    Returns:
      The task; the same arguments and files give the same arrays.

    Raises:
      InputError: as in ``read_sets``, on a length without room, a broken vocabulary, or a class
        without a domain.
    """
    check_length(length)
    labels, *texts = read_sets(
        train=train,
        validation=validation,
        test=test,
        seed=seed,
        samples=samples,
        validation_samples=validation_samples,
    )
    if vocabulary:
        wordpiece = WordPiece.from_file(resolve_corpus(vocabulary, "task.vocabulary"), lowercase)
    else:
        lines = [entry.text for entry in texts[0]]
        wordpiece = train_wordpiece(lines, vocabulary_size, lowercase)
    arrays, cut = zip(*(_arrays(wordpiece, text, labels, length) for text in texts), strict=True)
    keys, key_names = arrays[0].labels, labels
    if domains:
        domain_of_label, key_names = _domains(domains, labels)
        keys = domain_of_label[keys]
    return ClassificationData(wordpiece, labels, *arrays, keys, key_names, CutTexts(*cut))


def read_sets(
    *,
    train: CorpusName,
    validation: CorpusName,
    test: CorpusName,
    seed: int,
    samples: int = 0,
    validation_samples: int = 0,
) -> LabelledSets:
    """Read the texts to train on, to choose by and to report on.

    Args:
      train: file as in ``labelled_text.read_labelled_text``, found as in
        ``corpora.resolve_corpus``. It alone tells which classes there are.
      validation: file to choose by; empty takes ``validation_samples`` from ``train``.
      test: file to report on.
      seed: of the draws below, from 0.
      samples: most texts to train on, drawn by ``stratified_draw``; 0 takes all.
      validation_samples: texts taken from ``train`` for validation, drawn likewise and
        before them; from 1 where ``validation`` is empty, else 0.

    Returns:
      The sets, each in the order of its file.

    Raises:
      InputError: a missing or broken file, a number out of its range, or a class in
        validation or test that training lacks.
    """
    if samples < 0:
        raise InputError("task.samples", samples, "a negative number", "Use 0 for all")
    whole = _read("task.train", train)
    labels = tuple(sorted({entry.label for entry in whole}))
    held_out = _validation_size(validation, validation_samples, len(whole))
    validation_text, train_text = _take(whole, held_out, seed)
    if 0 < samples < len(train_text):
        train_text, _ = _take(train_text, samples, seed)
    if validation:
        validation_text = _read("task.validation", validation)
    test_text = _read("task.test", test)
    _check_labels("task.validation", validation or train, validation_text, labels)
    _check_labels("task.test", test, test_text, labels)
    return LabelledSets(labels, train_text, validation_text, test_text)


def stratified_draw(labels: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Random samples, of every label its share of the whole up to rounding.

    Each label first gives its share rounded down; the samples still missing come from the
    labels with the largest remainders, ties in random order.

    Args:
      labels: label of every sample, integers ``[n]``.
      size: samples to draw, from 0 to n.
      seed: the draw is a function of it and the other arguments; from 0.

    Returns:
      Increasing indices, int64 ``[size]``.

    Raises:
      InputError: a negative seed.
    """
    if seed < 0:
        raise InputError("seed", seed, "a negative seed", "Use an integer from 0")
    rng = np.random.Generator(np.random.Philox(seed))
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    # whole numbers, as rounding errors must not decide between equal remainders
    quota, remainder = np.divmod(counts * size, max(1, len(labels)))
    order = rng.permutation(len(counts))
    order = order[np.argsort(-remainder[order], kind="stable")]
    quota[order[: size - quota.sum()]] += 1
    drawn = [rng.permutation(np.flatnonzero(classes == c))[:q] for c, q in enumerate(quota)]
    return np.sort(np.concatenate(drawn))


def _read(key: str, name: CorpusName) -> list[LabelledText]:
    file, split = split_name(name)
    path = resolve_corpus(file, key)
    return read_labelled_text(f"{path}#{split}" if split else path, key=key)


def _take(
    entries: Sequence[LabelledText], size: int, seed: int
) -> tuple[list[LabelledText], list[LabelledText]]:
    """A stratified draw and what it leaves, both in the order of the corpus."""
    _, labels = np.unique([entry.label for entry in entries], return_inverse=True)
    drawn = set(stratified_draw(labels, size, seed).tolist())
    taken = [entry for i, entry in enumerate(entries) if i in drawn]
    return taken, [entry for i, entry in enumerate(entries) if i not in drawn]


def _arrays(
    wordpiece: WordPiece, entries: Sequence[LabelledText], labels: Sequence[str], length: int
) -> tuple[ClassificationArrays, int]:
    """Padded ids and classes of the texts, and how many were cut."""
    token_ids, cut = wordpiece.encode_texts([entry.text for entry in entries], length)
    number_of = {label: number for number, label in enumerate(labels)}
    numbers = np.array([number_of[entry.label] for entry in entries], dtype=np.int32)
    return ClassificationArrays(token_ids, numbers), cut


def _domains(name: CorpusName, labels: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Number of the domain of every label, and the domains' names."""
    domain_of = read_domains(resolve_corpus(name, "task.domains"))
    missing = [label for label in labels if label not in domain_of]
    if missing:
        problem = f"{len(missing)} classes have no domain, the first {missing[0]!r}"
        raise InputError("task.domains", str(name), problem, "Put every class in one domain")
    names = tuple(sorted({domain_of[label] for label in labels}))
    return np.array([names.index(domain_of[label]) for label in labels], dtype=np.int32), names


def _check_labels(
    key: str, name: CorpusName, entries: Sequence[LabelledText], labels: Sequence[str]
) -> None:
    unseen = sorted({entry.label for entry in entries} - set(labels))
    if unseen:
        problem = f"training has no {', '.join(map(repr, unseen[:5]))}"
        remedy = "Give files with the same classes, or leave these out of the file"
        raise InputError(key, str(name), problem, remedy)


def _validation_size(validation: CorpusName, wanted: int, available: int) -> int:
    key = "task.validation_samples"
    if validation:
        if wanted:
            problem = "task.validation names a file"
            raise InputError(key, wanted, problem, "Use 0, or leave task.validation empty")
        return 0
    if wanted < 1:
        problem = "there is no task.validation and nothing would be drawn for it"
        raise InputError(key, wanted, problem, "Use 1 or more, e.g. 1000")
    if wanted >= available:
        problem = f"training has {available} texts, none would be left to train on"
        raise InputError(key, wanted, problem, "Lower it")
    return wanted
