"""The interface of a task: everything in which one kind of task differs from another."""

import abc
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import jax
import numpy as np

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.config import EncoderConfig
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.models.split_model import Batch, SplitModel, example_losses

Config = Mapping[str, Any]
"""The configuration, nested by section."""

TASK_KEY = "collapipe_task"
"""Key of a trained model's ``config.json`` that names its task."""

FINAL_SCORES = ("test_", "validation_")
"""How the keys of final scores begin in a summary."""

_BATCH = 100
_SHORT_ROW = 0.5  # of a row; 73 to 91 % of the texts of four corpora fit
PREDICTED = 32
"""Texts that are answered at a time: one alone should not wait for many."""


class ModelCounts(NamedTuple):
    """Work of a sample besides the encoder's, which the network prices."""

    sequence: int  # tokens in the encoder
    target_tokens: int  # numbers that travel to the edge server as targets
    # numbers of parameters
    embedding_parameters: int
    decoder_parameters: int
    embed_flops: float  # forward pass of the embedding
    decoder_flops: float  # forward and backward pass of the decoder or head


class ScoredSet(NamedTuple):
    """Samples that answers are scored on."""

    arrays: Batch  # of the model, NumPy leaves ``[n, ...]``
    text: Any = None  # sentences behind the arrays, where scores need them
    counts: Mapping[str, Any] = {}  # what a report says of the set: texts read, cut, left out


class TaskData(NamedTuple):
    """Vocabulary and names of labels; and in training the sets."""

    tokenizer: Any = None
    labels: tuple[str, ...] = ()
    train: Any = None  # a batch of the model, NumPy leaves ``[n, ...]``
    validation: Any = None  # ``ScoredSet``
    test: Any = None  # ``ScoredSet``, or None: then validation has the final scores
    # Integers by which splits other than IID share out training samples, ``[n]``
    split_keys: Any = None
    train_text: Any = None  # texts behind ``train``, where the task needs them
    counts: Mapping[str, Any] = {}  # what a summary says of all sets: texts cut or left out
    unpacked: Any = None  # where ``train`` has packed rows, the same texts in rows apart


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """A kind of task; an instance has its model, its vocabulary and, in training, its data.

    Functions of a configuration take the whole of it, and raise ``InputError``.
    """

    score_name: ClassVar[str]  # of the validation score in figures
    score_key: ClassVar[str]  # of that score in ``score``
    trivial_key: ClassVar[str]  # of the same score of a trivial answer in ``trivial``
    score_unit: ClassVar[str] = "%"
    lower_is_better: ClassVar[bool] = False  # whether training lowers the validation score
    # Whether the validation score is a mean over samples: ``sample_scores``
    scores_samples: ClassVar[bool] = False
    # Keys that not every task reads; the others refuse all but their defaults
    reads: ClassVar[frozenset[str]] = frozenset()
    # Keys that must not be empty in training, each with the remedy
    needs: ClassVar[Mapping[str, str]] = {}

    # Test scores by name of a linear model, from what was read; None where there is no such model
    linear_scores: ClassVar[Callable[[Any], dict[str, Any]] | None] = None

    kind: str = ""  # name of the task, as ``task.kind`` gives it
    model: SplitModel
    data: TaskData

    # --- From a configuration -------------------------------------------------------------------

    @classmethod
    @abc.abstractmethod
    def make_sizes(cls, config: Config) -> EncoderConfig:
        """Sizes of the model, whose kind is the kind of its blocks, without reading any file."""

    @classmethod
    @abc.abstractmethod
    def count_work(cls, config: Config) -> ModelCounts:
        """Work that the model asks of the network, without reading any file."""

    @classmethod
    def check_pretrained(cls, config: Config) -> None:
        """Refuse sizes other than a pretrained model has, all at once, without its tensors."""
        del config

    @classmethod
    def read_corpus(cls, config: Config) -> Any:
        """Texts of the files that the configuration names; None where it names none.

        It is called before any other work, and some keys may be missing. It has ``labels`` where
        the task reads ``task.labels``.
        """
        del config

    @classmethod
    @abc.abstractmethod
    def from_config(cls, config: Config, corpus: Any = None) -> Self:
        """The task with its model and data, from what was read; without a corpus it reads one."""

    # --- In training ----------------------------------------------------------------------------

    def draw(self, rows: np.ndarray, seed: Sequence[int]) -> Batch:
        """Training samples of mini-batches, leaves ``[*rows.shape, ...]``.

        The seed is for random changes to them, where the task makes any.
        """
        del seed
        return jax.tree.map(lambda leaf: leaf[rows], self.data.train)

    def pack(self, cluster_indices: Sequence[np.ndarray]) -> tuple[Self, list[np.ndarray]]:
        """The task with packed rows of training, and the rows of each cluster.

        It is called where ``task.packing`` is set. A row has samples of one cluster alone.

        Args:
          cluster_indices: samples of each cluster, a partition of all before any packing.
        """
        raise NotImplementedError

    @functools.cached_property
    def filled(self) -> np.ndarray:
        """Share of its row that each training sample fills, ``[n]``."""
        return self.model.filled(self.data.train)

    def starting_params(self, fresh: Params) -> Params:
        """Parameters to train from, given fresh ones."""
        return fresh

    # --- Scores ---------------------------------------------------------------------------------

    @abc.abstractmethod
    def score(self, params: Params, samples: ScoredSet) -> dict[str, Any]:
        """Scores of the model and its ``loss``, as plain values."""

    @abc.abstractmethod
    def trivial(self, samples: ScoredSet) -> dict[str, Any]:
        """Scores of trivial answers, as plain values."""

    def sample_scores(self, params: Params) -> tuple[np.ndarray, np.ndarray]:
        """Of every validation sample the score in percent and the split key, ``[n]`` each."""
        raise NotImplementedError

    def loss(self, params: Params, samples: ScoredSet) -> float:
        """Nats a prediction, without dropout or smoothing."""
        return held_out_loss(params, self.model, samples.arrays)

    def validate(self, params: Params) -> tuple[float, float]:
        """Loss and score on the validation set."""
        scores = self.score(params, self.data.validation)
        return scores["loss"], scores[self.score_key]

    def trivial_score(self) -> float:
        """Score of a trivial answer on the validation set."""
        return self.trivial(self.data.validation)[self.trivial_key]

    def test(self, params: Params) -> dict[str, Any]:
        """Final scores of the model and of trivial answers, as plain values."""
        samples = getattr(self.data, self.last_set)
        scores = self.score(params, samples) | self.trivial(samples)
        named = {f"{self.last_set}_{name}": value for name, value in scores.items()}
        return {**named, **self.data.counts}

    @property
    def last_set(self) -> str:
        """Set of the final scores: the test set, or validation where there is none."""
        return "validation" if self.data.test is None else "test"

    @property
    def headline(self) -> str:
        """Key in ``test`` of the score to compare models by."""
        return f"{self.last_set}_{self.score_key}"

    @property
    def trivial_headline(self) -> str:
        """Key in ``test`` of the score of a trivial answer."""
        return f"{self.last_set}_{self.trivial_key}"

    @classmethod
    def score_label(cls) -> str:
        """Label of an axis of the validation score."""
        return f"{cls.score_name} [{cls.score_unit}]"

    @classmethod
    def merit(cls, score: Any) -> Any:
        """A validation score, negative where training lowers it: more is better."""
        return -score if cls.lower_is_better else score

    # --- Trained models -------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> None:  # noqa: B027
        """Write what a user of the parameters needs besides: vocabulary and labels."""

    def export(self, params: Params, folder: str | os.PathLike[str]) -> None:  # noqa: B027
        """Write the trained model for ``load``; its adapters are in its weights.

        Its ``config.json``, the last file to be written, names the task as ``collapipe_task``.
        """

    def export_adapters(self, params: Params, folder: str | os.PathLike[str]) -> None:  # noqa: B027
        """Write what adapters add to the model that training started from, for ``load``."""

    @classmethod
    def load(cls, folder: Path) -> tuple[Self, Params]:
        """The task without data, and the parameters, from a folder that ``export`` wrote."""
        problem, remedy = f"{cls.__name__} cannot load a model", "Give it a method load"
        raise InputError("model", str(folder), problem, remedy)

    def predict(self, params: Params, texts: Sequence[Any]) -> list[Any]:
        """Answers, one a text, of any length and number; further options are the task's."""
        raise NotImplementedError

    def evaluate(self, params: Params, file: str | os.PathLike[str]) -> dict[str, Any]:
        """Scores on a labelled file in the format of the task's corpora, as plain values.

        Raises:
          InputError: a file that training would refuse, or with labels that the model lacks.
        """
        raise NotImplementedError

    def report(self, params: Params, samples: ScoredSet) -> dict[str, Any]:
        """Scores, and what there is to say of the set."""
        return {**self.score(params, samples), **samples.counts}

    def record(self, answer: Any) -> dict[str, Any]:
        """An answer as an object for JSON."""
        return _plain(answer)

    def line(self, answer: Any) -> str:
        """An answer in one line for people."""
        return str(answer)


def _plain(value: Any) -> Any:
    """Named tuples as dictionaries, without what is None."""
    if hasattr(value, "_asdict"):
        fields = value._asdict().items()
        return {name: _plain(each) for name, each in fields if each is not None}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def held_out_loss(params: Params, model: SplitModel, arrays: Batch) -> float:
    """Nats a prediction over samples ``[n, ...]``, without dropout or smoothing."""
    losses_of = functools.partial(_example_losses, model.unsmoothed, params)
    sums = [
        [np.sum(each, dtype=float) for each in in_batches(losses_of, batch)]
        for _, batch in by_length(model, arrays)
    ]
    losses, predictions = np.sum(sums, axis=0)
    return float(losses / predictions)


_example_losses = jax.jit(example_losses, static_argnums=0)


def by_length(
    model: SplitModel, arrays: Batch, size: int | None = None
) -> Iterator[tuple[np.ndarray, Batch]]:
    """Samples ``[n, ...]`` that fill a short row, then others: their numbers, and their arrays.

    Where the short ones are fewer than a batch, all are together: a batch of them costs no less.
    """
    numbers = np.arange(len(jax.tree.leaves(arrays)[0]))
    is_short = model.filled(arrays) <= _SHORT_ROW
    if np.sum(is_short) < (size or _BATCH):
        yield numbers, arrays
        return
    for share, rows in ((_SHORT_ROW, numbers[is_short]), (1.0, numbers[~is_short])):
        if len(rows):
            batch = jax.tree.map(lambda leaf, rows=rows: leaf[rows], arrays)
            yield rows, model.shortened(batch, share)


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
