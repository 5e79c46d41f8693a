"""Rows of the embedding that the rounds of a configuration read, in the mean.

They are counted in the texts that a round draws, or follow from Heaps' law. A cluster draws the
samples of a round without replacement, as
:func:`~collapipe_jax.learning.tasks.sampling.sample_round` does within a pass over them.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from scipy.special import gammaln

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.problem import EmbeddingRows
from collapipe_jax.learning.models.split_model import WHOLE_TABLES
from collapipe_jax.learning.tasks.task import ModelCounts, Task
from collapipe_jax.runs.config.default import Config


class RowCounts(NamedTuple):
    """Samples of every cluster, and how many of them read a row."""

    samples: Int[np.ndarray, " N"]
    readers: Int[np.ndarray, "N V"]


def count_rows(
    task: Task, cluster_indices: Sequence[np.ndarray], rows: int, seed: int
) -> RowCounts:
    """Samples that read each of so many rows; of texts that change at random, one draw counts.

    Raises:
      InputError: if the model has no table of tokens, or several.
    """
    readers = []
    for indices in cluster_indices:
        found = task.model.rows_read(task.draw(indices, (seed,)))
        tables = [ids for name, ids in found.items() if name not in WHOLE_TABLES]
        if len(tables) != 1:
            problem = f"the model looks up rows of {len(tables)} tables of tokens"
            raise InputError("payload.embedding_rows", "touched", problem, "Give all")
        readers.append(samples_with_row(np.asarray(tables[0]), rows))
    return RowCounts(np.array([len(each) for each in cluster_indices]), np.stack(readers))


def samples_with_row(ids: Int[np.ndarray, "n ..."], rows: int) -> Int[np.ndarray, " V"]:
    """Samples that read each of so many rows; a number beyond them is of no row."""
    ids = np.sort(ids.reshape(len(ids), -1), axis=1)
    first = np.ones_like(ids, bool)
    first[:, 1:] = ids[:, 1:] != ids[:, :-1]
    counted = ids[first & (ids >= 0) & (ids < rows)]
    return np.bincount(counted, minlength=rows)


def mean_rows(counts: RowCounts, local_steps: int, batch: int, samples: float) -> float:
    """Rows that a round reads of which a local step has so many samples.

    Up to ``batch`` it is the mean over clusters. More samples are of several clusters, and a row
    counts once. Of fewer than all, each has the geometric mean of the chances.
    Source: docs/system-model.md (58).
    """
    log_unread = _log_unread(counts, local_steps * min(samples, float(batch)))
    if samples <= batch:
        return float((1.0 - np.exp(log_unread)).sum(axis=1).mean())
    clusters = samples / batch
    return float((1.0 - np.exp(clusters * log_unread.mean(axis=0))).sum())


def _log_unread(counts: RowCounts, draws: float) -> Float[np.ndarray, "N V"]:
    """Logarithm of the probability that no sample of a draw reads a row."""
    samples, readers = counts.samples[:, None].astype(float), counts.readers
    drawn = np.minimum(draws, samples)
    others = samples - readers
    left = np.maximum(others - drawn, 0.0)
    found = gammaln(others + 1) - gammaln(left + 1)
    found = found - gammaln(samples + 1) + gammaln(samples - drawn + 1)
    return np.where(drawn > others, -np.inf, found)


_OF_A_CLUSTER, _OF_CLUSTERS = 6, 3
"""Steps between points, from one sample to a mini-batch, and from there to those of all."""


def build_embedding_rows(
    config: Config, work: ModelCounts, counts: RowCounts | None = None
) -> EmbeddingRows | None:
    """Rows that a round reads: of texts that were counted, or by Heaps' law; None if all travel.

    Raises:
      InputError: if the embedding has no such table of tokens.
    """
    payload, training, rows = config.payload, config.training, config.task.vocabulary_size
    if payload.embedding_rows == "all":
        return None
    width, steps, batch = config.model.width, training.local_steps, training.batch
    if work.embedding_parameters < rows * width:
        problem = f"the embedding of {config.task.kind} has no table of {rows} tokens"
        raise InputError("payload.embedding_rows", payload.embedding_rows, problem, "Give all")
    samples = sample_points(batch, config.network.clusters)
    if counts is not None:
        read = [mean_rows(counts, steps, batch, each) for each in samples]
    else:
        tokens = work.sequence * steps * samples
        read = heaps_law(tokens, payload.row_law_scale, payload.row_law_exponent, rows)
    numbers = {
        "table_rows": float(rows),
        "row_bits": payload.trained_fraction * payload.parameter_number_bits * width,
        "number_bits": float(math.ceil(math.log2(rows))),
        "samples": samples,
        "rows_read": read,
    }
    return EmbeddingRows(**{name: jnp.asarray(each, float) for name, each in numbers.items()})


def sample_points(batch: int, clusters: int) -> np.ndarray:
    """Samples of a local step, from 0 over 1 and a mini-batch to those of all clusters."""
    own = float(batch) ** (np.arange(_OF_A_CLUSTER + 1) / _OF_A_CLUSTER)
    more = float(clusters) ** (np.arange(1, _OF_CLUSTERS + 1) / _OF_CLUSTERS)
    return np.concatenate([[0.0], own, batch * more])


def heaps_law(tokens: np.ndarray, scale: float, exponent: float, rows: int) -> np.ndarray:
    """Different rows among so many tokens, at most all of them.

    Source: docs/system-model.md (57); Heaps 1978, section 7.5.
    """
    return np.minimum(np.minimum(tokens, rows), scale * tokens**exponent)
