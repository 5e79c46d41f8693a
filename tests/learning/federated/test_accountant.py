"""Epsilon against the accountant's own composition and closed forms."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from collapipe_jax.learning.federated.privacy import (
    Account,
    cluster_releases,
    epsilon_of,
    example_releases,
    noise_multiplier_of,
)
from collapipe_jax.learning.tasks.sampling import sample_round

REASON = 'pip install -e ".[privacy]"'
dp_accounting = pytest.importorskip("dp_accounting", reason=REASON)
DELTA = 1e-5


def delta_of(mu, epsilon):
    """Exact delta of a Gaussian mechanism of sensitivity over deviation ``mu``.

    Source: Balle and Wang 1805.06530, theorem 8.
    """
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(("z", "releases"), [(1.0, 1.0), (5.0, 30.0), (40.0, 400.0), (2.0, 12.5)])
def test_epsilon_is_that_of_balle_and_wang(z, releases):
    mu = math.sqrt(releases) / z
    expected = brentq(lambda epsilon: delta_of(mu, epsilon) - DELTA, 0.0, 100.0, xtol=1e-12)
    assert epsilon_of(z, releases, DELTA) == pytest.approx(expected, rel=1e-6)


def test_composing_release_by_release_gives_the_same():
    """By privacy loss distributions, which know nothing of the closed form."""
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(8.0), 40)
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(event)
    assert epsilon_of(8.0, 40.0, DELTA) == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-3)
    moments = dp_accounting.rdp.RdpAccountant()
    moments.compose(event)
    assert epsilon_of(8.0, 40.0, DELTA) < moments.get_epsilon(DELTA)  # an upper bound


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 100.0])
def test_noise_for_a_target_meets_it(epsilon):
    z = noise_multiplier_of(epsilon, 300.0, DELTA)
    assert epsilon_of(z, 300.0, DELTA) == pytest.approx(epsilon, rel=1e-6)
    assert epsilon_of(0.99 * z, 300.0, DELTA) > epsilon


def test_a_cluster_enters_the_aggregate_and_every_step_of_the_decoder():
    np.testing.assert_array_equal(cluster_releases(3, 4, one_decoder=True), [5, 10, 15])
    np.testing.assert_array_equal(cluster_releases(3, 4, one_decoder=False), [1, 2, 3])


def test_an_example_enters_as_often_as_it_is_drawn():
    """Two clusters, of which the smaller repeats sooner; batches of 3 straddle passes over 4."""
    clusters, rounds, sizes = [np.arange(7), np.arange(7, 11)], 6, (2, 3)
    found = example_releases(0, clusters, rounds, *sizes)
    draws = [sample_round(0, clusters, index, *sizes) for index in range(rounds)]
    for index in range(rounds):
        times = np.array(
            [
                sum((batch == sample).sum() ** 2 for drawn in draws[: index + 1] for batch in drawn)
                for sample in range(11)
            ]
        )
        assert found[index] == times.max()
    passes = -(-rounds * 6 // 4)
    assert found[-1] >= passes


def test_an_account_tells_what_is_spent_so_far():
    account = Account("cluster", 10.0, DELTA, cluster_releases(5, 4, one_decoder=True))
    assert account.epsilon(2) == epsilon_of(10.0, 10.0, DELTA)
    assert account.epsilon(5) > account.epsilon(2)
