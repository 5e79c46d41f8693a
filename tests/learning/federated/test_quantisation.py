"""Rounded updates: the grid, the mean and the variance of a round, and residuals over rounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compilations import compiles

from collapipe_jax.learning.federated.aggregation import participant_shares, participation_of
from collapipe_jax.learning.federated.quantisation import (
    GROUP,
    UpdateQuantiser,
    empty_residuals,
    quantised_mean,
    quantiser_of,
    round_numbers,
    round_update,
    rounding_variance,
    send_updates,
    update_ratio,
)

pytestmark = pytest.mark.usefixtures("x64")

PARTIES, DRAWS = 4, 4000
EVERYONE = np.ones(PARTIES, bool)
RNG = np.random.default_rng(5)


sent_by = jax.jit(send_updates)
mean_of = jax.jit(quantised_mean)
rounded_update = jax.jit(round_update)
rounded = jax.jit(jax.vmap(round_numbers, in_axes=(None, None, 0)))


def draws(numbers, levels, count=DRAWS):
    """Many roundings of the same numbers, ``[count, P]``."""
    keys = jax.random.split(jax.random.key(1), count)
    return np.asarray(rounded(jnp.asarray(numbers), float(levels), keys))


def model(scale=1.0):
    """Updates ``[N, ...]`` of a model with three blocks, whose parts differ in size."""
    shapes = {"embedding": {"token": (PARTIES, 30, 7)}, "decoder": {"bias": (PARTIES, 5)}}
    shapes["encoder"] = {"kernel": (PARTIES, 3, 8, 50), "bias": (PARTIES, 3, 8)}
    return jax.tree.map(
        lambda shape: scale * RNG.normal(size=shape),
        shapes,
        is_leaf=lambda shape: isinstance(shape, tuple),
    )


@pytest.mark.parametrize("levels", [3, 7, 127])
def test_rounding_is_right_in_the_mean_and_its_variance_is_that_of_a_grid(levels):
    numbers = np.concatenate([RNG.normal(size=GROUP), 9.0 * RNG.normal(size=GROUP // 3)])
    found = draws(numbers, levels)
    scale = np.where(
        np.arange(numbers.size) < GROUP,
        *(np.abs(part).max() for part in (numbers[:GROUP], numbers[GROUP:])),
    )
    place = numbers / scale * levels
    share = place - np.floor(place)
    step = scale / levels
    variance = step**2 * share * (1.0 - share)
    error = np.abs(found.mean(axis=0) - numbers)
    # Bernstein's inequality: where few draws are rounded up, deviations say little.
    assert (error <= 5.0 * np.sqrt(variance / DRAWS) + 9.0 * step / DRAWS).all()
    np.testing.assert_allclose(found.var(axis=0).sum(), variance.sum(), rtol=0.03)


@pytest.mark.parametrize("levels", [3, 7, 127])
def test_rounded_numbers_are_on_the_grid_and_numbers_of_the_grid_stay(levels):
    grid = RNG.integers(-levels, levels + 1, GROUP).astype(float)
    grid[0] = levels  # the scale of the group
    found = draws(grid, levels, 20)
    np.testing.assert_allclose(found, np.broadcast_to(grid, found.shape), atol=1e-12)
    places = draws(RNG.normal(size=GROUP), levels, 20)
    places = places / np.abs(places).max() * levels
    np.testing.assert_allclose(places, np.round(places), atol=1e-12)
    assert (draws(np.zeros(GROUP + 1), levels, 3) == 0.0).all()


@pytest.mark.parametrize("levels", [3, 7, 127, 32767])
def test_no_group_has_more_variance_than_the_bound_and_one_has_as_much(levels):
    """The variance of numbers is known; the worst are equal, next to one that is the scale."""
    bound = rounding_variance(float(levels))

    def relative(numbers):
        place = numbers / numbers.max(axis=-1, keepdims=True) * levels
        share = place - np.floor(place)
        variance = (share * (1.0 - share)).sum(-1) * (numbers.max(axis=-1) / levels) ** 2
        return variance / (numbers**2).sum(-1)

    some = np.abs(RNG.normal(size=(500, GROUP))) ** RNG.uniform(0.1, 8.0, (500, 1))
    assert (relative(some) <= bound).all()
    shares = np.linspace(0.0, 1.0, 20_001)[1:-1, None]
    worst = np.concatenate([np.ones_like(shares), np.repeat(shares / levels, GROUP - 1, 1)], 1)
    np.testing.assert_allclose(relative(worst).max(), bound, rtol=1e-6)


def test_groups_are_of_one_block_or_of_one_end():
    """A scale reaches no number of another block: there it makes no grid."""
    update = jax.tree.map(lambda leaf: leaf[0], model())
    loud = jax.tree.map(np.copy, update)
    loud["encoder"]["kernel"][1] *= 1e6
    key = jax.random.key(2)
    plain, changed = (rounded_update(each, 7.0, key) for each in (update, loud))
    for block, same in enumerate((True, False, True)):
        pair = [each["encoder"]["bias"][block] for each in (plain, changed)]
        assert np.array_equal(*pair) == same
    np.testing.assert_array_equal(plain["embedding"]["token"], changed["embedding"]["token"])


def test_all_that_was_sent_is_all_updates_but_for_the_last_residual():
    levels, total, arrived_total = 3.0, 0.0, 0.0
    residuals = jax.tree.map(np.zeros_like, model())
    largest = 0.0
    for number in range(40):
        updates = model(1.0 + number % 3)
        participates = RNG.random(PARTIES) < 0.7
        before = residuals
        key = jax.random.key(number)
        arguments = updates, before, participates, None, levels, key
        arrived, residuals = jax.device_get(sent_by(*arguments))
        for leaf, old in zip(*map(jax.tree.leaves, (residuals, before)), strict=True):
            np.testing.assert_array_equal(leaf[~participates], old[~participates])
        kernels = (each["encoder"]["kernel"] for each in (updates, arrived))
        own, sent = (np.where(participates[:, None, None, None], each, 0.0) for each in kernels)
        total, arrived_total = total + own, arrived_total + sent
        largest = max(largest, *(np.abs(leaf).max() for leaf in jax.tree.leaves(updates)))
    left = residuals["encoder"]["kernel"]
    np.testing.assert_allclose(arrived_total, total - left, atol=1e-10)
    for leaf in jax.tree.leaves(residuals):
        assert np.abs(leaf).max() <= largest / (levels - 1.0)


def test_what_is_not_sent_is_not_rounded_and_leaves_no_residual():
    updates = model()
    sent = jax.tree.map(lambda leaf: np.zeros((1,) * (leaf.ndim - 1), bool), updates)
    sent["encoder"] = {
        name: np.arange(3).reshape(-1, *[1] * (leaf.ndim - 2)) < 2
        for name, leaf in updates["encoder"].items()
    }
    before = model(0.01)
    key = jax.random.key(3)
    arrived, after = jax.device_get(sent_by(updates, before, EVERYONE, sent, 7.0, key))
    for own, came in ((updates, arrived), (before, after)):
        np.testing.assert_array_equal(own["embedding"]["token"], came["embedding"]["token"])
        for name, leaf in own["encoder"].items():
            np.testing.assert_array_equal(leaf[:, 2], came["encoder"][name][:, 2])
            assert (leaf[:, :2] != came["encoder"][name][:, :2]).any()


@pytest.mark.parametrize("clients", [1, 2])
def test_the_mean_of_all_rounds_is_that_of_the_updates_but_for_means_of_residuals(clients):
    """Of control units, too, which round the means of their clients once more."""
    quantiser, updates = quantiser_of(4, clients), model()
    weights = jnp.array([0.1, 0.2, 0.3, 0.4])
    everyone = jnp.asarray(EVERYONE)
    shares = participant_shares(weights, everyone)
    parties = participation_of(weights, everyone, shares, {})
    residuals = empty_residuals(quantiser, jax.tree.map(lambda leaf: leaf[0], updates), PARTIES)
    total = 0.0
    for number in range(12):
        key = jax.random.key(number)
        mean, residuals = jax.device_get(mean_of(quantiser, residuals, updates, parties, key))
        total = total + mean["embedding"]["token"]
    shares, token = np.asarray(shares), updates["embedding"]["token"]
    left = np.tensordot(shares, residuals.clients["embedding"]["token"], 1)
    if clients > 1:
        by_unit = shares.reshape(-1, clients).sum(1)
        left = left + np.tensordot(by_unit, residuals.control_units["embedding"]["token"], 1)
    np.testing.assert_allclose(total, 12 * np.tensordot(shares, token, 1) - left, atol=1e-10)


@pytest.mark.parametrize("clients", [1, 2])
def test_without_feedback_nothing_is_kept_and_the_mean_is_right_in_the_mean(clients):
    quantiser = quantiser_of(4, clients, feedback=False)
    updates = jax.tree.map(jnp.asarray, model())
    everyone = jnp.asarray(EVERYONE)
    shares = participant_shares(jnp.array([0.1, 0.2, 0.3, 0.4]), everyone)
    parties = participation_of(shares, everyone, shares, {})
    assert empty_residuals(quantiser, updates, PARTIES) is None

    @jax.jit
    @jax.vmap
    def means(key):
        mean, residuals = quantised_mean(quantiser, None, updates, parties, key)
        assert residuals is None
        return mean["embedding"]["token"]

    found = means(jax.random.split(jax.random.key(3), 400))
    error = found.std(0) / 20.0
    wanted = jnp.tensordot(shares, updates["embedding"]["token"], 1)
    assert jnp.all(jnp.abs(found.mean(0) - wanted) <= 5.0 * error + 1e-12)


def test_a_number_of_bits_is_a_grid_and_a_price():
    assert quantiser_of(0) is None
    assert quantiser_of(4) == UpdateQuantiser(levels=7.0)
    # A scale of 32 bits for 256 numbers; what travels beside a parameter is not rounded.
    assert update_ratio(0, 16, 3) == 1.0
    assert update_ratio(8, 16, 1) == 8.125 / 16
    assert update_ratio(4, 32, 3) == pytest.approx((4.125 + 2 * 32) / (3 * 32))


def test_other_bits_compile_nothing_anew():
    compiled = jax.jit(
        lambda quantiser, numbers, key: round_numbers(numbers, quantiser.levels, key)
    )
    with compiles(compiled, 1):
        for bits in (3, 4, 8, 16):
            compiled(quantiser_of(bits), jnp.ones(GROUP), jax.random.key(0))
