"""(19) against (17), its tangent, and its slopes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compiled import in_numpy

from collapipe_jax.edge.cost import convergence
from collapipe_jax.edge.cost.convergence import Learning, cluster_divergence, local_steps_drift
from collapipe_jax.edge.network import channel

excess_inverse_survival = in_numpy(convergence.excess_inverse_survival)
inverse_survival_slope = in_numpy(convergence.inverse_survival_slope)
lossless_divergence = in_numpy(convergence.lossless_divergence)
participating_weight = in_numpy(convergence.participating_weight)
loss_probability = in_numpy(channel.loss_probability)
survival_slopes = in_numpy(jax.vmap(jax.grad(convergence.excess_inverse_survival)))
WEIGHT = [0.5, 0.3, 0.2]


def make_learning(variance=3.7, heterogeneity=0.9):
    return Learning(
        cluster_weight=np.array(WEIGHT),
        gradient_variance=np.asarray(variance),
        gradient_heterogeneity=np.asarray(heterogeneity),
    )


@in_numpy
def of_one(learning, hazard, micro_batches, batch):
    """Divergence of clusters that are alone in their round, ``[N]``."""
    each = cluster_divergence(learning, jnp.ones(len(hazard)), jnp.asarray(batch), micro_batches)
    return each.at(hazard)


@in_numpy
def of_round(learning, hazard, participates, micro_batches, batch=24):
    """Divergence of a round."""
    weight = participating_weight(learning.cluster_weight, participates)
    terms = cluster_divergence(learning, weight, jnp.asarray(batch), micro_batches)
    return jnp.sum(terms.at(hazard))


@pytest.mark.usefixtures("x64")
def test_the_two_forms_of_the_divergence_agree():
    hazard = np.array([0.0, 1e-3, 0.4, 3.0])
    micro_batches, batch = np.array([2, 3, 6, 12]), 24
    lost = loss_probability(hazard)
    erased = lost / (micro_batches * (1 - lost))
    expected = 3.7 / (batch * (1 - lost)) + 2 * 0.9 * erased
    got = of_one(make_learning(), hazard, micro_batches, batch)
    np.testing.assert_allclose(got, expected, 1e-12)


@pytest.mark.usefixtures("x64")
def test_the_variance_of_the_reweighted_gradient_by_drawing_erasures():
    """(17): survivors over the expected number of survivors is unbiased, with this variance."""
    rng = np.random.default_rng(0)
    count, samples, lost, mean, sigma = 4, 3, 0.35, 1.7, 0.8
    gradient = rng.normal(mean, sigma / np.sqrt(samples), (400_000, count))
    survives = rng.random(gradient.shape) > lost
    estimate = np.sum(gradient * survives, axis=1) / (count * (1 - lost))
    hazard = np.array([-np.log1p(-lost)])
    # Half the heterogeneity of (19) is the squared mean gradient of (17).
    learning = make_learning(sigma**2, mean**2 / 2)
    expected = of_one(learning, hazard, np.array([count]), count * samples)
    assert estimate.mean() == pytest.approx(mean, rel=5e-3)
    assert estimate.var() == pytest.approx(float(expected[0]), rel=1e-2)


@pytest.mark.usefixtures("x64")
def test_beyond_fifty_the_tangent_goes_on():
    assert excess_inverse_survival(np.float64(49.0)) == pytest.approx(np.expm1(49.0), rel=1e-14)
    hazard = np.array([50.0, 51.0, 60.0, 1e4])
    expected = np.exp(50.0) * (hazard - 49) - 1
    np.testing.assert_allclose(excess_inverse_survival(hazard), expected, 1e-13)


@pytest.mark.usefixtures("x64")
def test_continuous_convex_and_increasing_across_the_joint():
    hazard = np.linspace(45, 55, 401)
    slopes = survival_slopes(hazard)
    assert np.all(np.diff(slopes) >= 0)
    # away from the joint itself, where autodiff may split the tie of minimum and maximum
    around = survival_slopes(np.array([50 - 1e-9, 50 + 1e-9]))
    np.testing.assert_allclose(around, np.exp(50.0), 1e-8)
    assert survival_slopes(np.array([50.0]))[0] == pytest.approx(np.exp(50.0), rel=1e-12)


def test_small_hazards_keep_their_digits_and_large_ones_their_slopes():
    assert excess_inverse_survival(np.float32(1e-9)) == pytest.approx(1e-9)
    slopes = survival_slopes(np.array([0.0, 1e-6, 30.0, 80.0, 1e10]))
    assert np.all(np.isfinite(slopes))
    assert np.all(slopes > 0)


def test_fewer_larger_micro_batches_diverge_more():
    learning = make_learning()
    values = [of_one(learning, np.array([0.7]), np.array([m]), 24) for m in (2, 3, 6)]
    assert np.all(np.diff(np.ravel(values)) < 0)
    even = make_learning(heterogeneity=0.0)  # without heterogeneity the number is all one
    values = [of_one(even, np.array([0.7]), np.array([m]), 24) for m in (2, 3, 6)]
    assert np.all(np.diff(np.ravel(values)) == 0)


def test_weights_of_those_that_take_part_sum_to_one():
    got = participating_weight(np.array(WEIGHT), np.array([True, False, True]))
    np.testing.assert_allclose(got, [5 / 7, 0, 2 / 7], 1e-6)
    assert not participating_weight(np.array(WEIGHT), np.zeros(3, bool)).any()


def test_the_round_weighs_by_squares_and_skips_those_that_sit_out():
    learning = make_learning()
    participates, micro_batches = np.array([True, False, True]), np.array([2, 3, 4])
    hazard = np.array([0.3, 1e4, 0.9])
    each = of_one(learning, hazard, micro_batches, 24)
    got = of_round(learning, hazard, participates, micro_batches)
    assert got == pytest.approx(float(25 * each[0] + 4 * each[2]) / 49)
    slope = jax.jit(jax.grad(of_round, 1))(learning, hazard, participates, micro_batches)
    alone = jax.jit(jax.grad(lambda hazard: jnp.sum(of_one(learning, hazard, micro_batches, 24))))
    np.testing.assert_allclose(slope, np.array([25, 0, 4]) / 49 * alone(hazard), 1e-6)


def test_the_floor_is_the_divergence_without_losses():
    learning, everyone, micro_batches = make_learning(), np.ones(3, bool), np.array([2, 3, 4])
    floor = lossless_divergence(learning, np.asarray(24), everyone)
    assert floor == pytest.approx(0.38 * 3.7 / 24, rel=1e-6)
    got = of_round(learning, np.zeros(3), everyone, micro_batches)
    assert got == pytest.approx(float(floor), rel=1e-6)
    one_out = np.array([True, True, False])
    floor = lossless_divergence(learning, np.asarray(24), one_out)
    got = of_round(learning, np.zeros(3), one_out, micro_batches)
    assert got == pytest.approx(float(floor), rel=1e-6)


@pytest.mark.usefixtures("x64")
def test_the_slope_of_the_inverse_survival_follows_from_its_value():
    hazard = np.array([0.0, 1e-6, 0.3, 20.0, 49.0, 51.0, 1e4])
    slope = inverse_survival_slope(excess_inverse_survival(hazard))
    expected = survival_slopes(hazard)
    np.testing.assert_allclose(slope, expected, 1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("participates", np.array([[1, 1, 1], [1, 0, 1]], bool))
def test_drift_adds_what_clusters_carry_along(participates):
    """docs/theory.md (T14), written out."""
    step, steps, hazard, batch = 0.01, 5, np.array([0.1, 0.5, 0.0]), 24
    counts = np.array([2, 3, 4])
    learning = make_learning().replace(drift=local_steps_drift(step, steps, 0.9))
    got = of_round(learning, hazard, participates, counts, batch)
    weight = np.where(participates, WEIGHT, 0.0) / np.where(participates, WEIGHT, 0.0).sum()
    lost = 1 - np.exp(-hazard)
    noise = 3.7 / (batch * (1 - lost)) + 3 * 0.9 * lost / (counts * (1 - lost))
    theta = 1.5 * step * (steps - 1)
    expected = ((weight**2 + theta * weight * (1 - weight)) * noise).sum()
    expected += step * (steps - 1) * (2 * steps - 1) * 0.9
    np.testing.assert_allclose(got, expected, 1e-12)
    assert not of_round(learning, hazard, np.zeros(3, bool), counts, batch)


def test_one_local_step_drifts_nowhere():
    learning = make_learning(heterogeneity=0.0)
    drifting = learning.replace(drift=local_steps_drift(0.1, 1, 0.0))
    hazard, everyone, counts = np.array([0.4, 0.0, 1.3]), np.ones(3, bool), np.array([4, 2, 6])
    bounds = [of_round(one, hazard, everyone, counts) for one in (learning, drifting)]
    assert bounds[0] == bounds[1]


def test_the_two_bounds_may_order_decisions_differently():
    """As docs/theory.md says of unequal weights: the small cluster's loss weighs more."""
    learning = make_learning(heterogeneity=0.0)
    drifting = learning.replace(drift=local_steps_drift(0.02, 12, 0.0))

    def bound(learning, hazard):
        return float(of_round(learning, hazard, np.ones(3, bool), np.full(3, 4)))

    large, small = np.array([0.2, 0.0, 0.0]), np.array([0.0, 0.0, 0.7])
    assert bound(learning, large) > bound(learning, small)
    assert bound(drifting, large) < bound(drifting, small)
