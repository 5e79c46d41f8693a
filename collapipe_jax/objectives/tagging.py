"""Tagging of entities: BERT with a head at every token, and span F1."""

import dataclasses
from typing import Any

from collapipe_jax.models.bert_heads import BertTagger, TaggingBatch
from collapipe_jax.models.layers import Params
from collapipe_jax.objectives.bert import BertObjective, predicted_labels
from collapipe_jax.objectives.held_out import held_out_loss
from collapipe_jax.objectives.objective import SCORE_NAMES, Validation
from collapipe_jax.tasks.scores import Score, memorised_tag_baseline, span_f1, span_recall
from collapipe_jax.tasks.tagging import TaggedText, TaggingArrays, TaggingData, word_tags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagging(BertObjective):
    """The ``Objective`` of finding entities.

    Attributes:
      model: what is trained.
      data: sentences, subwords and sets.
      pretrained, piece_dropout: see ``BertObjective``.
    """

    model: BertTagger
    data: TaggingData
    score_name: str = SCORE_NAMES["tagging"]
    headline: str = "test_span_f1"
    baseline: str = "test_span_f1_memorised"

    @property
    def train(self) -> TaggingBatch:
        """Subwords and labels of all training windows."""
        return TaggingBatch(*self.data.train)

    def validate(self, params: Params) -> Validation:
        """Loss and span F1."""
        data = self.data
        loss = held_out_loss(params, self.model, TaggingBatch(*data.validation))
        found = self._tags(params, data.validation, data.validation_text)
        return Validation(loss, _span_f1(data.validation_text, found).value)

    def baseline_score(self) -> float:
        """Span F1 of giving every word the tag that it mostly had in training."""
        return self._memorised(self.data.validation_text).value

    def test(self, params: Params) -> dict[str, Any]:
        """Span F1 of the model and of remembered tags, the recall of what is new, and the loss.

        Calling everything the majority class finds no span at all: its F1 is 0.
        """
        data = self.data
        found = self._tags(params, data.test, data.test_text)
        score = _span_f1(data.test_text, found)
        recall = span_recall(data.train_text.sentences, data.test_text.sentences, found)
        return {
            "test_span_f1": score.value,
            "test_span_f1_memorised": self._memorised(data.test_text).value,
            "test_recall_of_seen": recall.seen,
            "test_recall_of_unseen": recall.unseen,
            "span_f1_signature": score.signature,
            "test_loss": held_out_loss(params, self.model, TaggingBatch(*data.test)),
        }

    def _tags(self, params: Params, arrays: TaggingArrays, text: TaggedText) -> list[list[str]]:
        predicted = predicted_labels(self.model, params, TaggingBatch(*arrays))
        return word_tags(self.data.labels, arrays, text, predicted)

    def _memorised(self, text: TaggedText) -> Score:
        seen, asked = (zip(*part.sentences, strict=True) for part in (self.data.train_text, text))
        return memorised_tag_baseline(*seen, *asked)


def _span_f1(text: TaggedText, found: list[list[str]]) -> Score:
    return span_f1([sentence.tags for sentence in text.sentences], found)
