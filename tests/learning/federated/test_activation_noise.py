"""Noise on activations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from collapipe_jax.learning.federated.pipeline_learner import with_noise

X = 3.0 * jax.random.normal(jax.random.key(1), (100, 5, 16)) + 1.0
KEYS = jax.random.split(jax.random.key(2), len(X))


def test_noise_has_its_size_at_every_position():
    scaled = X * jnp.arange(1.0, 6.0)[None, :, None]
    noise = with_noise(scaled, KEYS, 0.5) - scaled
    size = jnp.sqrt(jnp.mean(scaled**2, axis=-1, keepdims=True))
    np.testing.assert_allclose(jnp.std(noise / size, axis=(0, 2)), 0.5, rtol=0.05)
    assert float(jnp.mean(noise / size)) == pytest.approx(0.0, abs=0.02)


def test_a_draw_depends_on_its_example_alone():
    expected = with_noise(X, KEYS, 0.5)[10:20]
    np.testing.assert_allclose(with_noise(X[10:20], KEYS[10:20], 0.5), expected, 1e-5, 1e-5)


def test_no_noise_changes_nothing_and_its_size_has_no_gradient():
    np.testing.assert_array_equal(with_noise(X, KEYS, 0.0), X)
    slope = jax.grad(lambda x: with_noise(x, KEYS, 2.0).sum())(X)
    np.testing.assert_array_equal(slope, jnp.ones_like(X))
