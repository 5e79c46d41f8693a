"""What a run trains for: the joint loop knows no more of a task than this."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from collapipe_jax.models.layers import Params
from collapipe_jax.models.split_model import Batch, SplitModel

SCORE_NAMES = {"translation": "BLEU", "tagging": "span F1", "classification": "accuracy"}
"""What is scored on the way, by kind of task; all in percent."""


class Validation(NamedTuple):
    """How good a model is on the way, on the validation set.

    Attributes:
      loss: nats a prediction, without dropout or smoothing.
      score: percent, what ``Objective.score_name`` names.
    """

    loss: float
    score: float


class Objective(Protocol):
    """A model, the data that it learns from, and the score that judges it.

    Attributes:
      model: what is trained.
      train: batch type of the model over all ``n`` training samples, NumPy leaves ``[n, ...]``.
      split_keys: what a split that is not IID goes by, integers ``[n]``.
      score_name: of the validation score, as figures write it.
      headline: key in ``test`` of the score to compare models by.
      baseline: key in ``test`` of what a trivial answer scores.
    """

    model: SplitModel
    train: Batch
    split_keys: np.ndarray
    score_name: str
    headline: str
    baseline: str

    def draw(self, rows: np.ndarray, seed: Sequence[int]) -> Batch:
        """Training samples for a mini-batch, leaves ``[*rows.shape, ...]``.

        Args:
          rows: which of ``train``.
          seed: of what the objective changes about them at random, where it does.
        """

    def starting_params(self, fresh: Params) -> Params:
        """Parameters to train from, given fresh ones."""

    def validate(self, params: Params) -> Validation:
        """Loss and quick score on the validation set."""

    def baseline_score(self) -> float:
        """Score of a trivial answer on the validation set, percent: what any model must beat."""

    def test(self, params: Params) -> dict[str, Any]:
        """Final scores on the test set with trivial answers beside them, as plain values."""

    def export(self, params: Params, folder: str | os.PathLike[str]) -> None:
        """Write the trained model in the layout that others read, where there is one."""

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write what is needed beside the parameters to use the model: vocabulary and labels."""
