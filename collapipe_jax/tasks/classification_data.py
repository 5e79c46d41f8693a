"""Data of classification: labelled texts, their sets, vocabulary and arrays."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from collapipe_jax.errors import InputError
from collapipe_jax.models.bert import LabelledBatch
from collapipe_jax.tasks.corpora import CorpusName, check_labels, resolve_corpus
from collapipe_jax.tasks.labelled_text import (
    LabelledText,
    read_domains,
    read_labelled_text,
    split_name,
)
from collapipe_jax.tasks.sampling import seeded_generator
from collapipe_jax.tasks.subwords import WordPiece, check_length, make_wordpiece


class LabelledSets(NamedTuple):
    """Training, validation and test texts; ``labels`` are the classes, sorted."""

    labels: tuple[str, ...]
    train: list[LabelledText]
    validation: list[LabelledText]
    test: list[LabelledText]


class ClassificationData(NamedTuple):
    """Arrays, vocabulary and classes of a classification task.

    Attributes:
      wordpiece: the vocabulary.
      labels: names of the classes, sorted.
      train, validation, test: texts and their classes, NumPy leaves ``[n, ...]``.
      split_keys: domain of every training text, or its class without domains, ``[n]`` int32.
      key_names: names of the ``split_keys``.
      cut: number of texts of each set that were cut to the length.
    """

    wordpiece: WordPiece
    labels: tuple[str, ...]
    train: LabelledBatch
    validation: LabelledBatch
    test: LabelledBatch
    split_keys: np.ndarray
    key_names: tuple[str, ...]
    cut: dict[str, int]


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
    """Read labelled texts and turn them into arrays; a deterministic function.

    Args:
      train, validation, test, seed, samples, validation_samples: as in ``read_sets``.
      domains: JSON file ``{domain: [label, ...]}``, or empty.
      vocabulary, vocabulary_size, lowercase: as in ``make_wordpiece``.
      length: S, ids of a row, ``[CLS]`` and ``[SEP]`` included; longer texts are cut and counted.

    Raises:
      InputError: on what these functions refuse, or a class without a domain.
    """
    check_length(length)
    sets = read_sets(
        train=train,
        validation=validation,
        test=test,
        seed=seed,
        samples=samples,
        validation_samples=validation_samples,
    )
    lines = [entry.text for entry in sets.train]
    wordpiece = make_wordpiece(vocabulary, lines, vocabulary_size, lowercase)
    encoded = {
        name: _arrays(wordpiece, getattr(sets, name), sets.labels, length)
        for name in ("train", "validation", "test")
    }
    arrays = {name: batch for name, (batch, _) in encoded.items()}
    keys, key_names = arrays["train"].labels, sets.labels
    if domains:
        domain_of_label, key_names = _domains(domains, sets.labels)
        keys = domain_of_label[keys]
    return ClassificationData(
        wordpiece=wordpiece,
        labels=sets.labels,
        **arrays,
        split_keys=keys,
        key_names=key_names,
        cut={name: cut for name, (_, cut) in encoded.items()},
    )


def read_sets(
    *,
    train: CorpusName,
    validation: CorpusName,
    test: CorpusName,
    seed: int,
    samples: int = 0,
    validation_samples: int = 0,
) -> LabelledSets:
    """Read the training, validation and test texts, each set in the order of its file.

    Args:
      train: file as in ``read_labelled_text``, found as in ``resolve_corpus``. It alone
        determines the classes.
      validation: file; empty takes ``validation_samples`` from ``train``.
      test: file.
      seed: of the draws below, from 0.
      samples: most texts to train on, drawn by ``stratified_draw``; 0 takes all.
      validation_samples: texts taken from ``train``, drawn likewise and before the others;
        from 1 where ``validation`` is empty, else 0.

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
    check_labels("task.validation", validation or train, (e.label for e in validation_text), labels)
    check_labels("task.test", test, (e.label for e in test_text), labels)
    return LabelledSets(labels, train_text, validation_text, test_text)


def stratified_draw(labels: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Increasing indices of ``size`` random samples, of every label its share up to rounding.

    Each label first gives its share rounded down; the rest comes from the labels with the
    largest remainders, ties in random order.
    """
    rng = seeded_generator(seed)
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    # Integers: rounding errors must not decide between equal remainders.
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
    """A stratified draw and its complement, both in the order of the corpus."""
    _, labels = np.unique([entry.label for entry in entries], return_inverse=True)
    drawn = set(stratified_draw(labels, size, seed).tolist())
    taken = [entry for i, entry in enumerate(entries) if i in drawn]
    return taken, [entry for i, entry in enumerate(entries) if i not in drawn]


def _arrays(
    wordpiece: WordPiece, entries: Sequence[LabelledText], labels: Sequence[str], length: int
) -> tuple[LabelledBatch, int]:
    """Padded ids and classes of the texts, and the number of cut texts."""
    token_ids, cut = wordpiece.encode_texts([entry.text for entry in entries], length)
    number_of = {label: number for number, label in enumerate(labels)}
    numbers = np.array([number_of[entry.label] for entry in entries], dtype=np.int32)
    return LabelledBatch(token_ids, numbers), cut


def _domains(name: CorpusName, labels: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Number of the domain of every label, and the domains' names."""
    domain_of = read_domains(resolve_corpus(name, "task.domains"))
    missing = [label for label in labels if label not in domain_of]
    if missing:
        problem = f"{len(missing)} classes have no domain, the first {missing[0]!r}"
        raise InputError("task.domains", str(name), problem, "Put every class in one domain")
    names = tuple(sorted({domain_of[label] for label in labels}))
    return np.array([names.index(domain_of[label]) for label in labels], dtype=np.int32), names


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
