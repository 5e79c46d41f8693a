"""Clipping, noise and sensitivity; rounds with them on quadratics, and against `jax-privacy`."""

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collapipe_jax.learning.federated.aggregation import participant_shares, participation_of
from collapipe_jax.learning.federated.learner import (
    Method,
    StepGradients,
    initial_state,
    learn_round,
)
from collapipe_jax.learning.federated.optimizers import Optimizers, Rules, make_optimizer
from collapipe_jax.learning.federated.privacy import (
    ClusterPrivacy,
    ExamplePrivacy,
    add_noise,
    clip,
    clipped_mean,
    clipped_sum,
    noise_key,
    seed_words,
    sensitivity,
)

pytestmark = pytest.mark.usefixtures("x64")

N, SIZE, RATE = 4, 3, 0.5
WEIGHTS = np.array([0.4, 0.1, 0.3, 0.2])
RNG = np.random.default_rng(5)
TARGETS = RNG.normal(size=(N, SIZE))
EVERYONE = (True,) * N
CLIP, DECODER_CLIP = 0.3, 0.2
KEY = jax.random.key(1)


def privacy(noise_multiplier=0.0, **changed):
    numbers = {"clip_norm": CLIP, "decoder_clip_norm": DECODER_CLIP, "seed": seed_words(7)}
    numbers |= {"largest_share": WEIGHTS.max(), "noise_multiplier": noise_multiplier}
    return ClusterPrivacy(**numbers | changed)


def contributions(scale=1.0):
    keys = jax.random.split(jax.random.key(3))
    return {
        "a": scale * jax.random.normal(keys[0], (N, 2, 3)),
        "b": scale * jax.random.normal(keys[1], (N,)),
    }


clip_tree, mean_of = jax.jit(clip), jax.jit(clipped_mean)


def norm(tree):
    return float(np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(tree))))


@given(
    numbers=st.lists(st.floats(width=32), min_size=3, max_size=3),
    largest=st.floats(0.125, 100.0, width=32),
)
def test_nothing_gets_past_the_clipping(numbers, largest):
    clipped = clip_tree({"a": np.array(numbers[:2]), "b": np.array(numbers[2])}, largest)
    assert norm(clipped) <= largest * (1 + 1e-9)


def test_what_is_short_enough_stays_and_the_rest_keeps_its_direction():
    short, long = {"w": jnp.array([0.3, -0.4])}, {"w": jnp.array([3.0, -4.0])}
    np.testing.assert_array_equal(clip(short, 0.5)["w"], short["w"])
    np.testing.assert_allclose(clip(long, 0.5)["w"], short["w"], rtol=1e-12)
    np.testing.assert_array_equal(clip({"w": jnp.zeros(2)}, 0.5)["w"], 0.0)


def test_no_neighbour_moves_a_release_beyond_the_sensitivity():
    """Every set of clusters with and without every other, and with other data in its place."""
    bound, largest = sensitivity(CLIP, WEIGHTS.max()), 0.0
    values, others = jax.device_get((contributions(2.0), contributions(-3.0)))
    for present in itertools.product((False, True), repeat=N):
        shares = np.where(present, WEIGHTS, 0.0)
        release = mean_of(values, shares, CLIP)
        for cluster in np.flatnonzero(present):
            away = np.arange(N) == cluster
            without = mean_of(values, np.where(away, 0.0, shares), CLIP)
            moved = norm(jax.tree.map(np.subtract, release, without))
            assert moved <= bound * (1 + 1e-9)
            largest = max(largest, moved)
            replaced = jax.tree.map(
                lambda v, o, a=away: np.where(a.reshape(-1, *[1] * (v.ndim - 1)), o, v),
                *(values, others),
            )
            found = mean_of(replaced, shares, CLIP)
            assert norm(jax.tree.map(np.subtract, release, found)) <= 2 * bound * (1 + 1e-9)
    assert largest == pytest.approx(bound)  # no less would do


def test_rescaled_shares_would_break_the_bound():
    """The reason for fixed denominators: without the others a small cluster weighs much."""
    values, present = contributions(2.0), jnp.array([False, True, False, False])
    shares = participant_shares(jnp.asarray(WEIGHTS), present)
    release = mean_of(values, shares, CLIP)
    assert norm(release) > 2 * sensitivity(CLIP, WEIGHTS.max())


def test_noise_is_normal_independent_and_of_the_asked_deviation():
    tree = {"a": jnp.zeros((100, 100)), "b": jnp.full(10_000, 3.0)}
    noisy = add_noise(tree, 0.7, KEY)
    parts = np.ravel(noisy["a"]) / 0.7, (np.ravel(noisy["b"]) - 3.0) / 0.7
    for part in parts:
        assert abs(part.mean()) < 4 / 100
        assert abs((part**2).mean() - 1) < 4 * np.sqrt(2) / 100
        assert abs((part**4).mean() - 3) < 4 * np.sqrt(96) / 100
    assert abs((parts[0] * parts[1]).mean()) < 4 / 100


def test_every_release_has_noise_of_its_own():
    keys = [KEY, *jax.random.split(KEY, 2)]
    seeds = [0, 1, 2**32, 2**64 - 1]
    drawn = {
        float(jax.random.normal(noise_key(key, seed_words(seed)))) for key in keys for seed in seeds
    }
    assert len(drawn) == len(keys) * len(seeds)


def gradients_of(copies, decoder, base, batch, key):
    """Of ``|w - c_n|^2 / 2 + |v - c_n|^2 / 2`` at clients' ``w`` and the server's ``v``."""
    del base, batch, key
    own, server = {"w": copies["w"] - TARGETS}, {"v": decoder["v"][None] - TARGETS}
    nothing = jnp.zeros(N)
    return StepGradients(own, server, nothing, nothing + 1.0, jnp.zeros(()))


@pytest.fixture(scope="module")
def play():
    """A round of two local steps."""
    plain, average = make_optimizer("sgd", RATE), make_optimizer("sgd", 1.0)
    optimizers = Optimizers(client=plain, decoder=plain, server=average).transformations

    @jax.jit
    def run(privacy, present, key):
        method = Method(optimizers, Rules(cluster_privacy=privacy))
        start = {"w": jnp.zeros(SIZE)}, {"v": jnp.zeros(SIZE)}
        state = initial_state(*start, {}, method, N)
        weights = jnp.asarray(WEIGHTS)
        shares = participant_shares(weights, present)
        participation = participation_of(weights, present, shares, {})
        batches = jnp.zeros((2, N, 1))
        return learn_round(gradients_of, state, participation, method, batches, key, 0)[0]

    def round_(present=EVERYONE, key=KEY, **changed):
        return run(privacy(**changed), jnp.array(present), key)

    return round_


def clipped(values, largest):
    size = np.linalg.norm(values, axis=1, keepdims=True)
    return values * np.minimum(1.0, largest / size)


@pytest.mark.parametrize("present", [EVERYONE, (True, False, True, True)])
def test_a_round_without_noise_is_clipped_by_hand(play, present):
    shares = np.where(present, WEIGHTS, 0.0)  # not rescaled
    copies, server = np.zeros((N, SIZE)), np.zeros(SIZE)
    for _ in range(2):
        server = server - RATE * shares @ clipped(server - TARGETS, DECODER_CLIP)
        copies = copies - RATE * (copies - TARGETS)
    found = play(present)
    np.testing.assert_allclose(found.client["w"], shares @ clipped(copies, CLIP), rtol=1e-12)
    np.testing.assert_allclose(found.decoder["v"], server, rtol=1e-12)


def test_a_round_has_the_noise_that_its_sensitivity_asks_for(play):
    """The decoder gets that of every local step, here two, times its rate."""
    z, keys = 1.5, jax.random.split(KEY, 400)
    exact = play()
    noisy = jax.lax.map(lambda key: play(key=key, noise_multiplier=z), keys)
    spread = np.std(np.asarray(noisy.client["w"]) - np.asarray(exact.client["w"]))
    assert spread == pytest.approx(z * CLIP * WEIGHTS.max(), rel=0.08)
    # Its second gradient follows the first one's noise, so that the spread is a little less.
    spread = np.std(noisy.decoder["v"], axis=0).mean()
    assert spread == pytest.approx(z * DECODER_CLIP * WEIGHTS.max() * RATE * np.sqrt(2), rel=0.1)


def test_a_step_is_taken_even_without_participants(play):
    nobody = play((False,) * N, noise_multiplier=1.0)
    assert norm(nobody.client) > 0.0
    assert norm(nobody.decoder) > 0.0
    assert norm(play((False,) * N).client) == 0.0


@pytest.mark.parametrize("at_once", [0, 1, 2, 5, 99])
def test_the_number_of_gradients_at_once_changes_no_sum(at_once):
    examples = jnp.asarray(RNG.normal(size=(5, SIZE)))

    def gradient_of(example):
        return {"w": example}, jnp.ones(())

    total, count = jax.jit(lambda rows: clipped_sum(gradient_of, rows, CLIP, at_once))(examples)
    np.testing.assert_allclose(total["w"], clipped(np.asarray(examples), CLIP).sum(0), rtol=1e-12)
    # Blocks are filled up with zeros, and what a gradient of these adds is the caller's affair.
    block = min(at_once or 5, 5)
    assert count == -(-5 // block) * block
    # Blocks of padding are not computed.
    _, count = jax.jit(lambda rows: clipped_sum(gradient_of, rows, CLIP, at_once, 2))(examples)
    assert count == -(-2 // block) * block


def loss(params, example):
    return jnp.sum((params["w"] * example["x"] - example["y"]) ** 2)


def test_clipping_and_noise_are_those_of_jax_privacy():
    reason = 'pip install -e ".[bench]" brings jax-privacy'
    peer = pytest.importorskip("jax_privacy", reason=reason)
    params = {"w": jnp.asarray(RNG.normal(size=SIZE))}
    rows = {name: jnp.asarray(RNG.normal(size=(6, SIZE))) for name in "xy"}
    options = {"batch_argnums": 1, "keep_batch_dim": False, "microbatch_size": 2}
    theirs = peer.clipped_grad(loss, l2_clip_norm=2.0, **options)
    assert theirs.sensitivity() == sensitivity(2.0, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a name that it calls
        expected, _ = peer.clipping.clip_pytree(params, 0.1)
        total = theirs(params, rows)
    np.testing.assert_allclose(clip(params, 0.1)["w"], expected["w"], rtol=1e-12)
    rule = ExamplePrivacy(
        noise_multiplier=0.0, clip_norm=2.0, seed=seed_words(0), examples_at_once=2
    )

    def gradient_of(example):
        return jax.grad(loss)(params, example), ()

    found, _ = rule.gradient(gradient_of, rows, jnp.array(6), KEY)
    np.testing.assert_allclose(6 * found["w"], total["w"], rtol=1e-10)
    # Noise of one law: deviations of many draws, and their ratio.
    large = {"w": jnp.zeros(40_000)}
    privatizer = peer.noise_addition.gaussian_privatizer(stddev=3.0, prng_key=0)
    ours, other = add_noise(large, 3.0, KEY), privatizer.update(large, privatizer.init(large))[0]
    deviations = [float(jnp.std(noisy["w"])) for noisy in (ours, other)]
    assert deviations[0] == pytest.approx(deviations[1], rel=0.02)
