"""Fading is Gauss-Markov and Rician, and its law stays."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from collapipe_jax.edge.network.channel import fading_power, sample_fading, step_fading

CLUSTERS, NODES = 3, 4


@jax.jit
@jax.vmap
def fading_of(key):
    return sample_fading(key, CLUSTERS, NODES)


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, 0, None))
def next_fading(key, state, rho):
    return step_fading(key, state, rho)


@functools.cache
def fading_of_rounds(rho, realisations=2000):
    """Four rounds in a row of many realisations."""
    first, *later = jax.random.split(jax.random.key(2), (4, realisations))
    states = [fading_of(first)]
    for keys in later:
        states.append(next_fading(keys, states[-1], rho))
    return jax.tree.map(np.asarray, states)


@pytest.mark.parametrize("rho", [0.0, 0.7])
def test_the_field_stays_unit_power_complex_normal(rho):
    for state in fading_of_rounds(rho):
        parts = state.d2e.reshape(-1, 2)
        np.testing.assert_allclose(parts.mean(axis=0), 0, atol=0.02)
        np.testing.assert_allclose(np.cov(parts.T), 0.5 * np.eye(2), atol=0.02)
        power = fading_power(jnp.array(parts), 0.0)
        assert np.mean(np.asarray(power) > 1) == pytest.approx(np.exp(-1), abs=0.01)  # Exp(1)


def test_correlation_over_rounds_is_geometric():
    rho = 0.7
    states = fading_of_rounds(rho)
    for lag in (1, 2, 3):
        a, b = (state.d2e.reshape(2000, -1) for state in (states[0], states[lag]))
        measured = np.mean(a * b) / np.mean(a * a)
        assert measured == pytest.approx(rho**lag, abs=0.02)


def test_the_field_between_nodes_is_reciprocal_in_every_round():
    for state in fading_of_rounds(0.7):
        assert state.node.shape == (2000, 12, 12, 2)
        np.testing.assert_allclose(state.node, state.node.swapaxes(1, 2), rtol=1e-5, atol=1e-6)
        links = state.node[0][np.triu_indices(12)]
        assert len(np.unique(links)) == 2 * 78  # nothing else is equal


def test_correlation_one_freezes_and_zero_forgets():
    old, new = jax.random.split(jax.random.key(0), (2, 2000))
    state = fading_of(old)
    np.testing.assert_array_equal(next_fading(new, state, 1.0).d2e, state.d2e)
    np.testing.assert_allclose(next_fading(new, state, 0.0).node, fading_of(new).node, 1e-6)


@pytest.mark.parametrize("factor", [0.0, 0.5, 4.0, 30.0])
def test_rician_power_has_mean_one_and_the_variance_of_its_factor(factor):
    field = jax.random.normal(jax.random.key(3), (200_000, 2)) * np.sqrt(0.5)
    power = np.asarray(fading_power(field, factor))
    assert power.mean() == pytest.approx(1, abs=0.01)
    assert power.var() == pytest.approx((1 + 2 * factor) / (1 + factor) ** 2, rel=0.02)
    assert power.min() >= 0
