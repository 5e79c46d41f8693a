"""Rows of the embedding that a round reads, where they alone travel.

A party asks for the rows of its texts by their numbers, gets these with its other parameters, and
returns their updates. What it does not read it neither gets nor sends.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

from collapipe_jax.core.batch_axis import sum_nodes
from collapipe_jax.edge.cost.decision import Broadcast
from collapipe_jax.edge.cost.problem import EmbeddingRows, RoundProblem
from collapipe_jax.edge.cost.workload import Workload

ROWS = ("all", "touched")
"""Rows of the table of tokens that travel: whole tables, or those that a round reads."""
_Samples = Num[Array, "..."]
_LEAST = 1e-30  # between samples of neighbouring points, which may be the same


def rows_read(rows: EmbeddingRows, samples: _Samples) -> Float[Array, "..."]:
    """Rows that mini-batches of so many samples read in a round, on a line between points.

    Points come first, before axes of a batch. Source: docs/system-model.md (54).
    """
    total = jnp.zeros(())
    for i in range(1, rows.samples.shape[0]):
        width = jnp.maximum(rows.samples[i] - rows.samples[i - 1], _LEAST)
        part = jnp.clip((samples - rows.samples[i - 1]) / width, 0.0, 1.0)
        total = total + part * (rows.rows_read[i] - rows.rows_read[i - 1])
    return total


def reading(problem: RoundProblem, samples: _Samples) -> Workload:
    """The workload of parties whose embedding on a link has the rows of so many samples.

    It is the problem's where whole tables travel. Source: docs/system-model.md (55).
    """
    work, rows = problem.workload, problem.embedding_rows
    if rows is None:
        return work
    unread = rows.table_rows - rows_read(rows, samples)
    bits = jnp.maximum(work.embedding_param_bits - rows.row_bits * unread, 0.0)
    return work.replace(embedding_param_bits=bits)


def with_request(problem: RoundProblem, samples: _Samples, bits: Any) -> Any:
    """Bits that a party sends, and the numbers of the rows that it asks for.

    They are none where whole tables travel. Source: docs/system-model.md (56).
    """
    rows = problem.embedding_rows
    return bits if rows is None else bits + rows.number_bits * rows_read(rows, samples)


def broadcast_bits(
    problem: RoundProblem, participates: Bool[Array, " N *batch"], shared_bits: Broadcast
) -> Broadcast:
    """What a pipeline's broadcast carries, by cluster, from what each would get for itself.

    Rows that other clusters read come along.
    """
    if problem.embedding_rows is None:
        return shared_bits
    batch = problem.workload.batch
    everyone = sum_nodes(participates.astype(shared_bits.dtype)) * batch
    own, union = (reading(problem, each).embedding_param_bits for each in (batch, everyone))
    return shared_bits + jnp.where(participates, union - own, 0.0)
