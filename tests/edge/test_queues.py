import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collapipe_jax.edge.cost.problem import Control
from collapipe_jax.edge.queues import Queues, empty_queues, update_queues

BUDGET_J = np.array([[2.0, 0.5, 4.0], [1.0, 8.0, 0.25]])
TARGET = 0.7
ROUNDS = 12


def control():
    return Control(
        v=jnp.ones(()),
        reference_latency_s=jnp.ones(()),
        energy_budget_j=jnp.asarray(BUDGET_J),
        energy_queue=jnp.zeros((2, 3)),
        divergence_target=jnp.asarray(TARGET),
        divergence_queue=jnp.zeros(()),
    )


@jax.jit
def run(queues, energy_j, divergence):
    def step(state, spent):
        state = update_queues(state, control(), *spent)
        return state, state

    return jax.lax.scan(step, queues, (energy_j, divergence))[1]


def spend(seed, scale):
    rng = np.random.default_rng(seed)
    energy_j = BUDGET_J * rng.exponential(scale, (ROUNDS, 2, 3))
    return energy_j, TARGET * rng.exponential(scale, ROUNDS)


def test_empty_queues():
    queues = empty_queues(2, 3)
    assert queues.energy.shape == (2, 3)
    assert queues.divergence.shape == ()
    assert not np.any(queues.energy)
    assert not queues.divergence


@given(st.integers(0, 10_000), st.sampled_from([0.3, 1.0, 3.0]))
def test_the_recursion_element_by_element(seed, scale):
    energy_j, divergence = spend(seed, scale)
    history = run(empty_queues(2, 3), energy_j, divergence)
    q, z = np.zeros((2, 3)), 0.0
    for t in range(ROUNDS):
        q = np.maximum(q + energy_j[t] / BUDGET_J - 1, 0)
        z = max(z + divergence[t] / TARGET - 1, 0)
        np.testing.assert_allclose(history.energy[t], q, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(history.divergence[t], z, rtol=1e-4, atol=1e-5)


@given(st.integers(0, 10_000), st.floats(0, 5))
def test_what_was_spent_is_the_budget_and_the_backlog_at_most(seed, start):
    """Sample-path inequality: mean E <= budget (1 + (q_R - q_0) / R)."""
    energy_j, divergence = spend(seed, 1.2)
    first = Queues(jnp.full((2, 3), start), jnp.asarray(start))
    history = run(first, energy_j, divergence)
    growth = (np.asarray(history.energy[-1], float) - start) / ROUNDS
    assert np.all(energy_j.mean(0) / BUDGET_J <= 1 + growth + 1e-5)
    z_growth = (float(history.divergence[-1]) - start) / ROUNDS
    assert divergence.mean() / TARGET <= 1 + z_growth + 1e-5


def test_it_is_an_equality_while_no_queue_runs_empty():
    energy_j, divergence = spend(5, 1.0)
    history = run(Queues(jnp.full((2, 3), 50.0), jnp.asarray(50.0)), energy_j, divergence)
    growth = (np.asarray(history.energy[-1]) - 50.0) / ROUNDS
    np.testing.assert_allclose(energy_j.mean(0) / BUDGET_J, 1 + growth, atol=1e-4)


def test_spending_exactly_the_budget_leaves_a_backlog_as_it_is():
    same = update_queues(
        Queues(jnp.full((2, 3), 3.0), jnp.asarray(2.0)), control(), jnp.asarray(BUDGET_J), TARGET
    )
    np.testing.assert_allclose(same.energy, 3.0)
    assert float(same.divergence) == pytest.approx(2.0)
