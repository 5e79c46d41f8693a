"""A model on held-out samples, in batches of one shape."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from collapipe_jax.models.layers import Params
from collapipe_jax.models.split_model import Batch, SplitModel, example_losses

_BATCH = 100


def held_out_loss(params: Params, model: SplitModel, arrays: Batch) -> float:
    """Negative log-likelihood in nats a prediction over all samples: no dropout, no smoothing.

    Args:
      params: ``{"embedding", "encoder", "decoder"}``.
      model: what is judged.
      arrays: NumPy leaves ``[n, ...]``.
    """
    judge = functools.partial(_example_losses, params, model.unsmoothed)
    losses, predictions = in_batches(judge, arrays)
    return float(np.sum(losses, dtype=float) / np.sum(predictions, dtype=float))


@functools.partial(jax.jit, static_argnames="model")
def _example_losses(params, model, batch):
    return example_losses(model, params, batch)


def in_batches(function: Callable[[Batch], Any], arrays: Batch) -> Any:
    """What a function makes of all samples, a hundred at a time.

    The last batch is filled up with the first samples again: one shape, so one compilation for
    sets of any size.

    Args:
      function: of a batch; every leaf of its result has a row a sample.
      arrays: NumPy leaves ``[n, ...]``.

    Returns:
      Its results as NumPy leaves ``[n, ...]``.
    """
    count = len(jax.tree.leaves(arrays)[0])
    found = []
    for start in range(0, count, _BATCH):
        rows = np.arange(start, start + _BATCH) % count
        batch = jax.tree.map(lambda leaf, rows=rows: leaf[rows], arrays)
        found.append(jax.tree.map(np.asarray, function(batch)))
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *found)
