"""Rows of the embedding that the rounds of a configuration read."""

import math

import jax.numpy as jnp
import numpy as np

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.problem import EmbeddingRows
from collapipe_jax.learning.tasks.rows_read import RowCounts, mean_rows
from collapipe_jax.learning.tasks.task import ModelCounts
from collapipe_jax.runs.config.default import Config

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
