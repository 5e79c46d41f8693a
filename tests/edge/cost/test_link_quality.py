"""Interference by loops over sending nodes, and the links that an idle node does not have."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.random_networks import random_network
from support.random_problems import random_rounds, to_batch_last
from support.reference_links import interference_w as interference_by_loops
from support.structs import as_problem

from collapipe_jax.edge.cost.decision import decision_allocation
from collapipe_jax.edge.cost.fixed_partition import fix_decision, fix_partition
from collapipe_jax.edge.cost.link_quality import active_power_w, interference_w, round_links

pytestmark = pytest.mark.usefixtures("x64", "batch_axis_last")
NETWORK = random_network(np.random.default_rng(7), 3, 4, 6)
SEGMENTS = np.array([[0, 2, 0, 4], [0, 0, 0, 0], [3, 0, 1, 2]])


def received_w(network, segments, d2d_power_w):
    """Interference at every node, ``[N, P]``."""
    fixed = jax.jit(fix_partition)(as_problem(network), segments.T, np.full(3, 2))
    power_w = jnp.where(fixed.active, jnp.asarray(d2d_power_w).T, 0.0)
    return np.asarray(interference_w(fixed.cross_gain, power_w)).T


def test_interference_is_the_sum_over_active_nodes_of_other_clusters():
    power_w = np.random.default_rng(8).uniform(0.02, 0.3, (3, 5))
    decision = {"segments": SEGMENTS, "d2d_power_w": power_w}
    expected = [
        [interference_by_loops(NETWORK, decision, n, j) for j in range(5)] for n in range(3)
    ]
    got = received_w(NETWORK, SEGMENTS, power_w)
    np.testing.assert_allclose(got, expected, 1e-12)
    assert np.all(got > 0)


def test_one_transmitter_is_received_by_the_other_clusters_alone():
    power_w = np.zeros((3, 5))
    power_w[2, 3] = 0.2
    network = NETWORK | {"radio": NETWORK["radio"] | {"d2d_activity": 0.5}}
    expected = 0.1 * NETWORK["radio"]["cross_gain"][2, 3]
    expected[2] = 0  # the own cluster shares its band without interference
    np.testing.assert_allclose(received_w(network, SEGMENTS, power_w), expected, 1e-12)


@pytest.mark.parametrize("batch", [1, 40])
def test_interference_is_the_same_over_small_and_large_batches(batch):
    rng = np.random.default_rng(8)
    gain = rng.uniform(size=(4, 3, 4, 3, batch))
    power_w = rng.uniform(size=(4, 3, batch))
    wanted = np.einsum("inr,injmr->jmr", power_w, gain)
    np.testing.assert_allclose(
        interference_w(jnp.asarray(gain), jnp.asarray(power_w)), wanted, rtol=1e-12
    )


def links_of(problem, decision):
    fixed = fix_decision(problem, decision)
    allocation = decision_allocation(decision)
    received = interference_w(fixed.cross_gain, active_power_w(fixed, allocation))
    return fixed.active, received, round_links(fixed, allocation)


@pytest.mark.slow
def test_links_of_a_batch_are_those_of_each_network():
    rounds = random_rounds(12, 3, 4, 6, lambda index: (), seed=3)
    active, *together = jax.jit(links_of)(*to_batch_last(rounds))
    assert not np.all(active)
    _, *each = jax.jit(jax.vmap(links_of, out_axes=-1))(*rounds)
    for got, wanted in zip(jax.tree.leaves(together), jax.tree.leaves(each), strict=True):
        wanted = np.asarray(wanted)
        finite = np.isfinite(wanted)  # on idle nodes, without a share, it may be infinite
        assert finite.any()
        got = np.broadcast_to(got, wanted.shape)
        np.testing.assert_allclose(got[finite], wanted[finite], rtol=1e-10)
