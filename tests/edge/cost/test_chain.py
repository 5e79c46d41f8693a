"""Neighbours along a chain of active nodes, and sums over the messages along it."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.compiled import in_numpy

from collapipe_jax.edge.cost import chain as package
from collapipe_jax.edge.cost.chain import Chain, gateway_nodes
from collapipe_jax.edge.cost.decision import Routes, active_nodes

at_next, at_others = in_numpy(package.at_next), in_numpy(package.at_others)
at_senders, from_previous = in_numpy(package.at_senders), in_numpy(package.from_previous)
gain_to_next = in_numpy(package.gain_to_next)
sum_by_receiver = in_numpy(package.sum_by_receiver)
sum_by_sender = in_numpy(package.sum_by_sender)
NODES, CLUSTERS = 5, 4


NONE = np.zeros((CLUSTERS, 30), int)


@pytest.fixture(params=["control units", "random nodes"])
def chain(request, batch_axis_last):
    """Chains of 4 clusters in a batch of 30, some nodes idle, and the number of each gateway."""
    rng = np.random.default_rng(5)
    members = rng.uniform(size=(NODES, CLUSTERS, 30)) < 0.6
    members[0] = members[1:].any(axis=0)
    if request.param == "control units":
        return Chain(jnp.asarray(members)), NONE
    gateway = rng.integers(NODES, size=NONE.shape)
    of_routes = gateway_nodes(Routes(gateway=jnp.asarray(gateway), broadcast=jnp.zeros(30)), NODES)
    return Chain(jnp.asarray(members), of_routes), gateway


def next_node(on, node, gateway=0):
    """Where the hop of a node ends; itself if there is none."""
    return next((k for k in range(node + 1, len(on)) if on[k]), gateway)


@in_numpy
def next_nodes(segments):
    return package.at_next(jnp.arange(6)[:, None], Chain(active_nodes(segments.T, axis=0)))


@given(st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=2, max_size=2))
def test_hops_visit_the_active_devices_in_order_and_come_home(segments):
    segments = np.array(segments, np.int32)
    following = next_nodes(segments)
    assert np.all((following >= 0) & (following <= 5))
    for n, row in enumerate(segments):
        chain = [k + 1 for k in range(5) if row[k]]
        route, node = [], following[0, n]
        while node != 0 and chain:
            route.append(node)
            node = following[node, n]
        assert route == chain


def test_a_hop_starts_at_every_member_but_a_last_one_that_is_the_gateway(chain):
    chain, gateway = chain
    for case in np.ndindex(gateway.shape):
        on = np.asarray(chain.members[:, *case])
        starts = [k for k in np.flatnonzero(on) if next_node(on, k, gateway[case]) != k]
        assert np.flatnonzero(chain.hops[:, *case]).tolist() == starts
        sends = set(np.flatnonzero(on)) | ({gateway[case]} if on[0] else set())
        assert set(np.flatnonzero(chain.active[:, *case])) == sends


def test_next_and_previous_nodes_against_a_loop(chain):
    chain, gateway = chain
    values = np.random.default_rng(6).normal(size=chain.members.shape).astype(np.float32)
    following = at_next(values, chain)
    previous = from_previous(values, chain)
    for case in np.ndindex(gateway.shape):
        column, on, wanted = values[:, *case], chain.members[:, *case], np.zeros(NODES)
        for node in range(NODES):
            end = next_node(on, node, gateway[case])
            assert following[node, *case] == column[end]
            wanted[end] += column[node] if on[node] and end != node else 0.0
        np.testing.assert_allclose(previous[:, *case], wanted, rtol=1e-6)


@pytest.mark.parametrize("shared", [False, True])
def test_gains_of_hops_against_a_loop(shared, chain):
    """Of every cluster's own gains, and of the same gains for all along an axis."""
    chain, gateway = chain
    clusters = 1 if shared else CLUSTERS
    gain = np.random.default_rng(7).uniform(size=(NODES, NODES, clusters, gateway.shape[1]))
    gain = gain.astype(np.float32)
    found = gain_to_next(gain, chain)
    for n, case in np.ndindex(gateway.shape):
        of_case, on = gain[:, :, 0 if shared else n, case], chain.members[:, n, case]
        for node in range(NODES):
            end = next_node(on, node, gateway[n, case])
            assert found[node, n, case] == of_case[node, end]


def test_messages_are_summed_by_who_sends_and_who_receives_them_against_a_loop(chain):
    chain, gateway = chain
    rng = np.random.default_rng(8)
    hop = np.where(chain.hops, rng.uniform(size=(2, *chain.hops.shape)), 0.0).astype(np.float32)
    others = at_others(chain.active, chain.gateway)
    move = np.where(others, rng.uniform(size=(2, *others.shape)), 0.0).astype(np.float32)
    sent, received = np.zeros(chain.hops.shape), np.zeros(chain.hops.shape)
    for case in np.ndindex(gateway.shape):
        own = gateway[case]
        for node in np.flatnonzero(chain.hops[:, *case]):
            end = next_node(chain.members[:, *case], node, own)
            forward, backward = hop[:, node, *case]
            sent[node, *case] += forward
            received[end, *case] += forward
            sent[end, *case] += backward
            received[node, *case] += backward
        for place in range(1, NODES):
            collect, distribute = move[:, place - 1, *case]
            node = 0 if place == own else place
            sent[node, *case] += collect
            received[own, *case] += collect
            sent[own, *case] += distribute
            received[node, *case] += distribute
    messages = hop, move, chain
    np.testing.assert_allclose(sum_by_sender(*messages), sent, rtol=1e-6)
    np.testing.assert_allclose(sum_by_receiver(*messages), received, rtol=1e-6)


def test_a_number_of_each_sender_is_given_to_all_that_it_sends(chain):
    chain, gateway = chain
    numbers = np.random.default_rng(9).uniform(size=chain.members.shape).astype(np.float32)
    spread = at_senders(numbers, chain)
    count = at_senders(np.ones(numbers.shape), chain)
    hop = np.where(chain.hops, spread.hop, 0.0)
    hops = np.where(chain.hops, count.hop, 0.0)
    total = sum_by_sender(hop, spread.move, chain)
    messages = sum_by_sender(hops, count.move, chain)
    np.testing.assert_allclose(total, numbers * messages, rtol=1e-6)
    of_gateways = np.take_along_axis(numbers, gateway[None], axis=0)[0]
    np.testing.assert_array_equal(spread.uplink, of_gateways)
