"""Certificates: no point lies under their bound, and long descents close the gap to it."""

import jax.numpy as jnp
import numpy as np
import pytest
from support.descents import (
    BATCH,
    CLUSTERS,
    DEVICES,
    LONG,
    anywhere,
    descend_together,
    draw,
)
from support.random_allocations import random_coupling

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.edge.cost.fixed_partition import fix_decision
from collapipe_jax.edge.solver.allocate import descend_clusters
from collapipe_jax.edge.solver.smooth_objective import band_multiplier, certify

pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture(scope="module")
def some(double):
    return draw()


@quick_jit
def by_themselves(problem, decision, logs, coupling, steps):
    """Where every cluster's own descent ends, and the bound of its own objective there."""
    fixed = fix_decision(problem, decision)
    end = descend_clusters(fixed, logs, coupling, steps, with_evaluation=True)
    bound = certify(end.evaluation, end.logs, fixed.chain.used, joint=False).lower_bound
    return end.objective, bound


@pytest.fixture(scope="module")
def optimum(some):
    problem, decision, logs, weights, _ = some
    return descend_together(problem, decision, logs, weights, LONG)


def test_no_point_lies_under_a_bound(some, optimum):
    problem, decision, logs, weights, _ = some
    lowest = np.asarray(optimum[0].objective) * (1 + 1e-9)
    ends = [descend_together(problem, decision, logs, weights, steps) for steps in (1, 10, 100)]
    for end, certificate in (*ends, optimum):
        assert np.all(certificate.lower_bound <= end.objective * (1 + 1e-12))
        assert np.all(certificate.lower_bound <= lowest)
    for seed in range(3):
        _, certificate = descend_together(problem, decision, anywhere(seed, 3), weights, 1)
        assert np.all(certificate.lower_bound <= lowest)


def test_a_long_descent_ends_where_its_certificate_says_optimal(optimum):
    end, certificate = optimum
    gap = 1 - np.asarray(certificate.lower_bound / end.objective)
    assert np.mean(gap < 1e-4) > 0.8
    assert np.max(gap) < 2e-3
    assert np.median(certificate.residual) < 1e-4


def test_no_point_of_a_cluster_by_itself_lies_under_its_bound(some):
    problem, decision, logs, *_ = some
    rng = np.random.default_rng(5)
    coupling = random_coupling(rng, np.full(BATCH, 20.0), CLUSTERS, DEVICES, BATCH)
    lowest, bound = by_themselves(problem, decision, logs, coupling, LONG)
    lowest = np.asarray(lowest) * (1 + 1e-9)
    assert bound.shape == (CLUSTERS, BATCH)
    gap = 1 - np.asarray(bound) / np.where(lowest > 0, lowest, 1.0)
    assert np.mean(gap[lowest > 0] < 1e-3) > 0.8
    for start in (logs, anywhere(1, 3)):
        for steps in (1, 20):
            objective, bound = by_themselves(problem, decision, start, coupling, steps)
            assert np.all(bound <= objective * (1 + 1e-12) + 1e-12)
            assert np.all(bound <= lowest + 1e-12)


def test_the_multiplier_of_a_band_is_the_size_of_slopes_that_its_shares_divide():
    share, multiplier = jnp.array([[0.2], [0.5], [0.3]]), 1.7
    np.testing.assert_allclose(band_multiplier(-multiplier * share), [multiplier], rtol=1e-12)
    assert band_multiplier(jnp.ones((3, 1))) == 0  # more band would cost
