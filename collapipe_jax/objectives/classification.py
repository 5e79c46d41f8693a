"""Classification of texts: BERT with a pooler and a head, and accuracy."""

import dataclasses
from typing import Any

from collapipe_jax.models.bert_heads import BertClassifier, ClassificationBatch
from collapipe_jax.models.layers import Params
from collapipe_jax.objectives.bert import BertObjective, predicted_labels
from collapipe_jax.objectives.held_out import held_out_loss
from collapipe_jax.objectives.objective import SCORE_NAMES, Validation
from collapipe_jax.tasks.classification import ClassificationArrays, ClassificationData
from collapipe_jax.tasks.scores import accuracy, macro_f1, majority_class_baseline


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(BertObjective):
    """The ``Objective`` of telling which class a text is of.

    Attributes:
      model: what is trained.
      data: texts, classes and sets.
      pretrained, piece_dropout: see ``BertObjective``.
    """

    model: BertClassifier
    data: ClassificationData
    score_name: str = SCORE_NAMES["classification"]
    headline: str = "test_accuracy"
    baseline: str = "test_accuracy_majority"

    @property
    def train(self) -> ClassificationBatch:
        """Subwords and classes of all training texts."""
        return ClassificationBatch(*self.data.train)

    def validate(self, params: Params) -> Validation:
        """Loss and accuracy."""
        arrays = ClassificationBatch(*self.data.validation)
        found = predicted_labels(self.model, params, arrays)
        loss = held_out_loss(params, self.model, arrays)
        return Validation(loss, accuracy(arrays.labels, found).value)

    def baseline_score(self) -> float:
        """Accuracy of always naming the most frequent class."""
        return self._majority(self.data.validation)

    def test(self, params: Params) -> dict[str, Any]:
        """Accuracy and macro F1, accuracy of the majority class, and the loss."""
        arrays = ClassificationBatch(*self.data.test)
        found = predicted_labels(self.model, params, arrays)
        return {
            "test_accuracy": accuracy(arrays.labels, found).value,
            "test_macro_f1": macro_f1(arrays.labels, found).value,
            "test_accuracy_majority": self._majority(self.data.test),
            "test_loss": held_out_loss(params, self.model, arrays),
            "cut_texts": self.data.cut._asdict(),
        }

    def _majority(self, arrays: ClassificationArrays) -> float:
        return majority_class_baseline(self.data.train.labels, arrays.labels).accuracy.value
