"""Split of the training samples over clusters: at random, skewed by label, or by groups."""

import math

import numpy as np

from collapipe_jax.errors import InputError
from collapipe_jax.tasks.sampling import seeded_generator

SCHEMES = ("iid", "dirichlet", "natural")


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
      scheme: ``"iid"``, ``"dirichlet"`` or ``"natural"``, the functions below.
      labels: label or group of every sample, integers ``[n]``; ``"iid"`` uses only their
        number.
      clusters: N, from 1.
      concentration: skew of ``"dirichlet"``, from 0.001.
      minimum: least number of samples in a cluster, from 1.

    Returns:
      N increasing index arrays that partition ``range(n)``.

    Raises:
      InputError: an unknown scheme, a number out of its range, fewer samples than ``minimum``
        each, or groups that do not fit.
    """
    if scheme == "iid":
        return split_iid(seed, len(labels), clusters, minimum)
    if scheme == "dirichlet":
        return split_dirichlet(seed, labels, clusters, concentration, minimum)
    if scheme == "natural":
        return split_natural(seed, labels, clusters, minimum)
    remedy = f"Use one of {', '.join(SCHEMES)}"
    raise InputError("task.split", scheme, "no such way to split samples", remedy)


def split_iid(seed: int, count: int, clusters: int, minimum: int = 1) -> list[np.ndarray]:
    """Split ``count`` samples at random and evenly: cluster sizes differ by at most one."""
    _check_room(count, clusters, minimum)
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
    labels = np.asarray(labels)
    _check_room(len(labels), clusters, minimum)
    if not (math.isfinite(concentration) and concentration >= 1e-3):
        problem = "the concentration must be finite and at least 0.001"
        remedy = "Use about 0.1 for strong skew, 100 for almost none"
        raise InputError("task.concentration", concentration, problem, remedy)
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
    groups = np.asarray(groups)
    _check_room(len(groups), clusters, minimum)
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


def _check_room(count: int, clusters: int, minimum: int) -> None:
    if clusters < 1:
        raise InputError("network.clusters", clusters, "no cluster", "Use 1 or more")
    if minimum < 1:
        raise InputError("task.minimum", minimum, "a cluster without samples", "Use 1 or more")
    if count < clusters * minimum:
        problem = f"{count} samples cannot give each cluster {minimum}"
        remedy = "Use fewer clusters or more training pairs"
        raise InputError("network.clusters", clusters, problem, remedy)
