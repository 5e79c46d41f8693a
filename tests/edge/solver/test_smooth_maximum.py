"""Weighted power means: never above the maximum, their parts are better weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compiled import in_numpy
from support.random_allocations import sum_to_one

from collapipe_jax.edge.solver import smooth_maximum
from collapipe_jax.edge.solver.smooth_maximum import PowerMean, Weights

floored = in_numpy(smooth_maximum.floored, static_argnums=1)
mean_slope = in_numpy(smooth_maximum.mean_slope)
power_mean = in_numpy(smooth_maximum.power_mean, static_argnums=2)
to_inverse = in_numpy(smooth_maximum.to_inverse, static_argnums=1)

pytestmark = pytest.mark.usefixtures("x64", "batch_axis_last")


@pytest.mark.parametrize("temperature", [0.1, 0.5, 0.3])
def test_powers_by_products_are_those_by_logarithms(temperature):
    ratio = np.array([0.0, 1e-3, 0.3, 0.9, 1.0])
    np.testing.assert_allclose(
        to_inverse(ratio, temperature), ratio ** (1 / temperature), rtol=1e-12, atol=1e-30
    )


@pytest.mark.parametrize("temperature", [0.01, 0.1, 0.3])
@pytest.mark.parametrize("batch", [1, 30])
def test_a_mean_is_its_formula_and_at_most_the_maximum(temperature, batch):
    rng = np.random.default_rng(0)
    values = rng.uniform(0.5, 2.0, (5, 3, batch))
    weights = sum_to_one(rng, values.shape)
    mean = power_mean(values, weights, temperature)
    powers = weights * values ** (1 / temperature)
    np.testing.assert_allclose(mean.value, powers.sum(axis=0) ** temperature, rtol=1e-12)
    np.testing.assert_allclose(mean.part, powers / powers.sum(axis=0), rtol=1e-10)
    assert np.all(mean.value <= values.max(axis=0) * (1 + 1e-12))


def test_a_mean_of_nothing_is_nothing():
    mean = power_mean(np.zeros((4, 2)), np.full((4, 2), 0.25), 0.1)
    np.testing.assert_array_equal(mean.value, 0.0)
    np.testing.assert_allclose(mean.part.sum(axis=0), 1.0)


@pytest.mark.parametrize("temperature", [0.1, 0.3])
def test_the_slope_of_a_mean_is_its_derivative(temperature):
    rng = np.random.default_rng(1)
    values, weights = rng.uniform(0.5, 2.0, (5, 3)), sum_to_one(rng, (5, 3))
    mean = power_mean(values, weights, temperature)
    wanted = jax.jit(jax.grad(lambda v: jnp.sum(power_mean(v, weights, temperature).value)))(values)
    # Of a constant top the derivative is that of the ratios, which cancel it.
    np.testing.assert_allclose(mean_slope(mean.value, mean.part, values), wanted, rtol=1e-10)


@pytest.mark.parametrize("temperature", [0.1, 0.3])
def test_a_mean_of_two_is_that_of_an_axis_of_two(temperature):
    rng = np.random.default_rng(2)
    first, second = rng.uniform(0.5, 2.0, (2, 6, 7))
    weight = rng.uniform(size=(6, 7))
    nothing = np.zeros(1)
    weights = Weights(nothing, nothing, nothing, weight, nothing, nothing)
    pair = jax.jit(lambda weights, *both: PowerMean(weights, temperature).pair("hop", *both))
    got = pair(weights, first, second)
    wanted = power_mean(np.stack([first, second]), np.stack([weight, 1 - weight]), temperature)
    np.testing.assert_allclose(got.value, wanted.value, rtol=1e-12)
    np.testing.assert_allclose(got.part, wanted.part[0], rtol=1e-12)
    assert np.any(first > second)
    assert np.any(first < second)


def test_parts_are_better_weights_until_they_gather_on_the_maximum():
    rng = np.random.default_rng(3)
    values = rng.uniform(0.5, 2.0, (5, 40))
    weights, last = np.full((5, 40), 0.2), 0.0
    for _ in range(300):
        mean = power_mean(values, weights, 0.1)
        assert np.all(mean.value >= last * (1 - 1e-5))
        last, weights = mean.value, floored(mean.part, 5)
        np.testing.assert_allclose(weights.sum(axis=0), 1.0)
        assert np.all(weights > 0)
    np.testing.assert_allclose(mean.value, values.max(axis=0), rtol=1e-5)
