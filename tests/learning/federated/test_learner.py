import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collapipe_jax.learning.federated.aggregation import aggregate, participant_shares
from collapipe_jax.learning.federated.learner import apply_gradient

CLUSTERS = 4
ALL = jnp.ones(CLUSTERS, bool)
numbers = st.lists(st.floats(0.125, 10.0, width=32), min_size=CLUSTERS, max_size=CLUSTERS)
flags = st.lists(st.booleans(), min_size=CLUSTERS, max_size=CLUSTERS)


@pytest.fixture(scope="module")
def clients():
    keys = jax.random.split(jax.random.key(0))
    return {
        "a": jax.random.normal(keys[0], (CLUSTERS, 3, 2)),
        "b": jax.random.normal(keys[1], (CLUSTERS,)),
    }


@pytest.fixture(scope="module")
def previous():
    return {"a": jnp.full((3, 2), 7.0), "b": jnp.array(-3.0)}


@given(weights=numbers, present=flags)
def test_shares_sum_to_one_over_the_present(weights, present):
    shares = np.asarray(participant_shares(jnp.array(weights), jnp.array(present)))
    assert np.isclose(shares.sum(), float(any(present)))
    assert np.all((shares > 0) == np.array(present))


@given(weights=numbers, present=flags)
def test_aggregation_is_the_weighted_mean_over_the_present(clients, weights, present):
    got = aggregate(clients, participant_shares(jnp.array(weights), jnp.array(present)))
    for name, leaf in clients.items():
        expected = np.zeros(leaf.shape[1:])
        if any(present):
            expected = np.average(leaf, axis=0, weights=np.where(present, weights, 0.0))
        np.testing.assert_allclose(got[name], expected, rtol=1e-5, atol=1e-6)


@given(weights=numbers, scale=st.floats(0.125, 10.0, width=32))
def test_identical_clients_aggregate_to_themselves(previous, weights, scale):
    copies = jax.tree.map(lambda leaf: jnp.stack([leaf * scale] * CLUSTERS), previous)
    got = aggregate(copies, participant_shares(jnp.array(weights), ALL))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b * scale, rtol=1e-5), got, previous)


def test_what_an_absent_cluster_holds_is_never_read(clients):
    broken = jax.tree.map(lambda leaf: leaf.at[1].set(jnp.nan), clients)
    present = ALL.at[1].set(False)
    shares = participant_shares(jnp.array([0.1, 0.4, 0.2, 0.3]), present)
    expected, got = aggregate(clients, shares), aggregate(broken, shares)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def server_update(previous, mean, state, tx, anyone=True):
    """The server's step, as a round takes it."""
    pseudo_gradient = jax.tree.map(jnp.subtract, previous, mean)
    return apply_gradient(tx, pseudo_gradient, (previous, state), 0, anyone)


def test_sgd_of_one_is_plain_averaging(clients, previous):
    mean = aggregate(clients, jnp.full(CLUSTERS, 1 / CLUSTERS))
    tx = optax.sgd(1.0)
    got, _ = server_update(previous, mean, tx.init(previous), tx)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, mean)


def test_server_momentum_continues_the_move_and_rests_when_nobody_came(clients, previous):
    tx = optax.sgd(1.0, momentum=0.5)
    mean = aggregate(clients, jnp.full(CLUSTERS, 1 / CLUSTERS))
    first, state = server_update(previous, mean, tx.init(previous), tx)
    again, _ = server_update(first, first, state, tx)
    still, rested = server_update(first, first, state, tx, anyone=False)
    for name in previous:
        move = np.asarray(first[name] - previous[name])
        np.testing.assert_allclose(again[name] - first[name], 0.5 * move, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(still[name], first[name])
    jax.tree.map(np.testing.assert_array_equal, rested, state)
