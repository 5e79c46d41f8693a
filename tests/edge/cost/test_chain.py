"""Neighbours along a chain of active nodes, and sums over the messages along it."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collapipe_jax.edge.cost.chain import (
    at_next_active,
    at_senders,
    from_previous_active,
    gain_to_next,
    sum_by_receiver,
    sum_by_sender,
)
from collapipe_jax.edge.cost.decision import active_nodes

NODES, CLUSTERS = 5, 4


@pytest.fixture
def active():
    """Nodes of 4 clusters in a batch of 30, some idle."""
    active = np.random.default_rng(5).uniform(size=(NODES, CLUSTERS, 30)) < 0.6
    active[0] = active[1:].any(axis=0)
    return jnp.asarray(active)


def next_active(on, node):
    return next((k for k in range(node + 1, len(on)) if on[k]), 0)


@given(st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=2, max_size=2))
def test_hops_visit_the_active_devices_in_order_and_come_home(segments):
    segments = jnp.array(segments, jnp.int32)
    active = active_nodes(segments).T
    following = np.asarray(at_next_active(jnp.arange(6)[:, None], active))
    assert np.all((following >= 0) & (following <= 5))
    for n, row in enumerate(segments):
        chain = [k + 1 for k in range(5) if row[k]]
        route, node = [], following[0, n]
        while node != 0 and chain:
            route.append(node)
            node = following[node, n]
        assert route == chain


def test_next_and_previous_active_nodes_against_a_loop(active):
    values = np.random.default_rng(6).normal(size=active.shape).astype(np.float32)
    following = np.asarray(at_next_active(jnp.asarray(values), active))
    previous = np.asarray(from_previous_active(jnp.asarray(values), active))
    for case in np.ndindex(active.shape[1:]):
        column, on = values[:, *case], active[:, *case]
        chain = np.flatnonzero(on)
        for node in range(NODES):
            assert following[node, *case] == column[next_active(on, node)]
        wanted = np.zeros(NODES)
        wanted[chain] = column[np.roll(chain, 1)]
        np.testing.assert_array_equal(previous[:, *case], wanted)


@pytest.mark.parametrize("shared", [False, True])
def test_gains_to_the_next_active_node_against_a_loop(shared, active, batch_axis_last):
    """Of every cluster's own gains, and of the same gains for all along an axis."""
    clusters = 1 if shared else CLUSTERS
    gain = np.random.default_rng(7).uniform(size=(NODES, NODES, clusters, active.shape[2]))
    gain = jnp.asarray(gain, jnp.float32)
    found = np.asarray(gain_to_next(gain, active))
    for n, case in np.ndindex(active.shape[1:]):
        of_case = gain[:, :, 0 if shared else n, case]
        for node in range(NODES):
            assert found[node, n, case] == of_case[node, next_active(active[:, n, case], node)]


def test_messages_are_summed_by_who_sends_and_who_receives_them_against_a_loop(active):
    rng = np.random.default_rng(8)
    hop = np.where(active, rng.uniform(size=(2, *active.shape)), 0.0).astype(np.float32)
    move = np.where(active[1:], rng.uniform(size=(2, *active[1:].shape)), 0.0).astype(np.float32)
    sent, received = np.zeros(active.shape), np.zeros(active.shape)
    for case in np.ndindex(active.shape[1:]):
        on = active[:, *case]
        for node in np.flatnonzero(on):
            end = next_active(on, node)
            forward, backward = hop[:, node, *case]
            sent[node, *case] += forward
            received[end, *case] += forward
            sent[end, *case] += backward
            received[node, *case] += backward
        for device in range(1, NODES):
            collect, distribute = move[:, device - 1, *case]
            sent[device, *case] += collect
            received[0, *case] += collect
            sent[0, *case] += distribute
            received[device, *case] += distribute
    messages = jnp.asarray(hop), jnp.asarray(move), active
    np.testing.assert_allclose(sum_by_sender(*messages), sent, rtol=1e-6)
    np.testing.assert_allclose(sum_by_receiver(*messages), received, rtol=1e-6)


def test_a_number_of_each_sender_is_given_to_all_that_it_sends(active):
    numbers = jnp.asarray(np.random.default_rng(9).uniform(size=active.shape), jnp.float32)
    spread = at_senders(numbers, active)
    count = at_senders(jnp.ones(active.shape), active)
    hop = jnp.where(active, spread.hop, 0.0)
    hops = jnp.where(active, count.hop, 0.0)
    total = sum_by_sender(hop, spread.move, active)
    messages = sum_by_sender(hops, count.move, active)
    np.testing.assert_allclose(total, numbers * messages, rtol=1e-6)
    np.testing.assert_array_equal(spread.uplink, numbers[0])
