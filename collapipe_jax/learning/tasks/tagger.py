"""A trained model for tagging in use."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from collapipe_jax.learning.models.bert import LabelledBatch
from collapipe_jax.learning.tasks.bert_predictor import BertPredictor
from collapipe_jax.learning.tasks.corpora import TaggedSentence, TextFile
from collapipe_jax.learning.tasks.scores import span_f1
from collapipe_jax.learning.tasks.tagging import cut_windows, read_scored, word_tags


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


class Tagger(BertPredictor):
    """Texts to entities. As in training, long ones are cut into windows between words.

    A word gets the tag of its first piece, and an ``I-`` that continues nothing begins an entity.
    """

    def __init__(self, folder: Path):
        super().__init__(folder, pools=False)

    def predict(self, texts: Sequence[str | Sequence[str]]) -> list[Tagged]:
        """Entities and tags of each text.

        Args:
          texts: a string is cut into words by BERT's rules: at white space, and around every
            punctuation mark. A list is of words, and its text is these with a space between.
        """
        if not texts:
            return []
        whole = [text if isinstance(text, str) else " ".join(text) for text in texts]
        places = self.wordpiece.find_words(whole)
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                places[number] = _places(text)
        words = [
            tuple(text[start:end] for start, end in each)
            for text, each in zip(whole, places, strict=True)
        ]
        known = self.labels[0]  # any known tag marks where words begin
        _, tags = self._tag([TaggedSentence(each, (known,) * len(each)) for each in words])
        rows = zip(whole, places, words, tags, strict=True)
        return [Tagged(_entities(text, at, t), w, tuple(t)) for text, at, w, t in rows]

    def evaluate(self, file: str | os.PathLike[str]) -> dict[str, Any]:
        """Span F1 and loss on sentences, on file as in ``read_tagged_text``."""
        sentences = read_scored(TextFile("data", str(file)), self.labels)
        arrays, tags = self._tag(sentences)
        score = span_f1(sentences, tags)
        return {
            "span_f1": score.value,
            "signatures": [score.signature],
            "loss": self.loss(arrays),
            "sentences": len(sentences),
        }

    def line(self, prediction: Tagged) -> str:
        """Entities as ``start-end type text``, between tabs."""
        return "\t".join(
            f"{each.start}-{each.end} {each.type} {' '.join(each.text.split())}"
            for each in prediction.entities
        )

    def _tag(self, sentences: Sequence[TaggedSentence]) -> tuple[LabelledBatch, list[list[str]]]:
        """Windows of sentences, and the tags of their words."""
        arrays, text = cut_windows(self.wordpiece, sentences, self.labels, self.length)
        return arrays, word_tags(self.labels, arrays, text, self.likeliest(arrays))


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

    found = []
    for kind, first, last in get_entities(list(tags)):
        start, end = places[first][0], places[last][1]
        found.append(Entity(kind, text[start:end], start, end))
    return tuple(found)
