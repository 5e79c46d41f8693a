"""A model on held-out samples, in batches of one or two shapes."""

import functools
from collections.abc import Iterator

import jax
import numpy as np

from collapipe_jax.models.layers import Params
from collapipe_jax.models.split_model import Batch, SplitModel, example_losses

_BATCH = 100


def held_out_loss(params: Params, model: SplitModel, arrays: Batch) -> float:
    """Negative log-likelihood in nats a prediction over all samples: no dropout, no smoothing.

    Args:
      params: `{"embedding", "encoder", "decoder"}`.
      model: what is judged.
      arrays: NumPy leaves `[n, ...]`.
    """
    total, count = 0.0, 0.0
    for batch in batches(arrays):
        loss_sum, predictions = _example_losses(params, model.unsmoothed, batch)
        total += float(np.sum(loss_sum))
        count += float(np.sum(predictions))
    return total / count


@functools.partial(jax.jit, static_argnames="model")
def _example_losses(params, model, batch):
    return example_losses(model, params, batch)


def batches(arrays: Batch) -> Iterator[Batch]:
    """Samples in batches of at most 100: one or two shapes, so as many compilations.

    Args:
      arrays: leaves `[n, ...]`.
    """
    count = len(jax.tree.leaves(arrays)[0])
    for start in range(0, count, _BATCH):
        yield jax.tree.map(lambda leaf, start=start: leaf[start : start + _BATCH], arrays)
