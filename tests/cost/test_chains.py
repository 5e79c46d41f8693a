"""Neighbours along a chain of active nodes, and sums over few and many lanes."""

import numpy as np
import pytest
from collapipe_jax.cost.chains import (
    at_next_active,
    from_previous_active,
    gain_to_next,
    heard_w,
)

from collapipe_jax.allocation.smooth_maximum import add_up, largest


@pytest.fixture
def active():
    """Nodes of 4 clusters with 30 lanes, some idle."""
    active = np.random.default_rng(5).uniform(size=(5, 4, 30)) < 0.6
    active[0] = active[1:].any(axis=0)
    return active


def next_active(on, node):
    return next((k for k in range(node + 1, len(on)) if on[k]), 0)


def test_next_and_previous_active_nodes_against_a_loop(active):
    values = np.random.default_rng(6).normal(size=active.shape).astype(np.float32)
    following = np.asarray(at_next_active(values, active))
    previous = np.asarray(from_previous_active(values, active))
    for case in np.ndindex(active.shape[1:]):
        column, on = values[:, *case], active[:, *case]
        chain = np.flatnonzero(on)
        for node in range(5):
            assert following[node, *case] == column[next_active(on, node)]
        wanted = np.zeros(5)
        wanted[chain] = column[np.roll(chain, 1)]
        np.testing.assert_array_equal(previous[:, *case], wanted)


@pytest.mark.parametrize("shared", [False, True])
def test_gains_to_the_next_active_node_against_a_loop(shared, active, lanes_last):
    """Of every cluster's own gains, and of the same gains for all along an axis before."""
    gain = np.random.default_rng(7).uniform(size=(5, 5, *active.shape[2 if shared else 1 :]))
    found = np.asarray(gain_to_next(gain.astype(np.float32), active))
    for case in np.ndindex(active.shape[1:]):
        of_case = gain[:, :, *(case[1:] if shared else case)].astype(np.float32)
        for node in range(5):
            assert found[node, *case] == of_case[node, next_active(active[:, *case], node)]


@pytest.mark.parametrize("lanes", [1, 40])
def test_sums_are_the_same_over_few_and_many_lanes(lanes):
    rng = np.random.default_rng(8)
    values = rng.uniform(size=(6, 3, lanes)).astype(np.float32)
    np.testing.assert_allclose(add_up(values), values.sum(0), rtol=1e-6)
    np.testing.assert_array_equal(largest(values), values.max(0))
    gain = rng.uniform(size=(4, 3, 4, 3, lanes)).astype(np.float32)
    power = rng.uniform(size=(4, 3, lanes)).astype(np.float32)
    wanted = np.einsum("inr,injmr->jmr", power, gain)
    np.testing.assert_allclose(heard_w(gain, power), wanted, rtol=1e-6)
