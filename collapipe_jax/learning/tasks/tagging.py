"""Tagging of entities: words with tags on file, BERT with a head at every token, span F1."""

import dataclasses
import itertools
import os
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from collapipe_jax.core.errors import InputError, Step
from collapipe_jax.learning.models.bert import UNLABELLED, LabelledBatch
from collapipe_jax.learning.models.config import PAD_ID
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.tasks import bert_tasks
from collapipe_jax.learning.tasks.corpora import (
    OUTSIDE,
    LabelledSets,
    Placed,
    SetFiles,
    TaggedSentence,
    TextFile,
    entity_type,
)
from collapipe_jax.learning.tasks.records import (
    FEATURES,
    OBJECTS,
    PARQUET,
    Field,
    read_records,
    record_columns,
)
from collapipe_jax.learning.tasks.sampling import draw_rows
from collapipe_jax.learning.tasks.scores import memorised_tags, span_f1, span_recall
from collapipe_jax.learning.tasks.subwords import WordPiece, pad_rows
from collapipe_jax.learning.tasks.task import PREDICTED, Config, ScoredSet, TaskData

# Schemes of tags for entities, all of them read as IOB2.
#
# In IOB2 an entity begins with ``B-`` and continues with ``I-``. In IOB1 it begins with ``I-``,
# and with ``B-`` only right behind another entity of its type. In BIOES ``E-`` ends an entity
# of several words, and ``S-`` is one of a single word. BILOU calls these ``L-`` and ``U-``;
# BMES has ``M-`` inside.
#
# Source: Tjong Kim Sang and Veenstra, Representing text chunks (1999); Ratinov and Roth, Design
# challenges and misconceptions in named entity recognition (2009).

# Letters of all schemes, and which of BIOES they are
_LETTER = {"S": "S", "U": "S", "W": "S", "E": "E", "L": "E", "M": "I", "B": "B", "I": "I"}
_TAG = re.compile(rf"{OUTSIDE}|[{''.join(_LETTER)}]-\S+")

_IOB2 = "IOB2"

Sentence = Sequence[Placed[str]]
"""Tags of a sentence, and where they stand."""


class _Reading(NamedTuple):
    """Sentences read in a scheme."""

    scheme: str
    sentences: list[list[str]]  # tags in IOB2
    broken: list[list[str]]  # what the scheme does not allow, with its place, of each sentence


def _is_tag(text: str) -> bool:
    """Whether a text is a tag of any scheme."""
    return _TAG.fullmatch(text) is not None


def _to_iob2(sentences: Sequence[Sentence]) -> _Reading:
    """Tags of a file in IOB2, from the scheme that forbids the fewest of them."""
    marks = {tag[0] for sentence in sentences for _, tag in sentence if _is_tag(tag)}
    ends = "BILOU" if marks & set("LU") else "BMES" if marks & set("MW") else "BIOES"
    schemes: list[tuple[str, Callable[[Sentence, list[str]], list[str]]]] = [(_IOB2, _iob2)]
    if marks <= set("OBI"):
        schemes.append(("IOB1", _iob1))
    else:
        schemes.append((ends, _bioes))
    readings = []
    for name, read in schemes:
        broken: list[list[str]] = [[] for _ in sentences]
        tags = [read(each, problems) for each, problems in zip(sentences, broken, strict=True)]
        readings.append(_Reading(name, tags, broken))
    return min(readings, key=lambda reading: sum(map(len, reading.broken)))


def _iob2(sentence: Sentence, broken: list[str]) -> list[str]:
    previous = OUTSIDE
    for place, tag in sentence:
        if not re.fullmatch(r"O|[BI]-\S+", tag):
            broken.append(f"{place} has the tag {tag!r}, which is none of O, B-type and I-type")
        elif tag.startswith("I-") and entity_type(previous) != entity_type(tag):
            broken.append(f"{place} has {tag} after {previous}, an entity that nothing began")
        previous = tag
    return [tag for _, tag in sentence]


def _iob1(sentence: Sentence, broken: list[str]) -> list[str]:
    found, previous = [], ""
    for place, tag in sentence:
        kind = entity_type(tag)
        if not _is_tag(tag):
            broken.append(f"{place} has the tag {tag!r}, which is none of O, B-type and I-type")
        elif tag.startswith("B-") and kind != previous:
            broken.append(f"{place} has {tag} behind no entity of its type")
        found.append(f"B-{kind}" if kind and kind != previous else tag)
        previous = kind
    return found


def _bioes(sentence: Sentence, broken: list[str]) -> list[str]:
    found, inside = [], ""  # type of the entity that has not ended yet
    for place, tag in sentence:
        kind, letter = entity_type(tag), _LETTER.get(tag[:1], "")
        goes_on = letter in ("I", "E")
        if not _is_tag(tag):
            broken.append(f"{place} has the tag {tag!r}, which is none of the scheme")
        elif goes_on and inside != kind:
            broken.append(f"{place} has {tag}, which continues no entity")
        elif inside and not goes_on:
            broken.append(f"{place} has {tag} in an entity of type {inside} without an end")
        inside = kind if letter in ("B", "I") else ""
        found.append(f"{'I' if goes_on else 'B'}-{kind}" if kind else tag)
    if inside:
        place, tag = sentence[-1]
        broken.append(f"{place} has {tag} at the end of a sentence, an entity without an end")
    return found


_BLANKS = " \t\r"
_TOKENS, _TAGS = "tokens", ("tags", "ner_tags")  # keys of lists
_JUDGED = 1_000  # lines by which a file is one of words with tags


class TaggedText(NamedTuple):
    """The sentences of a set, and for each window ``[n]`` the number of its sentence."""

    sentences: tuple[TaggedSentence, ...]
    sentence_of_window: np.ndarray


class Entity(NamedTuple):
    """An entity of a text."""

    type: str
    text: str
    # Characters of the text; the end is not part of it
    start: int
    end: int


class Tagged(NamedTuple):
    """The entities of a text, its words and their tags."""

    entities: tuple[Entity, ...]
    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_tagged(
    *,
    train: str,
    validation: str,
    test: str,
    seed: int,
    samples: int = 0,
    validation_samples: int = 0,
    labels: int = 0,
    skip_broken: bool = False,
) -> LabelledSets[TaggedSentence]:
    """Read the training, validation and test sentences, each set in the order of its file.

    Args:
      train: name of a file as in ``read_tagged_text``. It alone determines the types of entity,
        each with a ``B-`` and an ``I-`` tag.
      validation: name of a file; empty takes sentences from ``train``.
      test: name of a file.
      seed: of the draws below.
      samples: most sentences to train on, drawn at random; 0 takes all.
      validation_samples: sentences taken from ``train`` before, of those with and without an
        entity their share, as in ``take_validation``; 0 is a tenth where ``validation`` is empty.
      labels: number of tags; 0 takes any.
      skip_broken: as of ``TextFile``; a sentence with a broken line is left out whole.

    Raises:
      InputError: a missing or broken file, a file without any entity, a number out of its range,
        or validation or test with a type of entity that training lacks; or all of these.
    """
    files = SetFiles(
        read=_placed,
        labels=_labels,
        marks=lambda sentence: sentence.tags,
        text=lambda sentence: " ".join(sentence.tokens),
        stratum=_has_entity,
    )
    options = {"validation_samples": validation_samples, "labels": labels, "seed": seed}
    sets = files.sets(train, validation, test, **options, skip_broken=skip_broken)
    if not validation and not any(map(_has_entity, sets.validation)):
        problem = "no sentence of training that has an entity is among them"
        remedy = "Raise it, or name a file in task.validation"
        raise InputError("task.validation_samples", validation_samples, problem, remedy)
    rows = draw_rows(range(len(sets.train)), samples, seed)
    return sets._replace(train=[sets.train[row] for row in rows])


def _has_entity(sentence: TaggedSentence) -> bool:
    return set(sentence.tags) != {OUTSIDE}


def read_tagged_text(file: TextFile) -> list[TaggedSentence]:
    """Sentences of a file, in file order and none of them empty, with tags in IOB2.

    A ``.jsonl`` or ``.parquet`` file has lists of equal length under ``tokens`` and under ``tags``
    or ``ner_tags``; tags may be numbers that ``LabelNames`` names. Any other has a word a line, its
    first column the word, its last the tag: CoNLL. Tabs separate columns, or blanks in lines
    without a tab. A line of white space ends a sentence, and so does a line that starts with
    ``-DOCSTART-``. Between sentences, lines of comments are passed over. Tags of another scheme
    than IOB2 are converted, with a warning.

    Raises:
      InputError: an unreadable file, lines of one column, tags that no scheme of ``_to_iob2``
        allows (refused, not repaired: entities would change), or a file without words.

    Source: Ramshaw and Marcus, Text chunking using transformation-based learning (1995); Tjong
    Kim Sang and De Meulder, Introduction to the CoNLL-2003 shared task (2003).
    """
    return [sentence for _, sentence in _placed(file)]


def is_tagged(file: TextFile) -> bool:
    """Whether a file is meant for ``read_tagged_text``, even where some of its lines are broken."""
    if file.suffix in (OBJECTS, PARQUET):
        columns = set(record_columns(file))
        return _TOKENS in columns and not columns.isdisjoint(_TAGS)
    rows = [_columns(line) for line in file.lines()[:_JUDGED] if _is_word(line)]
    return 2 * sum(len(row) > 1 and _is_tag(row[-1]) for row in rows) > len(rows)


class _Words(NamedTuple):
    """A sentence as it is on file."""

    place: str  # where it begins
    tokens: tuple[str, ...]
    tags: list[Placed[str]]


def _placed(file: TextFile) -> list[Placed[TaggedSentence]]:
    """Sentences, and the lines that they begin in."""
    with file.reading() as step:
        read = _listed_sentences if file.suffix in (OBJECTS, PARQUET) else _conll_sentences
        sentences = list(read(file, step))
        found = _to_iob2([sentence.tags for sentence in sentences])
        for problem in itertools.chain(*found.broken):
            with step():
                raise file.error(problem, "Write tags in the scheme BIO (IOB2)")
    placed = [
        (sentence.place, TaggedSentence(sentence.tokens, tuple(tags)))
        for sentence, tags, broken in zip(sentences, found.sentences, found.broken, strict=True)
        if not broken
    ]
    if not placed:
        raise file.error("the file holds no word", "Give a file with sentences")
    if found.scheme != _IOB2:
        file.warn(f"its tags are in the scheme {found.scheme}, and are read as BIO (IOB2)")
    return placed


def _labels(file: TextFile, sentences: Sequence[TaggedSentence]) -> tuple[str, ...]:
    types = sorted({entity_type(tag) for sentence in sentences for tag in sentence.tags} - {""})
    if not types:
        problem = f"the file holds no entity to {'learn' if file.key == 'task.train' else 'score'}"
        raise file.error(problem, "Give sentences that have some")
    return (OUTSIDE, *(f"{mark}-{name}" for name in types for mark in "BI"))


def _conll_sentences(file: TextFile, step: Step) -> Iterator[_Words]:
    tokens: list[str] = []
    tags: list[Placed[str]] = []
    lines, is_whole = file.lines(), True
    words = (line for line in lines if _is_word(line) and not line.startswith("#"))
    width = len(_columns(next(words, "# O")))
    for number, line in enumerate([*lines, ""], start=1):
        if not tokens and _is_comment(line, width):
            continue
        if _is_word(line):
            with step():
                columns = _columns(line)
                if len(columns) < 2:
                    is_whole = False
                    problem = f"line {number} has one column"
                    raise file.error(problem, "Write a word a line as word<TAB>tag")
                tokens.append(columns[0])
                tags.append((f"line {number}", columns[-1]))
        else:
            # What is left of a sentence that lost a word is no sample.
            if tokens and (is_whole or not file.skip_broken):
                yield _Words(tags[0][0], tuple(tokens), tags)
            tokens, tags, is_whole = [], [], True


def _is_word(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("-DOCSTART-")


def _is_comment(line: str, width: int) -> bool:
    """Whether a line between sentences is no word, in a file of so many columns.

    A word may begin with ``#``, and a comment may end as a tag does: ``# text = Vitamin O``.
    """
    if not line.startswith("#") or "\t" in line:
        return False
    columns = _columns(line)
    is_pair = re.match(r"#\s*\w.*\s=(\s|$)", line) is not None
    return is_pair or len(columns) != width or not _is_tag(columns[-1])


def _columns(line: str) -> list[str]:
    # not split(): a word may hold a no-break space
    columns = re.split("\t+" if "\t" in line else " +", line.strip(_BLANKS))
    return [column.strip(_BLANKS) for column in columns]


def _listed_sentences(file: TextFile, step: Step) -> Iterator[_Words]:
    fields = [Field((_TOKENS,)), Field(_TAGS, labels=True)]
    for place, values in read_records(file, fields, step):
        with step():
            if not all(
                isinstance(each, list) and all(isinstance(s, str) for s in each) for each in values
            ):
                problem = f"{place} has no lists of texts under tokens and tags"
                raise file.error(problem, 'Write {"tokens": ["word", ...], "tags": ["O", ...]}')
            tokens, tags = values
            if len(tokens) != len(tags):
                problem = f"{place} has {len(tokens)} tokens and {len(tags)} tags"
                raise file.error(problem, "Give every token one tag")
            if any(tag.isdigit() for tag in tags):
                remedy = (
                    'Write a first line {"names": ["O", "B-type", ...]}, or put the file '
                    f"{FEATURES} of the library datasets beside it"
                )
                raise file.error(f"{place} has numbers as tags, and nothing names them", remedy)
            if tokens:
                yield _Words(place, tuple(tokens), [(place, tag) for tag in tags])


def word_tags(labels: Sequence[str], samples: ScoredSet, predicted: np.ndarray) -> list[list[str]]:
    """Tags of the words of all sentences, from predictions for subwords.

    Args:
      labels: names of the tags.
      samples: n windows, whose labels mark where words begin, and their sentences.
      predicted: numbers of tags ``[n, S]``; read only where the windows have labels.
    """
    text: TaggedText = samples.text
    tags: list[list[str]] = [[] for _ in text.sentences]
    scored = samples.arrays.labels != UNLABELLED
    for window, sentence in enumerate(text.sentence_of_window):
        tags[sentence] += [labels[number] for number in predicted[window, scored[window]]]
    return tags


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


def _key(sentence: TaggedSentence, types: Sequence[str]) -> int:
    # Sorted, so that of equally frequent types the first counts.
    kinds = sorted(entity_type(tag) for tag in sentence.tags if tag.startswith("B-"))
    return 1 + types.index(statistics.mode(kinds)) if kinds else 0


def _cut_windows(
    wordpiece: WordPiece, sentences: Sequence[TaggedSentence], labels: Sequence[str], length: int
) -> ScoredSet:
    """Padded windows of all sentences, each of at most ``length`` pieces."""
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
    text = TaggedText(tuple(sentences), np.array(owners, dtype=np.int32))
    return ScoredSet(arrays, text, {"sentences": len(sentences)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagging(bert_tasks.BertTask):
    """Texts to entities; long ones are cut into windows between words.

    A word gets the tag of its first piece, and an ``I-`` that continues nothing begins an entity.
    """

    score_name: ClassVar[str] = "span F1"
    score_key: ClassVar[str] = "span_f1"
    trivial_key: ClassVar[str] = "span_f1_memorised"
    pools: ClassVar[bool] = False
    reads: ClassVar = bert_tasks.READS | {"model.head"}

    @staticmethod
    def linear_scores(corpus: LabelledSets) -> dict[str, Any]:
        """Test scores of a linear model of words; its library takes seconds to load."""
        from collapipe_jax.learning.tasks.linear_baselines import word_svm

        return word_svm(corpus)

    @classmethod
    def read_corpus(cls, config: Config) -> LabelledSets[TaggedSentence]:
        """Read the sentences; report all that is wrong with the files at once."""
        return bert_tasks.read_corpus(config, read_tagged)

    @classmethod
    def load_data(
        cls, config: Config, corpus: LabelledSets[TaggedSentence] | None = None
    ) -> TaskData:
        """Turn sentences into arrays; a deterministic function.

        A sentence longer than a row is cut into consecutive windows between words, so every word
        is in one window and scored once. A word of more pieces than a row holds has a window of
        its own and keeps its first pieces.

        The split key of a training window is 0 where its sentence has no entity, else 1 + the
        number of the type that most of its entities have (of equals, the first).
        """
        sets = corpus or cls.read_corpus(config)
        length = config["task"]["source_length"]
        wordpiece = bert_tasks.make_wordpiece(
            config, [" ".join(each.tokens) for each in sets.train]
        )
        train, validation, test = (
            _cut_windows(wordpiece, each, sets.labels, length) if each else None
            for each in (sets.train, sets.validation, sets.test)
        )
        assert train is not None  # a file without a sentence is refused
        types = [entity_type(label) for label in sets.labels if label.startswith("B-")]
        keys = np.array([_key(sentence, types) for sentence in sets.train], dtype=np.int32)
        return TaskData(
            tokenizer=wordpiece,
            labels=sets.labels,
            train=train.arrays,
            validation=validation,
            test=test,
            split_keys=keys[train.text.sentence_of_window],
            train_text=train.text,
        )

    def score(self, params: Params, samples: ScoredSet) -> dict[str, Any]:
        """Span F1, recall of entities that training has or lacks, and loss."""
        tags = word_tags(self.data.labels, samples, self.likeliest(params, samples.arrays))
        score = span_f1(samples.text.sentences, tags)
        scores = {"span_f1": score.value, "signatures": [score.signature]}
        if self.data.train_text is not None:
            known = self.data.train_text.sentences
            seen, unseen = span_recall(known, samples.text.sentences, tags)
            scores |= {"recall_of_seen": seen, "recall_of_unseen": unseen}
        return {**scores, "loss": self.loss(params, samples)}

    def trivial(self, samples: ScoredSet) -> dict[str, Any]:
        """Span F1 of each word's most frequent tag in training.

        The majority class of all words finds no span: its F1 is 0.
        """
        sentences = samples.text.sentences
        tags = memorised_tags(self.data.train_text.sentences, sentences)
        return {"span_f1_memorised": span_f1(sentences, tags).value}

    def predict(self, params: Params, texts: Sequence[str | Sequence[str]]) -> list[Tagged]:
        """Entities and tags of each text.

        Args:
          params: of the model.
          texts: a string is cut into words by BERT's rules: at white space, and around every
            punctuation mark. A list is of words, and its text is these with a space between.
        """
        if not texts:
            return []
        labels, wordpiece = self.data.labels, self.data.tokenizer
        whole = [text if isinstance(text, str) else " ".join(text) for text in texts]
        places = wordpiece.find_words(whole)
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                places[number] = _places(text)
        words = [
            tuple(text[start:end] for start, end in each)
            for text, each in zip(whole, places, strict=True)
        ]
        # Any known tag marks where words begin.
        sentences = [TaggedSentence(each, (labels[0],) * len(each)) for each in words]
        samples = self.prepared(_cut_windows(wordpiece, sentences, labels, self.length))
        tags = word_tags(labels, samples, self.likeliest(params, samples.arrays, PREDICTED))
        rows = zip(whole, places, words, tags, strict=True)
        return [Tagged(_entities(text, at, t), w, tuple(t)) for text, at, w, t in rows]

    def evaluate(self, params: Params, file: str | os.PathLike[str]) -> dict[str, Any]:
        """Scores on sentences, on file as in ``read_tagged_text``."""
        source = TextFile("data", str(file))
        placed = _placed(source)
        sentences = [sentence for _, sentence in placed]
        _labels(source, sentences)  # refuses a file without entities
        source.check_labels([(place, one.tags) for place, one in placed], self.data.labels)
        samples = _cut_windows(self.data.tokenizer, sentences, self.data.labels, self.length)
        return self.report(params, self.prepared(samples))

    def line(self, answer: Tagged) -> str:
        """Entities as ``start-end type text``, between tabs."""
        return "\t".join(
            f"{each.start}-{each.end} {each.type} {' '.join(each.text.split())}"
            for each in answer.entities
        )


def _places(words: Sequence[str]) -> list[tuple[int, int]]:
    """Start and end of words with a space between."""
    places, start = [], 0
    for word in words:
        places.append((start, start + len(word)))
        start += len(word) + 1
    return places


def _entities(
    text: str, places: Sequence[tuple[int, int]], tags: Sequence[str]
) -> tuple[Entity, ...]:
    """Entities of a text, given the places of its words and their tags."""
    from seqeval.metrics.sequence_labeling import get_entities

    entities = []
    for kind, first, last in get_entities(list(tags)):
        start, end = places[first][0], places[last][1]
        entities.append(Entity(kind, text[start:end], start, end))
    return tuple(entities)
