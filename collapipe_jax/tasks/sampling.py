"""Samples of each step: an endless shuffled sequence per cluster, without state."""

from collections.abc import Sequence

import numpy as np

from collapipe_jax.errors import InputError


def seeded_generator(seed: int) -> np.random.Generator:
    """Counter-based generator of a seed from 0; an ``InputError`` below."""
    if seed < 0:
        raise InputError("seed", seed, "a negative seed", "Use an integer from 0")
    return np.random.Generator(np.random.Philox(seed))


def sample_round(
    seed: int, cluster_indices: Sequence[np.ndarray], round_index: int, local_steps: int, batch: int
) -> np.ndarray:
    """Samples of one round, for every local step and cluster, int32 ``[H, N, B]``.

    Each cluster reads its own endless sequence, one freshly shuffled pass over its samples
    after the other; round t takes the ``H B`` entries from position ``t H B``. The result is a
    function of the arguments alone, so training resumes at any round with nothing saved. A
    batch may straddle two passes and then hold a sample twice.

    Args:
      seed: from 0, below 2**64.
      cluster_indices: samples of each cluster, N non-empty integer arrays.
      round_index: t, from 0.
      local_steps: H, from 1.
      batch: B, from 1.

    Raises:
      InputError: a cluster without samples, or a size or seed out of its range.
    """
    _check(seed, cluster_indices, round_index, local_steps, batch)
    count = local_steps * batch
    drawn = [
        _shuffled(seed, cluster, np.asarray(indices), round_index * count, count)
        for cluster, indices in enumerate(cluster_indices)
    ]
    return np.stack([d.reshape(local_steps, batch) for d in drawn], axis=1).astype(np.int32)


def permutation_of_epoch(seed: int, cluster: int, epoch: int, count: int) -> np.ndarray:
    """Order of the samples of a cluster in one pass over them, a permutation ``[count]``.

    Philox is a counter-based generator: (seed, cluster) is its key and the epoch the highest
    word of its counter, so no two passes share random numbers.

    Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
    """
    key = np.array([seed, cluster], dtype=np.uint64)
    counter = np.array([0, 0, 0, epoch], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter)).permutation(count)


def _shuffled(seed: int, cluster: int, indices: np.ndarray, start: int, count: int) -> np.ndarray:
    """Entries ``start .. start + count - 1`` of a cluster's sequence."""
    size = len(indices)
    first, last = start // size, (start + count - 1) // size
    passes = [permutation_of_epoch(seed, cluster, e, size) for e in range(first, last + 1)]
    offset = start - first * size
    return indices[np.concatenate(passes)[offset : offset + count]]


def _check(
    seed: int, cluster_indices: Sequence[np.ndarray], round_index: int, steps: int, batch: int
) -> None:
    if not 0 <= seed < 2**64:
        raise InputError("seed", seed, "out of range", "Use an integer from 0 below 2**64")
    if round_index < 0:
        raise InputError("round_index", round_index, "a negative round", "Count from 0")
    for key, value in (("training.local_steps", steps), ("training.batch", batch)):
        if value < 1:
            raise InputError(key, value, "nothing to train on", "Use 1 or more")
    for cluster, indices in enumerate(cluster_indices):
        if len(indices) == 0:
            remedy = "Split the samples so that every cluster holds at least one"
            raise InputError("cluster", cluster, "the cluster has no samples", remedy)
