"""Which cluster holds which training sample: evenly at random, or skewed by label."""

import math

import numpy as np

from collapipe_jax.errors import InputError

SCHEMES = ("iid", "dirichlet")


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
        seed: the split is a function of it and the other arguments; from 0.
        scheme: ``"iid"`` (`split_iid`) or ``"dirichlet"`` (`split_dirichlet`).
        labels: label of every sample, integers ``[n]``; ``"iid"`` uses only their number.
        clusters: N.
        concentration: skew of ``"dirichlet"``; unused by ``"iid"``.
        minimum: least number of samples in a cluster.

    Returns:
        N increasing index arrays: every sample stands in exactly one.

    Raises:
        InputError: an unknown scheme, or what the schemes refuse.
    """
    if scheme == "iid":
        return split_iid(seed, len(labels), clusters, minimum)
    if scheme == "dirichlet":
        return split_dirichlet(seed, labels, clusters, concentration, minimum)
    remedy = f"Use one of {', '.join(SCHEMES)}"
    raise InputError("task.split", scheme, "no such way to split samples", remedy)


def split_iid(seed: int, count: int, clusters: int, minimum: int = 1) -> list[np.ndarray]:
    """Shuffled and dealt out evenly: cluster sizes differ by at most one.

    Args:
        seed: from 0.
        count: number of samples.
        clusters: N.
        minimum: least number of samples in a cluster.

    Returns:
        N increasing index arrays that partition ``range(count)``.

    Raises:
        InputError: fewer than one cluster, or fewer samples than ``minimum`` each.
    """
    _check_room(count, clusters, minimum)
    order = _generator(seed).permutation(count)
    return [np.sort(part) for part in np.array_split(order, clusters)]


def split_dirichlet(
    seed: int, labels: np.ndarray, clusters: int, concentration: float, minimum: int = 1
) -> list[np.ndarray]:
    """Each label is spread over the clusters by shares drawn from a Dirichlet law.

    A large concentration tends to equal shares of every label, a small one gives each label to
    few clusters. A cluster left with fewer than ``minimum`` samples is topped up with samples
    drawn from whichever cluster is then the largest: the draw is repaired, not repeated, so
    the split always exists.

    Args:
        seed: from 0.
        labels: label of every sample, integers ``[n]``.
        clusters: N.
        concentration: parameter of the symmetric Dirichlet law, from 0.001.
        minimum: least number of samples in a cluster.

    Returns:
        N increasing index arrays that partition ``range(n)``.

    Raises:
        InputError: fewer than one cluster, fewer samples than ``minimum`` each, or a
            concentration that is too small or not finite.

    Source: Hsu, Qi and Brown, Measuring the effects of non-identical data distribution for
    federated visual classification (2019).
    """
    labels = np.asarray(labels)
    _check_room(len(labels), clusters, minimum)
    if not (math.isfinite(concentration) and concentration >= 1e-3):
        problem = "the concentration must be finite and at least 0.001"
        remedy = "Use about 0.1 for strong skew, 100 for almost none"
        raise InputError("task.concentration", concentration, problem, remedy)
    rng = _generator(seed)
    parts: list[list[np.ndarray]] = [[] for _ in range(clusters)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clusters, concentration))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(int)
        for part, piece in zip(parts, np.split(members, cuts), strict=True):
            part.append(piece)
    return _top_up(rng, [np.concatenate(part) for part in parts], minimum)


def _top_up(rng: np.random.Generator, parts: list[np.ndarray], minimum: int) -> list[np.ndarray]:
    # one sample at a time keeps the largest cluster the donor throughout
    parts = [rng.permutation(part) for part in parts]
    for n in range(len(parts)):
        while len(parts[n]) < minimum:
            donor = max(range(len(parts)), key=lambda c: len(parts[c]))
            parts[n] = np.append(parts[n], parts[donor][-1])
            parts[donor] = parts[donor][:-1]
    return [np.sort(part) for part in parts]


def _check_room(count: int, clusters: int, minimum: int) -> None:
    if clusters < 1:
        raise InputError("network.clusters", clusters, "no cluster", "Use 1 or more")
    if minimum < 1:
        raise InputError("task.minimum", minimum, "a cluster without samples", "Use 1 or more")
    if count < clusters * minimum:
        problem = f"{count} samples cannot give each cluster {minimum}"
        remedy = "Use fewer clusters or more training pairs"
        raise InputError("network.clusters", clusters, problem, remedy)


def _generator(seed: int) -> np.random.Generator:
    if seed < 0:
        raise InputError("seed", seed, "a negative seed", "Use an integer from 0")
    return np.random.Generator(np.random.Philox(seed))
