"""Privacy that a run spends: Gaussian releases, and their epsilon by `dp-accounting`.

A release is a Gaussian mechanism of noise multiplier ``z``. Releases that may look at earlier ones
compose: T of them are one Gaussian mechanism of ``z / sqrt(T)`` (Dong et al. 1905.02383), whose
epsilon is exact (Balle and Wang 1805.06530). A release that a unit enters c times at once has c
times the sensitivity, and counts ``c^2``.
"""

import importlib.util
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from collapipe_jax.learning.tasks.sampling import sample_round

EXTRA = "privacy"
"""Extra of the package that brings the accountant."""


class Account(NamedTuple):
    """What a run spends."""

    unit: str  # one of ``privacy.UNITS``
    noise_multiplier: float  # ``z``
    delta: float
    releases: np.ndarray  # after every round of the run, ``[rounds]``

    def epsilon(self, rounds: int) -> float:
        """Epsilon after this many rounds, 1 or more."""
        return epsilon_of(self.noise_multiplier, float(self.releases[rounds - 1]), self.delta)


def is_installed() -> bool:
    """Whether the accountant is there."""
    return importlib.util.find_spec("dp_accounting") is not None


def epsilon_of(noise_multiplier: float, releases: float, delta: float) -> float:
    """Epsilon of so many releases at ``delta``. Source: docs/theory.md (T27)."""
    import dp_accounting  # takes a second to load

    return float(dp_accounting.get_epsilon_gaussian(noise_multiplier / math.sqrt(releases), delta))


def noise_multiplier_of(epsilon: float, releases: float, delta: float) -> float:
    """Least noise multiplier with which so many releases spend at most ``epsilon``."""
    import dp_accounting

    return float(dp_accounting.get_sigma_gaussian(epsilon, delta)) * math.sqrt(releases)


def cluster_releases(rounds: int, local_steps: int, *, one_decoder: bool) -> np.ndarray:
    """Releases to which every cluster contributes, after every round, ``[rounds]``.

    A round releases the aggregated step, and with one decoder at the server H steps of it.
    """
    each = 1 + local_steps * one_decoder
    return each * np.arange(1.0, rounds + 1.0)


def example_releases(
    seed: int, cluster_indices: Sequence[np.ndarray], rounds: int, local_steps: int, batch: int
) -> np.ndarray:
    """Releases of the example that enters most of them, after every round, ``[rounds]``.

    Samples come in shuffled passes and no draw is independent of another, so nothing is amplified
    by sampling. An example enters once a pass; where a batch straddles two, perhaps twice at once.
    Arguments as of ``sample_round``.
    """
    entered = np.zeros(1 + max(int(indices.max()) for indices in cluster_indices))

    def most() -> Iterator[float]:
        largest = 0.0
        for index in range(rounds):
            for rows in sample_round(seed, cluster_indices, index, local_steps, batch):
                names, counts = np.unique(rows, return_counts=True)
                entered[names] += counts.astype(float) ** 2
                largest = max(largest, entered[names].max())
            yield largest

    return np.fromiter(most(), float, rounds)
