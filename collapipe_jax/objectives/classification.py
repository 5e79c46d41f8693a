"""Classification of texts: BERT with a pooler and a head, and accuracy."""

import dataclasses
import os
from typing import Any

import numpy as np

from collapipe_jax.models.bert_heads import BertClassifier, ClassificationBatch
from collapipe_jax.models.layers import Params
from collapipe_jax.objectives.bert import export_bert, predicted_labels, save_names, start_from
from collapipe_jax.objectives.held_out import held_out_loss
from collapipe_jax.objectives.objective import SCORE_NAMES, Validation
from collapipe_jax.tasks.classification import ClassificationArrays, ClassificationData
from collapipe_jax.tasks.scores import accuracy, macro_f1, majority_class_baseline


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification:
    """The `Objective` of telling which class a text is of.

    Attributes:
      model: what is trained.
      data: texts, classes and sets.
      pretrained: parameters of BERT to start from, as of `load_bert`, or None.
    """

    model: BertClassifier
    data: ClassificationData
    pretrained: Params | None = None
    score_name: str = SCORE_NAMES["classification"]
    headline: str = "test_accuracy"
    baseline: str = "test_accuracy_majority"

    @property
    def train(self) -> ClassificationBatch:
        """Subwords and classes of all training texts."""
        return ClassificationBatch(*self.data.train)

    @property
    def split_keys(self) -> np.ndarray:
        """Domains of the texts, or their classes where there are no domains."""
        return self.data.keys

    def starting_params(self, fresh: Params) -> Params:
        """The pretrained parameters where there are any, a fresh head."""
        return start_from(self.pretrained, fresh)

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

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the vocabulary and the names of the classes."""
        save_names(folder, self.data.wordpiece, self.data.labels)

    def export(self, params: Params, folder: str | os.PathLike[str]) -> None:
        """Write BERT, without the head, as Hugging Face lays it out."""
        export_bert(folder, self.model.sizes, params, self.data.wordpiece)

    def _majority(self, arrays: ClassificationArrays) -> float:
        return majority_class_baseline(self.data.train.labels, arrays.labels).accuracy.value
