"""The convergence bounds against docs/system-model.md (18)-(19), and against each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collapipe_jax.edge.cost.convergence import (
    DescentSettings,
    Learning,
    absence_bias,
    cluster_divergence,
    erasure_noise,
    gradient_noise,
    local_steps_bound,
    local_steps_drift,
    longest_step,
    momentum_bound,
    one_step_bound,
    privacy_noise,
)

WEIGHT = np.array([0.5, 0.3, 0.2])
LOSS = np.array([0.1, 0.4, 0.0])
MICRO_BATCHES = np.array([4, 8, 2])
BATCH = 16
EVERYONE = jnp.ones(3, bool)

pytestmark = pytest.mark.usefixtures("x64")


def make_learning(variance=5.0, heterogeneity=0.7, weight=WEIGHT):
    return Learning(
        cluster_weight=jnp.asarray(weight),
        gradient_variance=jnp.asarray(variance),
        gradient_heterogeneity=jnp.asarray(heterogeneity),
    )


def make_descent(
    loss=LOSS, counts=MICRO_BATCHES, step_size=0.01, rounds=300, smoothness=2.0, start_gap=1.5
):
    return DescentSettings(
        smoothness=jnp.asarray(smoothness),
        start_gap=jnp.asarray(start_gap),
        step_size=jnp.asarray(step_size),
        rounds=jnp.asarray(rounds),
        batch=jnp.asarray(BATCH),
        micro_batches=jnp.asarray(counts),
        loss_probability=jnp.asarray(loss),
    )


def one_step(loss=LOSS, counts=MICRO_BATCHES, learning=None, **descent):
    return one_step_bound(learning or make_learning(), make_descent(loss, counts, **descent))


def several(local_steps, loss=LOSS, counts=MICRO_BATCHES, learning=None, **descent):
    descent = make_descent(loss, counts, **descent)
    return local_steps_bound(learning or make_learning(), descent, local_steps)


def momentum(beta, loss=LOSS, counts=MICRO_BATCHES, **descent):
    return momentum_bound(make_learning(), make_descent(loss, counts, **descent), beta)


def test_one_step_is_18_written_out():
    erased = [p / (m * (1 - p)) for p, m in zip(LOSS, MICRO_BATCHES, strict=True)]
    gamma = sum(
        w**2 * (5.0 / (BATCH * (1 - p)) + 2 * 0.7 * a)
        for w, p, a in zip(WEIGHT, LOSS, erased, strict=True)
    )
    np.testing.assert_allclose(erasure_noise(make_descent()), erased, 1e-14)
    assert one_step() == pytest.approx(2 * 1.5 / (0.01 * 300) + 2.0 * 0.01 * gamma, rel=1e-12)
    longest = longest_step(make_learning(), make_descent())
    r = 2 * sum(w**2 * a for w, a in zip(WEIGHT, erased, strict=True))
    assert longest == pytest.approx(1 / (2.0 * (1 + r)), rel=1e-12)
    assert np.isfinite(one_step(step_size=longest))
    assert one_step(step_size=1.01 * longest) == np.inf


def test_the_divergence_of_the_decision_is_that_of_the_bound():
    """(19) by its hazards, as the solver takes it, against the bound's own sum."""
    noise = gradient_noise(make_learning(), make_descent(), 2.0)
    alone = cluster_divergence(
        make_learning(), jnp.ones(3), jnp.asarray(BATCH), jnp.asarray(MICRO_BATCHES)
    )
    decided = alone.at(-jnp.log1p(-LOSS))
    np.testing.assert_allclose(noise, decided, 1e-12)


def test_one_local_step_of_several_is_one_step_but_for_the_split_in_three():
    """Without losses nothing was split; without heterogeneity only gradients were."""
    nothing = np.zeros(3)
    assert several(1, nothing) == pytest.approx(float(one_step(nothing)), rel=1e-12)
    same = make_learning(heterogeneity=0.0)
    absorbed = 3 * 2.0 * 0.01 * np.sum(WEIGHT**2 * erasure_noise(make_descent()))
    expected = one_step(learning=same) / (1 - absorbed)
    assert several(1, learning=same) == pytest.approx(float(expected), rel=1e-12)
    assert several(1) >= one_step()


@pytest.mark.parametrize("local_steps", [2, 5, 16])
def test_without_losses_local_steps_are_as_local_sgd_is_known(local_steps):
    h, eta, smooth = local_steps, 0.01, 2.0
    sampled = 5.0 / BATCH
    drift = (eta * smooth) ** 2 * (h - 1) / (1 - 2 * (eta * smooth) ** 2 * h * (h - 1))
    expected = (
        2 * 1.5 / (eta * h * 300)
        + smooth * eta * sampled * np.sum(WEIGHT**2)
        + drift * (sampled * np.sum(WEIGHT * (1 - WEIGHT)) + 2 / 3 * (2 * h - 1) * 0.7)
    )
    assert several(h, np.zeros(3)) == pytest.approx(expected, rel=1e-12)


JITTED_ONE, JITTED_SEVERAL = jax.jit(one_step), jax.jit(several)
JITTED_MOMENTUM = jax.jit(lambda *case: momentum(*case, step_size=0.002))


@settings(max_examples=50)
@given(
    st.floats(0.0, 0.9),
    st.floats(0.0, 1.0),
    st.integers(0, 2),
    st.sampled_from([1, 2, 8]),
    st.floats(0.0, 0.8),
)
def test_more_losses_in_any_cluster_never_bound_tighter(loss, part, cluster, local_steps, beta):
    """And neither do larger micro-batches; a bound once infinite stays so."""
    less, fewer = LOSS.copy(), MICRO_BATCHES.copy()
    more = LOSS.copy()
    less[cluster], more[cluster] = loss * part, loss
    fewer[cluster] = 1
    for bound in (
        JITTED_ONE,
        lambda *case: JITTED_SEVERAL(local_steps, *case),
        lambda *case: JITTED_MOMENTUM(beta, *case),
    ):
        assert bound(less, MICRO_BATCHES) <= bound(more, MICRO_BATCHES) * (1 + 1e-12)
        assert bound(more, MICRO_BATCHES) <= bound(more, fewer) * (1 + 1e-12)


def test_steps_too_long_have_no_bound_and_short_ones_a_finite_one():
    for bound in (
        one_step,
        lambda **step: several(8, **step),
        lambda **step: momentum(0.5, **step),
    ):
        values = np.array([bound(step_size=eta) for eta in (1e-6, 1e-3, 1.0, 100.0)])
        assert np.isfinite(values[:2]).all()
        assert np.isposinf(values[2:]).all()
    assert several(8, step_size=0.5 / 2.0 / 4) == np.inf  # the drift itself does not close


def test_the_linear_form_that_decisions_see_is_never_below():
    """docs/theory.md: within its two conditions 3/4 of the bound is at most its linear form."""
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(100):
        h, smooth = int(rng.integers(2, 17)), 2.0
        relative = rng.uniform(0.1, 1.0) / (4 * h)
        loss = rng.uniform(0, 0.9, 3)
        counts = rng.choice([1, 2, 4, 8], 3)
        weight = rng.dirichlet(np.ones(3))
        if relative * np.max(erasure_noise(make_descent(loss, counts))) > 1 / 24:
            continue
        learning = make_learning(weight=weight).replace(drift=local_steps_drift(relative, h, 0.7))
        cluster = cluster_divergence(
            learning, jnp.asarray(weight), jnp.asarray(BATCH), jnp.asarray(counts)
        )
        floor = relative * jnp.sum(cluster.at(-jnp.log1p(-loss)))
        eta = relative / smooth
        linear = (2 * 1.5 / (eta * h * 300) + floor) / 0.75
        exact = several(h, loss, counts, make_learning(weight=weight), step_size=eta)
        ratios.append(float(exact / linear))
    assert len(ratios) > 25
    assert max(ratios) <= 1.0
    assert max(ratios) > 0.7  # and the form is not far off


def test_without_momentum_its_bound_is_that_of_one_step_less_what_it_absorbs():
    r = 2 * np.sum(WEIGHT**2 * erasure_noise(make_descent()))
    expected = one_step() / (1 - 2.0 * 0.01 * (1 + r))
    assert momentum(0.0) == pytest.approx(float(expected), rel=1e-12)


def test_momentum_is_a_longer_step():
    """In the limit of short steps, the two bounds with the same step in the end agree."""
    for beta in (0.3, 0.9):
        short = momentum(beta, step_size=1e-6 * (1 - beta), rounds=10**9)
        assert short == pytest.approx(float(one_step(step_size=1e-6, rounds=10**9)), rel=1e-3)
        assert momentum(beta, step_size=0.002 * (1 - beta)) >= one_step(step_size=0.002)


def test_absence_of_nobody_is_no_bias_and_of_most_no_more_than_heterogeneity():
    learning = make_learning()
    assert absence_bias(learning, EVERYONE) == 0.0
    assert absence_bias(learning, ~EVERYONE) == 0.7
    assert absence_bias(learning, jnp.array([True, True, False])) == pytest.approx(0.7 / 16)
    assert absence_bias(learning, jnp.array([False, True, False])) == 0.7


def test_the_bias_of_absence_bounds_that_of_any_gradients():
    """Against gradients drawn at random and, for equality, against the worst."""
    rng = np.random.default_rng(1)
    absent = np.array([False, False, True])
    left = np.where(absent, 0.0, WEIGHT) / WEIGHT[~absent].sum()
    worst = np.array([-0.25, -0.25, 1.0])[:, None]  # mean 0, the absent one farthest
    for gradients in (*rng.normal(size=(50, 3, 4)), worst):
        mean = WEIGHT @ gradients
        apart = np.max(np.sum((gradients - mean) ** 2, axis=1))
        squared = np.sum((left @ gradients - mean) ** 2)
        bias = float(absence_bias(make_learning(heterogeneity=apart), jnp.asarray(~absent)))
        assert squared <= bias * (1 + 1e-12)
    assert squared == pytest.approx(bias, rel=1e-12)


def test_vmap_over_realisations_equals_a_loop():
    rng = np.random.default_rng(2)
    losses, counts = rng.uniform(0, 0.6, (5, 3)), rng.choice([1, 4, 16], (5, 3))
    for bound in (one_step, lambda *case: several(4, *case), lambda *case: momentum(0.5, *case)):
        together = jax.jit(jax.vmap(bound))(losses, counts)
        each = [bound(*case) for case in zip(losses, counts, strict=True)]
        np.testing.assert_allclose(together, each, 1e-12)


@pytest.mark.parametrize("step_size", [0.004, pytest.param(0.3, marks=pytest.mark.slow), 5.0])
def test_gradients_are_finite_also_where_the_bound_is_not(step_size):
    bounds = (
        one_step,
        lambda loss, **step: several(4, loss, **step),
        lambda loss, **step: momentum(0.5, loss, **step),
    )
    for bound in bounds:
        slope = jax.grad(lambda loss, bound=bound: bound(loss, step_size=step_size))(
            jnp.asarray(LOSS)
        )
        assert np.isfinite(slope).all()
        if step_size == 0.004:
            assert np.all(slope > 0)
    slope = jax.grad(
        lambda weight: absence_bias(make_learning(weight=weight), (~EVERYONE).at[0].set(True))
    )(jnp.asarray(WEIGHT))
    assert np.isfinite(slope).all()


def test_drift_for_decisions_is_not_read():
    """The theorems bring their own."""
    learning = make_learning()
    drifting = learning.replace(drift=local_steps_drift(0.01, 4, 0.7))
    assert one_step(learning=drifting) == one_step(learning=learning)
    assert several(4, learning=drifting) == several(4, learning=learning)


@pytest.mark.parametrize("steps", [1, 4])
def test_noise_of_the_server_adds_its_term_and_none_adds_nothing(steps):
    """By hand where nothing is lost; no other term sees it."""
    learning, descent = make_learning(), make_descent(np.zeros(3), step_size=0.02)
    variance = 0.3

    def least(*noise):
        if steps == 1:
            return float(one_step_bound(learning, descent, *noise))
        return float(local_steps_bound(learning, descent, steps, *noise))

    assert least(0.0) == least()
    expected = 2.0 * variance / (0.02 * steps)  # L_s d s^2 / (eta H)
    assert least(variance) - least() == pytest.approx(expected, rel=1e-12)
    assert float(privacy_noise(descent, variance, steps)) == pytest.approx(expected, rel=1e-12)
