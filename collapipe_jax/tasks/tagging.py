"""A tagging task from end to end: sentences, subwords, windows, and tags put back on words."""

import os
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from collapipe_jax.errors import InputError
from collapipe_jax.tasks.conll import OUTSIDE, TaggedSentence, entity_type, read_conll
from collapipe_jax.tasks.corpora import resolve_corpus
from collapipe_jax.tasks.wordpiece import (
    PAD_ID,
    UNLABELLED,
    WordPiece,
    check_length,
    pad_rows,
    train_wordpiece,
)

CorpusName = str | os.PathLike[str]


class TaggedSets(NamedTuple):
    """Sentences to train on, to choose by and to report on; the tags, ``O`` first."""

    labels: tuple[str, ...]
    train: list[TaggedSentence]
    validation: list[TaggedSentence]
    test: list[TaggedSentence]


class TaggingArrays(NamedTuple):
    """n windows of subwords. A word's label stands on its first subword alone."""

    token_ids: np.ndarray  # [n, S] int32: [CLS], pieces, [SEP], padding
    labels: np.ndarray  # [n, S] int32: number of the tag, -1 where nothing is scored


class TaggedText(NamedTuple):
    """The sentences themselves, and which of them each of the n windows belongs to."""

    sentences: tuple[TaggedSentence, ...]
    sentence_of_window: np.ndarray  # [n] int32, never falling


class TaggingData(NamedTuple):
    """Everything that training and scoring a tagger needs.

    ``labels`` are the names of the tags, ``O`` first. ``keys [n]`` int32 labels the n training
    windows for a non-IID split: 0 where the sentence has no entity, else 1 + the number in
    ``entity_types`` of the type that most of its entities have (of equals, the first).
    """

    wordpiece: WordPiece
    labels: tuple[str, ...]
    entity_types: tuple[str, ...]
    train: TaggingArrays
    validation: TaggingArrays
    test: TaggingArrays
    train_text: TaggedText
    validation_text: TaggedText
    test_text: TaggedText
    keys: np.ndarray


def load_tagging(
    *,
    train: CorpusName,
    validation: CorpusName,
    test: CorpusName,
    vocabulary: CorpusName,
    vocabulary_size: int,
    length: int,
    sentences: int,
    seed: int,
    lowercase: bool = True,
) -> TaggingData:
    """Read CoNLL files and turn them into arrays.

    A sentence longer than a row is cut into consecutive windows between words, so every word
    of the files is in just one window and scored once. A word of more pieces than a row holds
    has a window of its own and keeps its first pieces.

    Args:
      train: file, as in ``read_tagged``, and so are ``validation`` and ``test``.
      validation: file to choose by.
      test: file to report on.
      vocabulary: ``vocab.txt`` as in ``WordPiece.from_file``; empty learns one from the
        training sentences.
      vocabulary_size: upper limit on a learnt vocabulary, unused by one from a file.
      length: S, ids of a row, ``[CLS]`` and ``[SEP]`` included, from 3.
      sentences: most sentences to train on, drawn at random; 0 takes all.
      seed: of this draw, from 0.
      lowercase: whether case and accents are ignored; as the vocabulary was made.

    Returns:
      The task; the same arguments and files give the same arrays.

    Raises:
      InputError: as in ``read_tagged``, on a length without room, or a broken vocabulary.
    """
    check_length(length)
    labels, *parts = read_tagged(
        train=train, validation=validation, test=test, sentences=sentences, seed=seed
    )
    if vocabulary:
        wordpiece = WordPiece.from_file(resolve_corpus(vocabulary, "task.vocabulary"), lowercase)
    else:
        lines = [" ".join(sentence.tokens) for sentence in parts[0]]
        wordpiece = train_wordpiece(lines, vocabulary_size, lowercase)
    arrays, texts = zip(*(_windows(wordpiece, text, labels, length) for text in parts), strict=True)
    types = tuple(entity_type(label) for label in labels if label.startswith("B-"))
    sentence_keys = np.array([_key(sentence, types) for sentence in parts[0]], dtype=np.int32)
    keys = sentence_keys[texts[0].sentence_of_window]
    return TaggingData(wordpiece, labels, types, *arrays, *texts, keys)


def read_tagged(
    *, train: CorpusName, validation: CorpusName, test: CorpusName, sentences: int, seed: int
) -> TaggedSets:
    """Read the sentences to train on, to choose by and to report on.

    Args:
      train: file as in ``conll.read_conll``, found as in ``corpora.resolve_corpus``. It alone
        tells which types of entity there are, each with a ``B-`` and an ``I-`` tag.
      validation: file to choose by.
      test: file to report on.
      sentences: most sentences to train on, drawn at random; 0 takes all.
      seed: of this draw, from 0.

    Returns:
      The sets, each in the order of its file.

    Raises:
      InputError: a missing or broken file, a number out of its range, or a type of entity
        in validation or test that training lacks, which no model could predict.
    """
    if sentences < 0:
        raise InputError("task.samples", sentences, "a negative number", "Use 0 for all")
    if seed < 0:
        raise InputError("seed", seed, "a negative seed", "Use an integer from 0")
    whole = _read("task.train", train)
    types = sorted({entity_type(tag) for sentence in whole for tag in sentence.tags} - {""})
    labels = (OUTSIDE, *(f"{mark}-{name}" for name in types for mark in "BI"))
    validation_text, test_text = _read("task.validation", validation), _read("task.test", test)
    _check_tags("task.validation", validation, validation_text, labels)
    _check_tags("task.test", test, test_text, labels)
    return TaggedSets(labels, _draw(whole, sentences, seed), validation_text, test_text)


def word_tags(
    labels: Sequence[str], arrays: TaggingArrays, text: TaggedText, predicted: np.ndarray
) -> list[list[str]]:
    """Predictions put back on the words of the sentences, one tag a word.

    Args:
      labels: names of the tags.
      arrays: n windows, for where their words begin.
      text: the sentences that the windows were cut from.
      predicted: numbers of tags ``[n, S]``; read only where ``arrays`` scores.

    Returns:
      Tags of every sentence of ``text``, as many as it has words.

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


def _draw(whole: Sequence[TaggedSentence], most: int, seed: int) -> list[TaggedSentence]:
    """A random part in the order of the corpus."""
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(whole))
    return [whole[i] for i in np.sort(order[:most] if most else order)]


def _key(sentence: TaggedSentence, types: Sequence[str]) -> int:
    counts = Counter(entity_type(tag) for tag in sentence.tags if tag.startswith("B-"))
    if not counts:
        return 0
    # the most frequent type; of equals, the first of the types
    return 1 + max(range(len(types)), key=lambda i: (counts[types[i]], -i))


def _windows(
    wordpiece: WordPiece, sentences: Sequence[TaggedSentence], labels: Sequence[str], length: int
) -> tuple[TaggingArrays, TaggedText]:
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
    arrays = TaggingArrays(pad_rows(ids, length, PAD_ID), pad_rows(numbers, length, UNLABELLED))
    return arrays, TaggedText(tuple(sentences), np.array(owners, dtype=np.int32))


def cut_at_words(sizes: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Consecutive windows of words, each as long as it can be.

    Args:
      sizes: pieces of each word, from 1 to ``room``.
      room: most pieces of a window.

    Returns:
      First word and end of each window; together they are all words, in order.
    """
    windows, start, used = [], 0, 0
    for word, size in enumerate(sizes):
        if used + size > room:
            windows.append((start, word))
            start, used = word, 0
        used += size
    return [*windows, (start, len(sizes))]


def _check_tags(
    key: str, path: CorpusName, text: Sequence[TaggedSentence], labels: Sequence[str]
) -> None:
    unseen = sorted({tag for sentence in text for tag in sentence.tags} - set(labels))
    if unseen:
        problem = f"training has no {', '.join(unseen)}"
        remedy = "Give files with the same types of entity, or add examples to task.train"
        raise InputError(key, str(path), problem, remedy)
