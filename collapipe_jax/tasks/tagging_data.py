"""Data of tagging: sentences, windows of subwords, and tags put back on words."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from collapipe_jax.errors import InputError
from collapipe_jax.models.bert import UNLABELLED, LabelledBatch
from collapipe_jax.models.config import PAD_ID
from collapipe_jax.tasks.conll import OUTSIDE, TaggedSentence, entity_type, read_conll
from collapipe_jax.tasks.corpora import CorpusName, check_labels, resolve_corpus
from collapipe_jax.tasks.sampling import seeded_generator
from collapipe_jax.tasks.subwords import WordPiece, check_length, make_wordpiece, pad_rows


class TaggedSets(NamedTuple):
    """Training, validation and test sentences; ``labels`` are the tags, ``O`` first."""

    labels: tuple[str, ...]
    train: list[TaggedSentence]
    validation: list[TaggedSentence]
    test: list[TaggedSentence]


class TaggedText(NamedTuple):
    """The sentences of a set, and for each window ``[n]`` the number of its sentence."""

    sentences: tuple[TaggedSentence, ...]
    sentence_of_window: np.ndarray


class TaggingData(NamedTuple):
    """Arrays, vocabulary and tags of a tagging task.

    Attributes:
      wordpiece: the vocabulary.
      labels: names of the tags, ``O`` first.
      entity_types: names of the types of entity.
      train, validation, test: windows of subwords, NumPy leaves ``[n, S]``. A word's label
        belongs to its first subword alone.
      train_text, validation_text, test_text: the sentences.
      split_keys: of every training window, ``[n]`` int32: 0 where its sentence has no entity,
        else 1 + the number of the type that most of its entities have (of equals, the first).
    """

    wordpiece: WordPiece
    labels: tuple[str, ...]
    entity_types: tuple[str, ...]
    train: LabelledBatch
    validation: LabelledBatch
    test: LabelledBatch
    train_text: TaggedText
    validation_text: TaggedText
    test_text: TaggedText
    split_keys: np.ndarray


def load_tagging(
    *,
    train: CorpusName,
    validation: CorpusName,
    test: CorpusName,
    vocabulary: CorpusName,
    vocabulary_size: int,
    length: int,
    samples: int,
    seed: int,
    lowercase: bool = True,
) -> TaggingData:
    """Read CoNLL files and turn them into arrays; a deterministic function.

    A sentence longer than a row is cut into consecutive windows between words, so every word
    is in one window and scored once. A word of more pieces than a row holds has a window of
    its own and keeps its first pieces.

    Args:
      train, validation, test, samples, seed: as in ``read_tagged``.
      vocabulary, vocabulary_size, lowercase: as in ``make_wordpiece``.
      length: S, ids of a row, ``[CLS]`` and ``[SEP]`` included.

    Raises:
      InputError: on what these functions refuse.
    """
    check_length(length)
    sets = read_tagged(train=train, validation=validation, test=test, samples=samples, seed=seed)
    lines = [" ".join(sentence.tokens) for sentence in sets.train]
    wordpiece = make_wordpiece(vocabulary, lines, vocabulary_size, lowercase)
    parts = {}
    for name in ("train", "validation", "test"):
        arrays, text = _windows(wordpiece, getattr(sets, name), sets.labels, length)
        parts |= {name: arrays, f"{name}_text": text}
    types = tuple(entity_type(label) for label in sets.labels if label.startswith("B-"))
    sentence_keys = np.array([_key(sentence, types) for sentence in sets.train], dtype=np.int32)
    return TaggingData(
        wordpiece=wordpiece,
        labels=sets.labels,
        entity_types=types,
        split_keys=sentence_keys[parts["train_text"].sentence_of_window],
        **parts,
    )


def read_tagged(
    *, train: CorpusName, validation: CorpusName, test: CorpusName, samples: int, seed: int
) -> TaggedSets:
    """Read the training, validation and test sentences, each set in the order of its file.

    Args:
      train: file as in ``read_conll``, found as in ``resolve_corpus``. It alone determines the
        types of entity, each with a ``B-`` and an ``I-`` tag.
      validation, test: files.
      samples: most sentences to train on, drawn at random; 0 takes all.
      seed: of this draw, from 0.

    Raises:
      InputError: a missing or broken file, a number out of its range, or a type of entity in
        validation or test that training lacks.
    """
    if samples < 0:
        raise InputError("task.samples", samples, "a negative number", "Use 0 for all")
    rng = seeded_generator(seed)
    whole = _read("task.train", train)
    types = sorted({entity_type(tag) for sentence in whole for tag in sentence.tags} - {""})
    labels = (OUTSIDE, *(f"{mark}-{name}" for name in types for mark in "BI"))
    validation_text, test_text = _read("task.validation", validation), _read("task.test", test)
    for key, path, text in (
        ("task.validation", validation, validation_text),
        ("task.test", test, test_text),
    ):
        check_labels(key, path, (tag for sentence in text for tag in sentence.tags), labels)
    order = rng.permutation(len(whole))
    drawn = [whole[i] for i in np.sort(order[:samples] if samples else order)]
    return TaggedSets(labels, drawn, validation_text, test_text)


def word_tags(
    labels: Sequence[str], arrays: LabelledBatch, text: TaggedText, predicted: np.ndarray
) -> list[list[str]]:
    """Tags of the words of all sentences, from predictions for subwords.

    Args:
      labels: names of the tags.
      arrays: n windows; their labels mark where words begin.
      text: the sentences that the windows were cut from.
      predicted: numbers of tags ``[n, S]``; read only where ``arrays`` has labels.

    Raises:
      InputError: predictions of another shape, or numbers that name no tag.
    """
    if predicted.shape != arrays.labels.shape:
        problem = f"the windows have the shape {arrays.labels.shape}"
        raise InputError("predicted", predicted.shape, problem, "Predict a tag for every place")
    tags: list[list[str]] = [[] for _ in text.sentences]
    for sentence, row, scored in zip(
        text.sentence_of_window, predicted, arrays.labels != UNLABELLED, strict=True
    ):
        numbers = row[scored]
        if not np.all((numbers >= 0) & (numbers < len(labels))):
            problem = f"there are only {len(labels)} tags"
            raise InputError("predicted", numbers.tolist(), problem, "Use numbers from 0 of tags")
        tags[sentence] += [labels[number] for number in numbers]
    return tags


def _read(key: str, path: CorpusName) -> list[TaggedSentence]:
    return read_conll(resolve_corpus(path, key), key)


def _key(sentence: TaggedSentence, types: Sequence[str]) -> int:
    counts = Counter(entity_type(tag) for tag in sentence.tags if tag.startswith("B-"))
    if not counts:
        return 0
    # the most frequent type; of equals, the first of the types
    return 1 + max(range(len(types)), key=lambda i: (counts[types[i]], -i))


def _windows(
    wordpiece: WordPiece, sentences: Sequence[TaggedSentence], labels: Sequence[str], length: int
) -> tuple[LabelledBatch, TaggedText]:
    """Padded windows of all sentences."""
    words = list(dict.fromkeys(word for sentence in sentences for word in sentence.tokens))
    pieces_of = dict(zip(words, wordpiece.encode_words(words), strict=True))
    number_of = {label: number for number, label in enumerate(labels)}
    ids, numbers, owners = [], [], []
    for owner, sentence in enumerate(sentences):
        pieces = [pieces_of[word][: length - 2] for word in sentence.tokens]
        for start, stop in cut_at_words([len(p) for p in pieces], length - 2):
            ids.append(wordpiece.enclose([i for p in pieces[start:stop] for i in p]))
            row = [UNLABELLED]  # [CLS]
            for word_pieces, tag in zip(pieces[start:stop], sentence.tags[start:stop], strict=True):
                row += [number_of[tag]] + [UNLABELLED] * (len(word_pieces) - 1)
            numbers.append(row)
            owners.append(owner)
    arrays = LabelledBatch(pad_rows(ids, length, PAD_ID), pad_rows(numbers, length, UNLABELLED))
    return arrays, TaggedText(tuple(sentences), np.array(owners, dtype=np.int32))


def cut_at_words(sizes: Sequence[int], room: int) -> list[tuple[int, int]]:
    """First word and end of consecutive windows of words, each as long as possible.

    Args:
      sizes: pieces of each word, from 1 to ``room``.
      room: most pieces of a window.
    """
    windows, start, used = [], 0, 0
    for word, size in enumerate(sizes):
        if used + size > room:
            windows.append((start, word))
            start, used = word, 0
        used += size
    return [*windows, (start, len(sizes))]
