"""Samples of the clusters: their split, and the mini-batches of every round."""

import functools
import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from collapipe_jax.core.errors import InputError

SCHEMES = ("iid", "dirichlet", "natural")

_ROUNDS_BY_LENGTH = 32
"""Most rounds whose samples are sorted by length."""


def seeded_generator(seed: int | Sequence[int]) -> np.random.Generator:
    """Counter-based generator of one or several seeds from 0."""
    return np.random.Generator(np.random.Philox(seed))


def stratified_draw(labels: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Increasing indices of ``size`` random samples, of every label its share up to rounding.

    Each label first gives its share rounded down; the rest comes from the labels with the
    largest remainders, ties in random order.
    """
    rng = seeded_generator(seed)
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    # Integers: rounding errors must not decide between equal remainders.
    quota, remainder = np.divmod(counts * size, len(labels))
    order = rng.permutation(len(counts))
    order = order[np.argsort(-remainder[order], kind="stable")]
    quota[order[: size - quota.sum()]] += 1
    drawn = [rng.permutation(np.flatnonzero(classes == c))[:q] for c, q in enumerate(quota)]
    return np.sort(np.concatenate(drawn))


def split_samples(
    seed: int,
    scheme: str,
    labels: np.ndarray,
    clusters: int,
    concentration: float,
    minimum: int = 1,
) -> list[np.ndarray]:
    """Indices of the samples of each cluster, by the named scheme.

    Args:
      seed: the split is a function of the arguments.
      scheme: ``"iid"``, ``"dirichlet"`` or ``"natural"``, the functions below.
      labels: label or group of every sample, integers ``[n]``.
      clusters: N.
      concentration: of ``"dirichlet"``, from 0.001.
      minimum: least number of samples in a cluster.

    Returns:
      N increasing index arrays that partition ``range(n)``.

    Raises:
      InputError: an unknown scheme, or numbers or groups that do not fit.
    """
    if len(labels) < clusters * minimum:
        problem = f"{len(labels)} samples cannot give each cluster {minimum}"
        remedy = "Use fewer clusters, a smaller training.batch, or more training samples"
        raise InputError("network.clusters", clusters, problem, remedy)
    if scheme == "iid":
        return split_iid(seed, len(labels), clusters)
    if scheme == "dirichlet":
        return split_dirichlet(seed, labels, clusters, concentration, minimum)
    if scheme == "natural":
        return split_natural(seed, labels, clusters, minimum)
    remedy = f"Use one of {', '.join(SCHEMES)}"
    raise InputError("task.split", scheme, "no such way to split samples", remedy)


def split_iid(seed: int, count: int, clusters: int) -> list[np.ndarray]:
    """Split ``count`` samples at random and evenly: cluster sizes differ by at most one."""
    order = seeded_generator(seed).permutation(count)
    return [np.sort(part) for part in np.array_split(order, clusters)]


def split_dirichlet(
    seed: int, labels: np.ndarray, clusters: int, concentration: float, minimum: int = 1
) -> list[np.ndarray]:
    """Split each label by shares drawn from a symmetric Dirichlet law.

    A large concentration tends to equal shares of every label, a small one gives each label to
    few clusters. A cluster left with fewer than ``minimum`` samples gets samples drawn from
    whichever cluster is then the largest, so the split always exists.

    Source: Hsu, Qi and Brown, Measuring the effects of non-identical data distribution for
    federated visual classification (2019).
    """
    rng = seeded_generator(seed)
    parts: list[list[np.ndarray]] = [[] for _ in range(clusters)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clusters, concentration))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(int)
        for part, piece in zip(parts, np.split(members, cuts), strict=True):
            part.append(piece)
    return _fill_up(rng, [np.concatenate(part) for part in parts], minimum)


def split_natural(
    seed: int, groups: np.ndarray, clusters: int, minimum: int = 1
) -> list[np.ndarray]:
    """Assign each group whole to one cluster, as where every cluster is a domain of its own.

    The largest group comes first, and each goes to the cluster with the fewest samples so far;
    equals are taken in random order. This greedy rule leaves the largest cluster at most
    ``4/3 - 1/(3 N)`` times as large as in the most even split of whole groups.

    Source: Graham, Bounds on multiprocessing timing anomalies (1969).
    """
    rng = seeded_generator(seed)
    names, sizes = np.unique(groups, return_counts=True)
    if len(names) < clusters:
        problem = f"{len(names)} groups cannot go whole to that many clusters"
        remedy = "Use fewer clusters, or task.split = 'dirichlet'"
        raise InputError("network.clusters", clusters, problem, remedy)
    order = rng.permutation(len(names))
    order = order[np.argsort(-sizes[order], kind="stable")]
    preference = rng.permutation(clusters)
    loads = np.zeros(clusters, dtype=np.int64)
    owner = np.empty(len(names), dtype=np.int64)
    for group in order:
        owner[group] = preference[np.argmin(loads[preference])]
        loads[owner[group]] += sizes[group]
    if loads.min() < minimum:
        problem = f"whole groups leave a cluster with {loads.min()} samples, fewer than {minimum}"
        remedy = "Use fewer clusters, a smaller batch, or task.split = 'dirichlet'"
        raise InputError("network.clusters", clusters, problem, remedy)
    owner_of_sample = owner[np.searchsorted(names, groups)]
    return [np.flatnonzero(owner_of_sample == n) for n in range(clusters)]


def _fill_up(rng: np.random.Generator, parts: list[np.ndarray], minimum: int) -> list[np.ndarray]:
    # one sample at a time keeps the largest cluster the donor throughout
    parts = [rng.permutation(part) for part in parts]
    for n in range(len(parts)):
        while len(parts[n]) < minimum:
            donor = max(range(len(parts)), key=lambda c: len(parts[c]))
            parts[n] = np.append(parts[n], parts[donor][-1])
            parts[donor] = parts[donor][:-1]
    return [np.sort(part) for part in parts]


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
      round_index, local_steps, batch: t from 0, H and B.
    """
    count = local_steps * batch
    drawn = []
    for cluster, indices in enumerate(cluster_indices):
        first, offset = divmod(round_index * count, len(indices))
        passes = range(first, first + 1 + (offset + count - 1) // len(indices))
        order = [permutation_of_epoch(seed, cluster, epoch, len(indices)) for epoch in passes]
        own = indices[np.concatenate(order)[offset : offset + count]]
        drawn.append(own.reshape(local_steps, batch))
    return np.stack(drawn, axis=1).astype(np.int32)


def sample_round_by_length(
    seed: int,
    cluster_indices: Sequence[np.ndarray],
    lengths: np.ndarray,
    round_index: int,
    local_steps: int,
    batch: int,
) -> np.ndarray:
    """:func:`sample_round` with samples of similar length in a round, the same in all clusters.

    Each cluster sorts what :func:`sample_round` gives it for some rounds, at most one pass. The
    shortest samples make one of these rounds, and so on. Rounds come in random order.

    Args:
      seed, cluster_indices, round_index, local_steps, batch: as there.
      lengths: of every sample.

    Returns:
      int32 ``[H, N, B]``.
    """
    least = min(len(indices) for indices in cluster_indices)
    rounds = int(np.clip(least // (local_steps * batch), 1, _ROUNDS_BY_LENGTH))
    window, place = divmod(round_index, rounds)
    drawn = sample_round(seed, cluster_indices, window, rounds * local_steps, batch)
    own = np.moveaxis(drawn, 1, 0).reshape(len(cluster_indices), -1)
    order = np.argsort(lengths[own], axis=1, kind="stable")
    by_length = np.take_along_axis(own, order, axis=1).reshape(len(own), rounds, local_steps, batch)
    turn = seeded_generator((seed, window, rounds)).permutation(rounds)[place]
    return np.moveaxis(by_length[:, turn], 0, 1)


def permutation_of_epoch(seed: int, cluster: int, epoch: int, count: int) -> np.ndarray:
    """Order of the samples of a cluster in one pass over them, a permutation ``[count]``.

    Philox is a counter-based generator: (seed, cluster) is its key and the epoch the highest
    word of its counter, so no two passes share random numbers.

    Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
    """
    key = np.array([seed, cluster], dtype=np.uint64)
    counter = np.array([0, 0, 0, epoch], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter)).permutation(count)


_VARIATION_SELECTORS = range(0xFE00, 0xFE10)  # how a character such as an emoji looks


def text_key(text: str) -> str:
    """A text without case and punctuation, or as it is without any letter."""
    return " ".join(_words().findall(text.casefold())) or text


@functools.cache
def _words() -> re.Pattern[str]:
    """Words of any script: with the marks of vowels, which are no letters to the module re."""
    marks = (code for code in range(0x300, 0x20000) if code not in _VARIATION_SELECTORS)
    of_words = "".join(chr(c) for c in marks if unicodedata.category(chr(c)) in ("Mn", "Mc"))
    # Most words end at an ASCII character, for which no mark need be looked up.
    return re.compile(rf"\w+(?:(?![\0-\x7f])[{of_words}]+\w*)*")


def equal_texts(texts: Sequence[str]) -> list[list[int]]:
    """Rows of texts of one ``text_key``, in the order in which the keys first come."""
    rows: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        rows.setdefault(text_key(text), []).append(row)
    return list(rows.values())


def take_validation(
    texts: Sequence[str],
    validation: str,
    wanted: int,
    seed: int,
    strata: Sequence[str | bool] | None = None,
) -> tuple[list[int], list[int]]:
    """Rows of training texts to validate on, and rows to train on, both in order.

    Texts of equal ``text_key`` stay together. Validation has the first text of each group that is
    drawn, and the others of the group are in neither set.

    Args:
      texts: of training, of pairs the sources.
      validation: name of a validation file; with one nothing is taken.
      wanted: texts to take, no two of them equal; 0 takes a tenth, 1000 at most.
      seed: of the draw.
      strata: of each text a class, such that validation has of every class its share of groups. A
        class of one group stays in training where the others have enough.

    Raises:
      InputError: if texts are wanted beside a file, or none would be left to train on.
    """
    groups = equal_texts(texts)
    size = _validation_size(validation, wanted, len(groups))
    if strata is None:
        drawn = seeded_generator(seed).permutation(len(groups))[:size]
    else:
        classes = np.array([strata[group[0]] for group in groups])
        _, numbers, counts = np.unique(classes, return_inverse=True, return_counts=True)
        several = np.flatnonzero(counts[numbers] > 1)
        pool = several if len(several) >= size else np.arange(len(groups))
        drawn = pool[stratified_draw(classes[pool], size, seed)]
    taken = {int(group) for group in drawn}
    left = [row for number, group in enumerate(groups) if number not in taken for row in group]
    return sorted(groups[number][0] for number in taken), sorted(left)


def _validation_size(validation: str, wanted: int, available: int) -> int:
    """Texts of training to take for validation; none where a file has them.

    Otherwise as many as wanted, or a tenth of those available, 1000 at most.

    Raises:
      InputError: if there is a file too, or none would be left to train on.
    """
    key = "task.validation_samples"
    if validation:
        if wanted:
            remedy = "Use 0, or leave task.validation empty"
            raise InputError(key, wanted, "task.validation names a file", remedy)
        return 0
    size = wanted or max(1, min(1000, round(0.1 * available)))
    if size >= available:
        problem = f"training has {available} different texts, none would be left to train on"
        raise InputError(key, wanted, problem, "Lower it, or name a file in task.validation")
    return size


def draw_rows(rows: Sequence[int], samples: int, seed: int) -> list[int]:
    """As many of the rows as wanted, at random and in their order; 0 takes all."""
    drawn = seeded_generator(seed).permutation(len(rows))[: samples or None]
    return [rows[number] for number in np.sort(drawn)]
