"""A trained model for classification in use."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from collapipe_jax.learning.models.bert import LabelledBatch
from collapipe_jax.learning.tasks.bert_predictor import BertPredictor
from collapipe_jax.learning.tasks.classification import read_labelled_text
from collapipe_jax.learning.tasks.corpora import TextFile
from collapipe_jax.learning.tasks.scores import accuracy, macro_f1


class Classified(NamedTuple):
    """The likeliest label of a text."""

    label: str
    probability: float
    probabilities: dict[str, float] | None = None  # of all labels, where asked for


class Classifier(BertPredictor):
    """Texts to labels. As in training, a text of too many pieces is cut, and its end ignored."""

    def __init__(self, folder: Path):
        super().__init__(folder, pools=True)

    def predict(self, texts: Sequence[str], *, probabilities: bool = False) -> list[Classified]:
        """The label of each text, with the probabilities of all labels on request."""
        if not texts:
            return []
        found = []
        for row in self.probabilities(self._encode(texts)[0]):
            best = int(row.argmax())
            every = dict(zip(self.labels, row.tolist(), strict=True)) if probabilities else None
            found.append(Classified(self.labels[best], float(row[best]), every))
        return found

    def evaluate(
        self, file: str | os.PathLike[str], *, text_column: str = "", label_column: str = ""
    ) -> dict[str, Any]:
        """Accuracy, macro F1 and loss on labelled texts, on file as in ``read_labelled_text``."""
        source, keys = TextFile("data", str(file)), ("--text-column", "--label-column")
        entries = read_labelled_text(source, text_column, label_column, keys)
        texts, names = zip(*entries, strict=True)
        source.check_labels(names, self.labels)
        numbers = np.array([self.labels.index(name) for name in names], dtype=np.int32)
        token_ids, cut = self._encode(texts)
        batch = LabelledBatch(token_ids, numbers)
        predicted = self.likeliest(batch)
        accurate, f1 = accuracy(numbers, predicted), macro_f1(numbers, predicted)
        return {
            "accuracy": accurate.value,
            "macro_f1": f1.value,
            "signatures": [accurate.signature, f1.signature],
            "loss": self.loss(batch),
            "texts": len(texts),
            "cut_texts": cut,
        }

    def line(self, prediction: Classified) -> str:
        """Label and probability, then those of all labels where they were asked for."""
        every = prediction.probabilities or {}
        others = [f"{label}={every[label]:.4f}" for label in sorted(every, key=lambda e: -every[e])]
        return "\t".join([prediction.label, f"{prediction.probability:.4f}", *others])

    def _encode(self, texts: Sequence[str]) -> tuple[np.ndarray, int]:
        """Token ids ``[n, S]``, white space read as in training; and how many texts are cut."""
        return self.wordpiece.encode_texts([" ".join(each.split()) for each in texts], self.length)
