"""Path-loss laws against their sources, and the chance of sight in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from collapipe_jax.edge.network.propagation import PATH_LOSS_LAWS, SightLaw, path_loss_db

FREQUENCY_GHZ = 2.0
DISTANCES_M = np.array([3.0, 10, 16, 18, 25, 50, 100, 300, 319, 321, 1000])


def free_space_db(d_m):
    return 20 * np.log10(4 * np.pi * d_m * FREQUENCY_GHZ * 1e9 / 299792458)


def b1_sight_db(d_m, height_m=0.8):
    """WINNER+ D5.3, table 4-1, with effective heights of TR 36.843."""
    f = np.log10(FREQUENCY_GHZ)
    near = 22.7 * np.log10(d_m) + 27 + 20 * f
    far = 40 * np.log10(d_m) + 7.56 - 2 * 17.3 * np.log10(height_m) + 2.7 * f
    return np.where(d_m <= 4 * height_m**2 * FREQUENCY_GHZ * 1e9 / 3e8, near, far)


def b1_hidden_db(d_m, height_m=1.5):
    """TR 36.843 A.2.1.2, around 2 GHz, with its offset of -5 dB."""
    h, f = np.log10(height_m), np.log10(FREQUENCY_GHZ)
    return (44.9 - 6.55 * h) * np.log10(d_m) + 5.83 * h + 14.78 + 34.97 * f - 5


def uma_sight_db(d_m, mast_m=25, height_m=1.5):
    """TR 36.814, table B.1.2.1-1."""
    f, mast, height = np.log10(FREQUENCY_GHZ), mast_m - 1, height_m - 1
    near = 22 * np.log10(d_m) + 28 + 20 * f
    far = 40 * np.log10(d_m) + 7.8 - 18 * np.log10(mast) - 18 * np.log10(height) + 2 * f
    return np.where(d_m <= 4 * mast * height * FREQUENCY_GHZ * 1e9 / 3e8, near, far)


def uma_hidden_db(d_m, mast_m=25, height_m=1.5, street_m=20, house_m=20):
    """TR 36.814, table B.1.2.1-1."""
    mast = np.log10(mast_m)
    return (
        161.04
        - 7.1 * np.log10(street_m)
        + 7.5 * np.log10(house_m)
        - (24.37 - 3.7 * (house_m / mast_m) ** 2) * mast
        + (43.42 - 3.1 * mast) * (np.log10(d_m) - 3)
        + 20 * np.log10(FREQUENCY_GHZ)
        - (3.2 * np.log10(11.75 * height_m) ** 2 - 4.97)
    )


def floored(law):
    return lambda d_m: np.maximum(free_space_db(d_m), law(d_m))


SIGHT = {
    "tr36843_outdoor": (floored(b1_sight_db), floored(b1_hidden_db), 36),
    "uma_2ghz": (uma_sight_db, uma_hidden_db, 63),
}


def probability(d_m, decay_m):
    return np.minimum(18 / d_m, 1) * (1 - np.exp(-d_m / decay_m)) + np.exp(-d_m / decay_m)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("macro_2ghz", lambda d: 128.1 + 37.6 * np.log10(d / 1000)),
        ("d2d_outdoor", lambda d: 148 + 40 * np.log10(d / 1000)),
        ("winner_b1", b1_sight_db),
        ("winner_b1_sight", lambda d: 41 + 20 * np.log10(0.4) + 22.7 * np.log10(d)),
        ("free_space_2ghz", free_space_db),
    ],
)
def test_laws_are_those_of_their_sources(name, source):
    got = path_loss_db(name, jnp.array(DISTANCES_M), None)
    np.testing.assert_allclose(got, source(DISTANCES_M), atol=0.1)


@pytest.mark.parametrize("name", SIGHT)
def test_laws_with_sight_are_those_of_their_sources(name):
    law, (seen, hidden, decay_m) = PATH_LOSS_LAWS[name], SIGHT[name]
    d_m = jnp.array(DISTANCES_M)
    np.testing.assert_allclose(law.in_sight(d_m), seen(DISTANCES_M), atol=0.1)
    np.testing.assert_allclose(law.out_of_sight(d_m), hidden(DISTANCES_M), atol=0.1)
    expected = probability(DISTANCES_M, decay_m)
    np.testing.assert_allclose(law.sight_probability(d_m), expected, rtol=1e-5)


@pytest.mark.parametrize("name", SIGHT)
def test_a_link_is_in_sight_below_the_quantile_of_its_chance(name):
    law, decay_m = PATH_LOSS_LAWS[name], SIGHT[name][2]
    quantile = norm.ppf(probability(100.0, decay_m))
    got = law.loss_db(jnp.full(2, 100.0), jnp.array([quantile - 1e-3, quantile + 1e-3]))
    expected = [law.in_sight(jnp.float32(100.0)), law.out_of_sight(jnp.float32(100.0))]
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    sight = jax.random.normal(jax.random.key(0), (200_000,))
    near_m = jnp.full_like(sight, 17.9)
    np.testing.assert_array_equal(law.loss_db(near_m, sight), law.in_sight(near_m))


def test_a_law_of_ones_own_may_have_sight(monkeypatch):
    own = SightLaw(lambda d: d, lambda d: d + 10, clear_m=1.0, decay_m=10.0)
    monkeypatch.setitem(PATH_LOSS_LAWS, "mine", own)
    got = path_loss_db("mine", jnp.full(2, 5.0), jnp.array([-3.0, 3.0]))
    np.testing.assert_allclose(got, [5.0, 15.0])
