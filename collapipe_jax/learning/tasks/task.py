"""The interface of a task: everything in which one kind of task differs from another."""

import abc
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from collapipe_jax.learning.models.config import EncoderConfig
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.models.split_model import Batch, SplitModel, example_losses

Config = Mapping[str, Any]
"""The configuration, nested by section."""

TASK_KEY = "collapipe_task"
"""Key of a trained model's ``config.json`` that names its task."""

_BATCH = 100
PREDICTED = 32
"""Texts that a predictor works on at a time: one alone should not wait for many."""


class ModelCounts(NamedTuple):
    """Work of a sample besides the encoder's, which the network prices."""

    sequence: int  # tokens in the encoder
    target_tokens: int  # numbers that travel to the edge server as targets
    # numbers of parameters
    embedding_parameters: int
    decoder_parameters: int
    embed_flops: float  # forward pass of the embedding
    decoder_flops: float  # forward and backward pass of the decoder or head


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective(abc.ABC):
    """A model, the data it learns from, and the scores that judge it."""

    headline: ClassVar[str]  # key in ``test`` of the score to compare models by
    baseline: ClassVar[str]  # key in ``test`` of the score of a trivial answer

    kind: str = ""  # name of the task, as ``task.kind`` gives it
    model: SplitModel  # the model that is trained
    # Tokenised samples: ``train``, ``validation`` and ``test``, batches of the model with NumPy
    # leaves ``[n, ...]``; and ``split_keys [n]``, the integers by which splits other than IID
    # share out training samples
    data: Any

    def draw(self, rows: np.ndarray, seed: Sequence[int]) -> Batch:
        """Training samples of mini-batches, leaves ``[*rows.shape, ...]``.

        The seed is that of random changes to them, where the objective makes any.
        """
        del seed
        return jax.tree.map(lambda leaf: leaf[rows], self.data.train)

    @functools.cached_property
    def filled(self) -> np.ndarray:
        """Share of its row that each training sample fills, ``[n]``."""
        return self.model.filled(self.data.train)

    def starting_params(self, fresh: Params) -> Params:
        """Parameters to train from, given fresh ones."""
        return fresh

    def validate(self, params: Params) -> tuple[float, float]:
        """``held_out_loss`` and score on the validation set."""
        loss = held_out_loss(params, self.model, self.data.validation)
        return loss, self.validation_score(params)

    @abc.abstractmethod
    def validation_score(self, params: Params) -> float:
        """Score on the validation set, in the unit of the task."""

    def sample_scores(self, params: Params) -> tuple[np.ndarray, np.ndarray]:
        """Of every validation sample the score in percent and the split key, ``[n]`` each.

        Of tasks whose ``validation_score`` is the mean of these scores.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def baseline_score(self) -> float:
        """Score of a trivial answer on the validation set, in the same unit."""

    @abc.abstractmethod
    def test(self, params: Params) -> dict[str, Any]:
        """Final scores on the test set beside those of trivial answers, as plain values."""

    def export(self, params: Params, folder: str | os.PathLike[str]) -> None:  # noqa: B027
        """Write the trained model for ``Task.load``; its adapters are in its weights.

        Its ``config.json``, the last file to be written, names the task as ``collapipe_task``.
        """

    def export_adapters(self, params: Params, folder: str | os.PathLike[str]) -> None:  # noqa: B027
        """Write what adapters add to the model that training started from, for ``Task.load``."""

    def save(self, folder: str | os.PathLike[str]) -> None:  # noqa: B027
        """Write what a user of the parameters needs besides: vocabulary and labels."""


class Predictor(abc.ABC):
    """A trained model in use. Inputs are any number of texts, of any length, and may be empty."""

    @abc.abstractmethod
    def predict(self, texts: Sequence[Any]) -> list[Any]:
        """What the model says of each text; further options are the task's."""

    @abc.abstractmethod
    def evaluate(self, file: str | os.PathLike[str]) -> dict[str, Any]:
        """Scores on a labelled file in the format of the task's corpora, as plain values.

        Raises:
          InputError: a file that training would refuse, or with labels that the model lacks.
        """

    def record(self, prediction: Any) -> dict[str, Any]:
        """What was predicted, as an object for JSON."""
        return _plain(prediction)

    @abc.abstractmethod
    def line(self, prediction: Any) -> str:
        """What was predicted, in one line for people."""


def _plain(value: Any) -> Any:
    """Named tuples as dictionaries, without what is None."""
    if hasattr(value, "_asdict"):
        fields = value._asdict().items()
        return {name: _plain(each) for name, each in fields if each is not None}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One kind of task; its functions take the whole configuration and raise ``InputError``."""

    score_name: str  # name of the validation score in figures
    # Sizes of the model, whose kind is that of its blocks, without reading any file
    make_sizes: Callable[[Config], EncoderConfig]
    # Model, data and scores, from the configuration and, where there is one, what was read
    make_objective: Callable[..., Objective]
    # What the model asks of the network, without reading any file
    count_work: Callable[[Config], ModelCounts]
    # The model in a folder that ``Objective.export`` wrote; None where it writes none
    load: Callable[[Path], Predictor] | None = None
    # Keys that not every task reads; the others refuse all but their defaults
    reads: frozenset[str] = frozenset()
    # Reads the files that the configuration names, before any other work; has ``labels`` where
    # the task reads ``task.labels``
    read_corpus: Callable[[Config], Any] | None = None
    # Test scores by name of a linear model, from what was read; None where there is no such model
    linear_scores: Callable[[Any], dict[str, Any]] | None = None
    # Whether the validation score is a mean over samples: ``Objective.sample_scores``
    scores_samples: bool = False
    # Keys that must not be empty in training, each with the remedy
    needs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    score_unit: str = "%"  # of the validation score
    lower_is_better: bool = False  # whether training lowers the validation score

    @property
    def score_label(self) -> str:
        """Label of an axis of the validation score."""
        return f"{self.score_name} [{self.score_unit}]"

    def merit(self, score: Any) -> Any:
        """A validation score, negative where training lowers it: more is better."""
        return -score if self.lower_is_better else score


def held_out_loss(params: Params, model: SplitModel, arrays: Batch) -> float:
    """Nats a prediction over samples ``[n, ...]``, without dropout or smoothing."""
    losses_of = functools.partial(_example_losses, model.unsmoothed, params)
    losses, predictions = in_batches(losses_of, arrays)
    return float(np.sum(losses, dtype=float) / np.sum(predictions, dtype=float))


_example_losses = jax.jit(example_losses, static_argnums=0)


def in_batches(function: Callable[[Batch], Any], arrays: Batch, size: int | None = None) -> Any:
    """Map a function over samples ``[n, ...]``, ``size`` at a time, to NumPy leaves ``[n, ...]``.

    There is at least one sample. The first ones fill up the last batch: one shape, one compilation
    for sets of any size.
    """
    count, size = len(jax.tree.leaves(arrays)[0]), size or _BATCH
    found = []
    for start in range(0, count, size):
        rows = np.arange(start, start + size) % count
        batch = jax.tree.map(lambda leaf, rows=rows: leaf[rows], arrays)
        found.append(jax.tree.map(np.asarray, function(batch)))
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *found)
