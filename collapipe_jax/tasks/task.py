"""The interface of a task: everything in which one kind of task differs from another."""

import abc
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from collapipe_jax.models.layers import Params
from collapipe_jax.models.split_model import Batch, SplitModel, example_losses

Config = Mapping[str, Any]
"""The configuration, nested by section."""

_BATCH = 100


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

    def starting_params(self, fresh: Params) -> Params:
        """Parameters to train from, given fresh ones."""
        return fresh

    def validate(self, params: Params) -> tuple[float, float]:
        """``held_out_loss`` and score on the validation set."""
        loss = held_out_loss(params, self.model, self.data.validation)
        return loss, self.validation_score(params)

    @abc.abstractmethod
    def validation_score(self, params: Params) -> float:
        """Score on the validation set, in percent."""

    @abc.abstractmethod
    def baseline_score(self) -> float:
        """Score of a trivial answer on the validation set, in percent."""

    @abc.abstractmethod
    def test(self, params: Params) -> dict[str, Any]:
        """Final scores on the test set beside those of trivial answers, as plain values."""

    def export(self, params: Params, folder: str | os.PathLike[str]) -> None:  # noqa: B027
        """Write the trained model in a common layout, where there is one."""

    def save(self, folder: str | os.PathLike[str]) -> None:  # noqa: B027
        """Write what a user of the parameters needs besides: vocabulary and labels."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One kind of task; its functions take the whole configuration and raise ``InputError``."""

    score_name: str  # name of the validation score, a percentage, in figures
    make_sizes: Callable[[Config], Any]  # sizes of the model, without reading any file
    # Model, data and scores, from the configuration and, where there is one, what was read
    make_objective: Callable[..., Objective]
    # What the model asks of the network, without reading any file
    count_work: Callable[[Config], ModelCounts]
    # Keys, empty by default, that not every task reads; the others refuse them
    reads: frozenset[str] = frozenset()
    # Reads the files that the configuration names, before any other work; has ``labels`` where
    # the task reads ``task.labels``
    read_corpus: Callable[[Config], Any] | None = None
    # Test scores by name of a linear model, from what was read; None where there is no such model
    linear_scores: Callable[[Any], dict[str, Any]] | None = None
    # Keys that must not be empty in training, each with the remedy
    needs: Mapping[str, str] = dataclasses.field(default_factory=dict)


def held_out_loss(params: Params, model: SplitModel, arrays: Batch) -> float:
    """Nats a prediction over samples ``[n, ...]``, without dropout or smoothing."""
    losses_of = functools.partial(_example_losses, model.unsmoothed, params)
    losses, predictions = in_batches(losses_of, arrays)
    return float(np.sum(losses, dtype=float) / np.sum(predictions, dtype=float))


_example_losses = jax.jit(example_losses, static_argnums=0)


def in_batches(function: Callable[[Batch], Any], arrays: Batch) -> Any:
    """Map a function over samples ``[n, ...]``, a hundred at a time, to NumPy leaves ``[n, ...]``.

    The first samples fill up the last batch: one shape, one compilation for sets of any size.
    """
    count = len(jax.tree.leaves(arrays)[0])
    found = []
    for start in range(0, count, _BATCH):
        rows = np.arange(start, start + _BATCH) % count
        batch = jax.tree.map(lambda leaf, rows=rows: leaf[rows], arrays)
        found.append(jax.tree.map(np.asarray, function(batch)))
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *found)
