"""The interface of a task: everything in which one kind of task differs from another."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from collapipe_jax.tasks.objective import Objective

Config = Mapping[str, Any]
"""The configuration, nested by section."""


class ModelCounts(NamedTuple):
    """Work of a sample besides the encoder's, which the network prices.

    Attributes:
      sequence: tokens in the encoder.
      target_tokens: numbers that travel to the edge server as targets.
      embedding_parameters, decoder_parameters: numbers of parameters.
      embed_flops: forward pass of the embedding.
      decoder_flops: forward and backward pass of the decoder or head.
    """

    sequence: int
    target_tokens: int
    embedding_parameters: int
    decoder_parameters: int
    embed_flops: float
    decoder_flops: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One kind of task; its functions take the whole configuration and raise ``InputError``.

    Attributes:
      score_name: name of the validation score, a percentage, in figures.
      make_sizes: sizes of the model, without reading any file.
      make_objective: model, data and scores.
      count_work: what the model asks of the network, without reading any file.
      reads: keys, empty by default, that not every task reads; the others refuse them.
      needs: keys that must not be empty, each with the remedy.
    """

    score_name: str
    make_sizes: Callable[[Config], Any]
    make_objective: Callable[[Config], Objective]
    count_work: Callable[[Config], ModelCounts]
    reads: frozenset[str] = frozenset()
    needs: Mapping[str, str] = dataclasses.field(default_factory=dict)
