"""The second stage of a round: for one network or many, with exact or smooth maxima."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.random_problems import random_rounds, to_batch_last

from collapipe_jax.edge.cost.decision import Allocation
from collapipe_jax.edge.cost.evaluate import round_terms
from collapipe_jax.edge.cost.fixed_partition import fix_decision
from collapipe_jax.edge.cost.link_quality import round_links
from collapipe_jax.edge.cost.maximum import hard_max
from collapipe_jax.edge.cost.objective import drift_plus_penalty
from collapipe_jax.edge.solver.smooth_maximum import PowerMean, initial_weights

pytestmark = pytest.mark.usefixtures("x64", "batch_axis_last")
CLUSTERS, DEVICES, BLOCKS, BATCH = 3, 4, 6, 12


def draw():
    rounds = random_rounds(BATCH, CLUSTERS, DEVICES, BLOCKS, lambda index: (), seed=4)
    rng = np.random.default_rng(4)
    nodes = (BATCH, DEVICES + 1, CLUSTERS)
    allocation = Allocation(
        rng.uniform(0.05, 0.2, nodes),
        rng.uniform(0.02, 0.2, nodes),
        rng.uniform(0.1, 0.3, nodes[::2]),
        rng.uniform(0.02, 0.2, nodes[::2]),
    )
    return *rounds, allocation


def objective(problem, decision, allocation, smooth=False, given_links=False):
    """Objective of the terms, and the terms."""
    fixed = fix_decision(problem, decision)
    maximum = PowerMean(initial_weights(fixed), 0.1) if smooth else hard_max
    links = round_links(fixed, allocation) if given_links else None
    terms = round_terms(fixed, allocation, maximum, links)
    latency_s = jnp.max(terms.cluster_latency_s, axis=0)
    value = drift_plus_penalty(fixed.costs, latency_s, terms.cluster_cost)
    return value, terms.cluster_latency_s, terms.cluster_cost, terms.parts, terms.message_j


@pytest.mark.parametrize("smooth", [False, True])
def test_a_batch_of_networks_has_the_terms_of_each(smooth):
    rounds = draw()
    of = functools.partial(objective, smooth=smooth)
    together = jax.jit(of)(*to_batch_last(rounds))
    each = jax.jit(jax.vmap(of, out_axes=-1))(*rounds)
    for got, wanted in zip(jax.tree.leaves(together), jax.tree.leaves(each), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-10)


def test_smooth_terms_are_nowhere_above_the_exact_ones():
    rounds = to_batch_last(draw())
    exact = jax.jit(objective)(*rounds)
    smooth = jax.jit(functools.partial(objective, smooth=True))(*rounds)
    for low, high in zip(jax.tree.leaves(smooth), jax.tree.leaves(exact), strict=True):
        assert np.all(low <= high * (1 + 1e-12))
    assert np.any(smooth[0] < exact[0] * (1 - 1e-3))


def test_links_that_are_known_already_change_nothing():
    rounds = to_batch_last(draw())
    given_links = jax.jit(functools.partial(objective, given_links=True))(*rounds)
    for got, wanted in zip(
        jax.tree.leaves(given_links), jax.tree.leaves(jax.jit(objective)(*rounds)), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-12)
