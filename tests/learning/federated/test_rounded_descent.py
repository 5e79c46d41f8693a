"""Descents with rounded updates on quadratics of known constants, against docs/theory.md."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from collapipe_jax.edge.cost.convergence import (
    DescentSettings,
    Learning,
    local_steps_bound,
    longest_step,
    one_step_bound,
)
from collapipe_jax.learning.federated.quantisation import GROUP, round_numbers, rounding_variance

pytestmark = pytest.mark.usefixtures("x64")

WEIGHTS = np.array([0.4, 0.3, 0.2, 0.1])
SMOOTHNESS, ROUNDS, REPEATS, SPREAD = 2.0, 60, 8, 0.05
OPTIMA = np.random.default_rng(7).normal(size=(4, GROUP))
OPTIMA -= WEIGHTS @ OPTIMA  # that of the mean is the origin
START = np.full(GROUP, 0.3)
HETEROGENEITY = SMOOTHNESS**2 * (OPTIMA**2).sum(1).max()


def settings(step_size, batch=1):
    learning = Learning(
        cluster_weight=jnp.asarray(WEIGHTS),
        gradient_variance=jnp.asarray(GROUP * SPREAD**2),
        gradient_heterogeneity=jnp.asarray(HETEROGENEITY),
    )
    descent = DescentSettings(
        smoothness=jnp.asarray(SMOOTHNESS),
        start_gap=jnp.asarray(0.5 * SMOOTHNESS * (START**2).sum()),
        step_size=jnp.asarray(step_size),
        rounds=jnp.asarray(ROUNDS),
        batch=jnp.asarray(batch),
        micro_batches=jnp.ones(4, int),
        loss_probability=jnp.zeros(4),
    )
    return learning, descent


@functools.partial(jax.jit, static_argnums=1)
def mean_squared_gradient(step_size, local_steps, levels):
    """Of the clusters' mean over all local steps, without residuals; one number a repeat."""

    def descend(key):
        def one_round(start, key):
            copies, total = jnp.broadcast_to(start, OPTIMA.shape), 0.0
            *step_keys, rounding_key = jax.random.split(key, local_steps + 1)
            for step_key in step_keys:
                mean = jnp.tensordot(WEIGHTS, copies, 1)
                total = total + (SMOOTHNESS**2 * mean**2).sum()
                noise = SPREAD * jax.random.normal(step_key, OPTIMA.shape)
                copies = copies - step_size * (SMOOTHNESS * (copies - OPTIMA) + noise)
            keys = jax.random.split(rounding_key, 4)
            updates = copies - start[None]
            sent = jax.vmap(round_numbers, in_axes=(0, None, 0))(updates, levels, keys)
            return start + jnp.tensordot(WEIGHTS, sent, 1), total / local_steps

        return jax.lax.scan(one_round, jnp.asarray(START), jax.random.split(key, ROUNDS))[1].mean()

    return jax.vmap(descend)(jax.random.split(jax.random.key(0), REPEATS))


@pytest.mark.parametrize(
    ("local_steps", "step_size", "levels"),
    [
        (1, 0.08, 1.0),
        pytest.param(4, 0.02, 7.0, marks=pytest.mark.slow),
        pytest.param(1, 0.02, 1.0, marks=pytest.mark.slow),
        pytest.param(1, 0.3, 7.0, marks=pytest.mark.slow),
        pytest.param(8, 0.01, 7.0, marks=pytest.mark.slow),
    ],
)
def test_rounded_descents_are_below_their_bound(local_steps, step_size, levels):
    learning, descent = settings(step_size)
    variance = rounding_variance(levels)
    found = np.asarray(mean_squared_gradient(step_size, local_steps, levels))
    bound = local_steps_bound(learning, descent, local_steps, 0.0, variance)
    if local_steps == 1:
        bound = one_step_bound(learning, descent, 0.0, variance)
    assert found.mean() + 2.0 * found.std() / np.sqrt(REPEATS) <= bound < np.inf


def test_without_the_variance_of_rounding_the_bound_breaks():
    """At a step that the bound without rounding allows, and few levels."""
    learning, descent = settings(0.4)
    assert longest_step(learning, descent) > 0.4
    assert mean_squared_gradient(0.4, 1, 1.0).mean() > one_step_bound(learning, descent)
    assert one_step_bound(learning, descent, 0.0, rounding_variance(1.0)) == np.inf
