"""Rates by quadrature, the hazard in hundreds of digits, elasticities by differentiation."""

import math
from decimal import Decimal, getcontext

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from scipy.integrate import quad
from support.compiled import in_numpy
from support.random_networks import random_network
from support.structs import as_problem

from collapipe_jax.edge.network import channel
from collapipe_jax.edge.network.channel import LEAST_SNR_PER_W, RATE_LAWS

bit_time_s = in_numpy(channel.bit_time_s)
d2d_sinr = in_numpy(channel.d2d_sinr)
downlink_sinr = in_numpy(channel.downlink_sinr)
efficiency_elasticity = in_numpy(channel.efficiency_elasticity)
hazard_and_elasticity = in_numpy(channel.hazard_and_elasticity)
loss_probability = in_numpy(channel.loss_probability)
mean_log2_one_plus = in_numpy(channel.mean_log2_one_plus)
sinr_at_hazard = in_numpy(channel.sinr_at_hazard)
spectral_efficiency = in_numpy(channel.spectral_efficiency)
transport_block_hazard = in_numpy(channel.transport_block_hazard)
unlimited_efficiency = in_numpy(channel.unlimited_efficiency)
uplink_sinr = in_numpy(channel.uplink_sinr)

NETWORK = random_network(np.random.default_rng(7), 3, 4, 6)


def make_radio(**changes):
    radio = as_problem(NETWORK).radio
    return radio.replace(**{key: np.asarray(value) for key, value in changes.items()})


# --- (2)-(5) ---


@pytest.mark.usefixtures("x64")
def test_spectral_efficiency_has_a_gap_and_a_ceiling():
    radio = make_radio(snr_gap=2.0, max_spectral_efficiency=5.0)
    got = spectral_efficiency(np.array([0.0, 2.0, 6.0, 61.9, 62.1, 1e12]), radio)
    expected = [0, 1, 2, math.log2(1 + 30.95), 5, 5]
    np.testing.assert_allclose(got, expected, 1e-12)


def test_spectral_efficiency_is_linear_at_the_smallest_sinr():
    radio = make_radio(snr_gap=1.0)  # log2(1 + x) rounded first would give 0
    assert spectral_efficiency(np.float32(1e-9), radio) == pytest.approx(1e-9 / math.log(2))


@pytest.mark.usefixtures("x64")
def test_the_ergodic_rate_is_the_mean_over_rayleigh_fading():
    x = np.array([1e-4, 1e-2, 0.3, 0.999, 1.0, 1.001, 20.0, 1e3, 1e6])
    expected = [
        quad(lambda h, x=x: math.log2(1 + x * h) * math.exp(-h), 0, 1, epsabs=0, epsrel=1e-11)[0]
        + quad(lambda h, x=x: math.log2(1 + x * h) * math.exp(-h), 1, 60, epsabs=0, epsrel=1e-11)[0]
        for x in x
    ]
    np.testing.assert_allclose(mean_log2_one_plus(x), expected, 1e-9)


@pytest.mark.usefixtures("x64")
def test_the_ergodic_rate_lies_under_the_rate_of_the_mean():
    x = np.logspace(-6, 9, 61)
    ergodic = np.asarray(mean_log2_one_plus(x))
    assert np.all(np.diff(ergodic) > 0)
    assert np.all(ergodic < np.log1p(x) / np.log(2))  # Jensen
    apart = x > 1e-3  # Abramowitz and Stegun 5.1.20; below, both sides agree in all digits
    assert np.all((ergodic > 0.5 * np.log2(1 + 2 * x))[apart])


def test_the_ergodic_rate_has_finite_slopes_in_single_precision():
    x = np.logspace(-6, 9, 61)
    slopes = jax.jit(jax.vmap(jax.grad(mean_log2_one_plus)))(x)
    assert np.all(np.isfinite(slopes))
    assert np.all(slopes > 0)
    assert mean_log2_one_plus(0.0) == 0
    assert jax.jit(jax.grad(mean_log2_one_plus))(0.0) == 0


@pytest.mark.usefixtures("x64")
def test_the_rate_law_is_chosen_by_name():
    radio = make_radio().replace(rate_law="ergodic")
    x = np.array([0.7, 3.0])
    expected = mean_log2_one_plus(x / np.asarray(radio.snr_gap))
    np.testing.assert_allclose(spectral_efficiency(x, radio), expected, 1e-12)


@pytest.mark.usefixtures("x64")
def test_each_link_has_its_own_noise():
    radio = make_radio(
        d2d_bandwidth_hz=1e7,
        d2e_bandwidth_hz=3e7,
        node_noise_w_per_hz=2e-20,
        bs_noise_w_per_hz=5e-21,
        d2e_interference_w=7e-14,
        downlink_interference_w=9e-12,
        bs_power_w=11.0,
        snr_gap=1.0,
        max_spectral_efficiency=50.0,
    )
    gain, share, power = np.float64(3e-11), 0.25, 0.2
    d2d = d2d_sinr(radio, power, gain, share, 4e-13)
    up, down = uplink_sinr(radio, power, gain, share), downlink_sinr(radio, gain)
    assert d2d == pytest.approx(0.2 * 3e-11 / (0.25 * (2e-13 + 4e-13)))
    assert up == pytest.approx(0.2 * 3e-11 / (0.25 * (1.5e-13 + 7e-14)))
    assert down == pytest.approx(11 * 3e-11 / (6e-13 + 9e-12))
    d2d_rate_bps, up_rate_bps = (
        1 / bit_time_s(radio, share * band_hz, sinr)
        for band_hz, sinr in ((radio.d2d_bandwidth_hz, d2d), (radio.d2e_bandwidth_hz, up))
    )
    assert d2d_rate_bps == pytest.approx(0.25e7 * math.log2(1 + d2d))
    assert up_rate_bps == pytest.approx(0.75e7 * math.log2(1 + up))


@pytest.mark.parametrize("rate_law", RATE_LAWS)
@pytest.mark.usefixtures("x64")
def test_the_elasticity_of_the_efficiency_is_its_logarithmic_derivative(rate_law):
    radio = make_radio().replace(rate_law=rate_law)
    sinr = np.logspace(-4, 6, 101)

    def log_efficiency(log_sinr):
        return jnp.log(unlimited_efficiency(jnp.exp(log_sinr), radio))

    got = efficiency_elasticity(sinr, 1 / unlimited_efficiency(sinr, radio), radio)
    expected = jax.jit(jax.vmap(jax.grad(log_efficiency)))(np.log(sinr))
    np.testing.assert_allclose(got, expected, 1e-8)  # of a truncated fraction near SINR 1


# --- (6), (7) ---


def exact_hazard(theta, sinr, attempts):
    """(6) as written, with digits enough for its cancellation."""
    getcontext().prec = 450
    z = Decimal(theta) / Decimal(sinr)
    return float(-(1 - (1 - (-z).exp()) ** attempts).ln())


def both_sides_of_switches(attempts):
    """Places ``z`` around those where the formula changes: a small argument is 0.05, or z is 30."""
    rare = -math.log(0.05)  # exp(-z) is 0.05
    exponent = -math.log1p(-math.exp(-0.05 / attempts))  # -attempts log(1 - exp(-z)) is
    lost = -math.log1p(-(0.05 ** (1 / attempts)))  # (1 - exp(-z))^attempts is
    return [side * z for z in (0.05, rare, exponent, lost, 30.0) for side in (0.9999, 1.0001)]


@pytest.mark.parametrize("attempts", [1, 2, 3, 5])
@pytest.mark.usefixtures("x64")
def test_hazard_has_every_digit(attempts):
    theta = 0.7
    places = [theta / z for z in both_sides_of_switches(attempts)]
    sinr = np.array([1e-3, 3e-3, 0.02, 0.11, 0.9, 2.0, 17.0, 1e3, 1e5, *places])
    radio = make_radio(outage_threshold=theta, harq_attempts=attempts)
    got = transport_block_hazard(radio, sinr)
    expected = [exact_hazard(theta, float(x), attempts) for x in sinr]
    np.testing.assert_allclose(got, expected, 1e-11)


@jax.jit
def hazards_and_slopes(radio, sinr):
    return jax.vmap(jax.value_and_grad(lambda x: transport_block_hazard(radio, x)))(sinr)


@pytest.mark.parametrize("attempts", [1, 2, 4])
def test_hazard_falls_with_the_sinr_and_has_finite_slopes(attempts):
    radio = make_radio(outage_threshold=1.3, harq_attempts=attempts)
    sinr = np.logspace(-6, 9, 901)
    value, slope = hazards_and_slopes(radio, sinr)
    assert np.all(np.isfinite(value))
    assert np.all(np.isfinite(slope))
    assert np.all(np.asarray(slope) <= 0)
    reached = np.asarray(value) > 1e-30  # below lies the end of single precision
    assert np.all(np.diff(np.log(np.asarray(value)[reached])) < 0)
    assert reached.sum() > 500


def exact_fall(theta, sinr, attempts):
    """Fall of (6) per unit of the logarithm of the SINR."""
    getcontext().prec = 450
    z = Decimal(theta) / Decimal(sinr)
    fails = 1 - (-z).exp()
    return float(z * attempts * fails ** (attempts - 1) * (-z).exp() / (1 - fails**attempts))


@pytest.mark.parametrize("attempts", [1, 3, 4])
@pytest.mark.parametrize(("dtype", "error"), [(np.float64, 1e-11), (np.float32, 3e-6)])
@pytest.mark.usefixtures("x64")
def test_the_hazard_and_its_fall_have_every_digit(attempts, dtype, error):
    theta = dtype(NETWORK["radio"]["outage_threshold"])
    radio = make_radio(outage_threshold=theta, harq_attempts=np.int32(attempts))
    places = [theta / z for z in both_sides_of_switches(attempts)]
    sinr = np.array([*np.logspace(-2.8, 6, 25), *places]).astype(dtype)
    hazard, fall = hazard_and_elasticity(radio, sinr)
    assert hazard.dtype == fall.dtype == dtype
    for got, exact in ((hazard, exact_hazard), (fall, exact_fall)):
        expected = [exact(float(theta), float(x), attempts) for x in sinr]
        np.testing.assert_allclose(got, expected, error)
    hopeless = np.logspace(-6, -3, 50).astype(dtype)
    hazard, fall = hazard_and_elasticity(radio, hopeless)
    np.testing.assert_allclose(hazard, theta / hopeless - np.log(attempts), error)
    np.testing.assert_allclose(fall, theta / hopeless, error)


@pytest.mark.parametrize("attempts", [1, 4])
@pytest.mark.usefixtures("x64")
def test_a_hazard_is_met_at_its_sinr(attempts):
    radio = make_radio(harq_attempts=np.int32(attempts))
    hazard = np.logspace(-4, 1, 200)
    reached = transport_block_hazard(radio, sinr_at_hazard(radio, hazard))
    np.testing.assert_allclose(reached, hazard, rtol=1e-6)


def test_hazard_is_convex_in_the_log_of_the_sinr():
    # what makes the round's problem convex in logarithms
    with jax.enable_x64(True):
        radio = make_radio(outage_threshold=1.3, harq_attempts=3)
        bend = jax.jit(
            jax.vmap(jax.grad(jax.grad(lambda w: transport_block_hazard(radio, jnp.exp(w)))))
        )
        w = np.linspace(-6, 12, 400)
        assert np.all(np.asarray(bend(w)) > 0)


@pytest.mark.parametrize(("factor", "usable"), [(0.99, False), (1.01, True)])
def test_a_link_far_under_the_noise_carries_nothing(factor, usable):
    radio = make_radio()
    noise_w = float(radio.d2d_bandwidth_hz) * float(radio.node_noise_w_per_hz)
    sinr = d2d_sinr(radio, 1.0, np.float32(factor * LEAST_SNR_PER_W * noise_w), 0.5, 0.0)
    assert (float(sinr) > 0) == usable
    assert np.isfinite(float(bit_time_s(radio, 1e6, sinr))) == usable


def test_hazard_at_the_ends():
    radio = make_radio(harq_attempts=3)
    assert transport_block_hazard(radio, np.float32(0.0)) == np.inf
    assert jax.jit(jax.grad(transport_block_hazard, 1))(radio, 0.0) == 0
    perfect = radio.replace(outage_threshold=np.float32(0.0))
    assert transport_block_hazard(perfect, np.float32(2.0)) == 0
    assert jax.jit(jax.grad(transport_block_hazard, 1))(perfect, 2.0) == 0


def test_more_attempts_lose_less():
    sinr = np.float32(3.0)
    hazards = [transport_block_hazard(make_radio(harq_attempts=a), sinr) for a in (1, 2, 3, 4)]
    assert hazards == sorted(hazards, reverse=True)
    theta = NETWORK["radio"]["outage_threshold"]
    assert hazards[0] == pytest.approx(theta / 3.0, rel=1e-5)  # one attempt: z itself


def test_losses_compose_by_adding_hazards():
    a, b = np.float32(0.3), np.float32(1.1)
    both = float(1 - (1 - loss_probability(a)) * (1 - loss_probability(b)))
    assert loss_probability(a + b) == pytest.approx(both, rel=1e-5)
    assert loss_probability(np.float32(1e-12)) == pytest.approx(1e-12)
    assert loss_probability(np.float32(np.inf)) == 1


def test_shapes_are_checked_at_run_time():
    with pytest.raises(jaxtyping.TypeCheckError, match="bit_hz_s"):
        efficiency_elasticity(np.ones((3, 5)), np.ones((3, 4)), make_radio())
