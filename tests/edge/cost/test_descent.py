"""Rounds for a unit of descent against the least over steps, docs/theory.md (T32)-(T34)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from collapipe_jax.edge.cost.convergence import (
    DescentSettings,
    Learning,
    assured_step,
    cluster_divergence,
    descent_rounds,
    longest_step,
    one_step_bound,
)

pytestmark = pytest.mark.usefixtures("x64")
STEPS = np.geomspace(1e-6, 1.0, 400_001)
BATCH = 16


def rounds(divergence, target=1.0, bias=0.0, longest=1.0, reference=1.0):
    given = np.broadcast_arrays(divergence, target, bias, longest)
    return np.asarray(descent_rounds(*map(jnp.asarray, given), reference))


def least_rounds(divergence, room, longest):
    """Least over steps of the rounds in which the bound falls to some room, times 1 / (2 D L)."""
    steps = longest * STEPS
    left = room - steps * divergence
    return np.min(1.0 / (steps[left > 0] * left[left > 0]))


@pytest.mark.parametrize("reference", [1.0, 0.05])
def test_the_closed_form_is_the_least_over_all_steps(reference):
    rng = np.random.default_rng(0)
    regimes = set()
    for _ in range(40):
        target, longest = rng.uniform(0.1, 3.0), reference * rng.uniform(0.3, 1.0)
        divergence, bias = target * rng.uniform(0.05, 3.0), reference * target * rng.uniform(0, 0.9)
        room = reference * target - bias
        expected = least_rounds(divergence, room, longest)
        expected /= least_rounds(target, reference * target, reference)
        found = rounds(divergence, target, bias, longest, reference)
        np.testing.assert_allclose(found, expected, 1e-7)
        regimes.add(bool(room > 2.0 * longest * divergence))
    assert regimes == {True, False}


def random_case(rng):
    weight, loss = rng.dirichlet(np.ones(3)), rng.uniform(0, 0.9, 3)
    counts = rng.choice([1, 2, 8], 3)
    learning = Learning(
        cluster_weight=jnp.asarray(weight),
        gradient_variance=jnp.asarray(rng.uniform(0.1, 5.0)),
        gradient_heterogeneity=jnp.asarray(rng.uniform(0.0, 1.0)),
    )
    descent = DescentSettings(
        smoothness=jnp.asarray(2.0),
        start_gap=jnp.asarray(1.5),
        step_size=jnp.asarray(0.1),
        rounds=jnp.asarray(10),
        batch=jnp.asarray(BATCH),
        micro_batches=jnp.asarray(counts),
        loss_probability=jnp.asarray(loss),
    )
    alone = cluster_divergence(
        learning, jnp.asarray(weight), jnp.asarray(BATCH), descent.micro_batches
    )
    return learning, descent, jnp.sum(alone.at(-jnp.log1p(-loss)))


def test_after_so_many_rounds_the_bound_itself_is_at_its_aim():
    """(18) at the step and the rounds of the closed form, and above it at other steps."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        learning, descent, divergence = random_case(rng)
        longest, target = longest_step(learning, descent), divergence * rng.uniform(0.3, 4.0)
        count = 8.0 * 1.5 * 2.0 / target * rounds(divergence, target, longest=2.0 * longest)
        assert least_bound(STEPS[::100] * longest, learning, descent, count) == (
            pytest.approx(float(target), rel=1e-5)
        )


@jax.jit
def least_bound(steps, learning, descent, count):
    """Least of (18) over steps, after a number of rounds that need not be whole."""

    def bound(step):
        return one_step_bound(learning, descent.replace(step_size=step, rounds=count))

    return jnp.min(jax.vmap(bound)(steps))


def test_an_assured_step_is_one_that_the_bound_allows():
    """It is the longest one where every mini-batch is one micro-batch."""
    rng = np.random.default_rng(2)
    for _ in range(50):
        learning, descent, divergence = random_case(rng)
        sizes = learning.gradient_variance, learning.gradient_heterogeneity, BATCH
        longest = 2.0 * longest_step(learning, descent)
        assert assured_step(*sizes, divergence) <= longest
        lossless = jnp.sum(learning.cluster_weight**2) * learning.gradient_variance / BATCH
        assert assured_step(*sizes, divergence - lossless) <= longest * (1 + 1e-12)


def test_at_the_target_a_round_is_a_unit_and_noise_counts_in_proportion():
    np.testing.assert_allclose(rounds([0.5, 0.8, 1.0, 7.0]), [0.5, 0.8, 1.0, 7.0], 1e-12)
    assert rounds(0.0) == pytest.approx(0.25)  # nothing but the longest step counts
    assert rounds(0.25) == pytest.approx(1.0 / 3.0)


def test_more_noise_bias_or_shorter_steps_never_take_fewer_rounds():
    rising = np.linspace(0.0, 4.0, 401)
    assert np.all(np.diff(rounds(rising)) > 0)
    assert np.all(np.diff(rounds(np.full(99, 0.3), 1.0, np.linspace(0, 0.98, 99))) > 0)
    assert np.all(np.diff(rounds(np.full(99, 0.3), 1.0, 0.0, np.linspace(1.0, 0.01, 99))) >= 0)


def test_what_no_step_reaches_takes_for_ever():
    assert np.isposinf(rounds([0.5, 0.5, np.inf], 1.0, np.array([1.0, 2.0, 0.0]))).all()
    assert np.isposinf(rounds(np.inf, longest=0.0))  # as that of an infinite divergence is
