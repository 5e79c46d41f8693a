"""Packing: several short texts share a row, each of which attends to itself alone.

A packed row has the loss and the gradient of its texts in rows apart
(Krell et al. 2107.02027).
"""

import numpy as np

from collapipe_jax.learning.models.causal_lm import NOTHING, CausalBatch


def first_fit_decreasing(lengths: np.ndarray, room: int) -> np.ndarray:
    """Row of each text, from 0, ``[n]``; a deterministic function.

    The longest text comes first, of equal ones that with the lower index. Each goes to the first
    row that has room for it, or begins a row. There are at most ``11/9`` times as many rows as
    necessary, and one more.

    Source: Johnson, Near-optimal bin packing algorithms (1973); Dosa (2007) for the bound.

    Args:
      lengths: tokens of each text, from 1 to ``room``, integers ``[n]``.
      room: tokens of a row.
    """
    left = np.full(len(lengths), room)
    row_of_text, rows = np.empty(len(lengths), np.int64), 0
    for text in np.argsort(-lengths, kind="stable"):
        row = np.argmax(left[: rows + 1] >= lengths[text])  # one beyond the last is empty
        left[row] -= lengths[text]
        row_of_text[text] = row
        rows = max(rows, row + 1)
    return row_of_text


def packed(batch: CausalBatch, row_of_text: np.ndarray) -> CausalBatch:
    """Texts ``[n, S + 1]`` in packed rows ``[rows, S + 1]``, those of a row in their order.

    Args:
      batch: a text a row, with what is scored.
      row_of_text: from 0, with no row left out, ``[n]``.
    """
    order = np.argsort(row_of_text, kind="stable")
    rows, is_token = row_of_text[order], batch.token_ids[order] != NOTHING
    lengths, first = is_token.sum(axis=1), np.searchsorted(rows, rows)
    before = np.cumsum(lengths) - lengths  # tokens of all texts before one, in this order
    places = np.arange(lengths.sum()) - np.repeat(before[first], lengths)
    of_tokens = np.repeat(rows, lengths), places

    def placed(values: np.ndarray, filling: int) -> np.ndarray:
        leaf = np.full((rows[-1] + 1, is_token.shape[1]), filling, values.dtype)
        leaf[of_tokens] = values
        return leaf

    numbers = np.arange(1, len(rows) + 1, dtype=np.int32) - first.astype(np.int32)
    return CausalBatch(
        placed(batch.token_ids[order][is_token], NOTHING),
        placed(batch.scored[order][is_token], 0),
        placed(np.repeat(numbers, lengths), 0),
    )
