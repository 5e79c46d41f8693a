"""The protocol round by round, from the side of the server: sums are exact, and all it learns."""

import functools
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import chisquare
from support.leaves_close import assert_same

from collapipe_jax.learning.federated.secure_aggregation import (
    Presence,
    advertise,
    draw_secrets,
    expand,
    power,
    reconstruct,
    run_clients,
    secure_sum,
    share_secrets,
    unmask,
)

CLIENTS, LENGTH, ROUNDS = 7, 3, 1000
RING = jnp.uint32(2**32 - 1)


def random_rounds(seed):
    """Vectors, presences, thresholds and rings of many rounds, with few and with many drop-outs."""
    rng = np.random.default_rng(seed)
    vectors = rng.integers(0, 2**32, (ROUNDS, CLIENTS, LENGTH), np.uint32)
    stays = rng.uniform(0.3, 1.0, (ROUNDS, 1))
    participates = rng.random((ROUNDS, CLIENTS)) < 0.9
    arrived = participates & (rng.random((ROUNDS, CLIENTS)) < stays)
    answered = arrived & (rng.random((ROUNDS, CLIENTS)) < stays)
    threshold = np.maximum(np.ceil(participates.sum(1) * rng.uniform(0.3, 1.0, ROUNDS)), 2)
    ring = 2 ** rng.integers(16, 33, ROUNDS) - 1
    presence = Presence(participates, arrived, answered)
    return vectors, presence, threshold.astype(np.int32), ring.astype(np.uint32)


def test_a_thousand_rounds_with_dropouts_sum_exactly_or_fail():
    vectors, presence, threshold, ring = random_rounds(0)
    keys = jax.random.split(jax.random.key(1), ROUNDS)
    found = jax.jit(jax.vmap(secure_sum))(keys, vectors, presence, threshold, ring)
    enough = presence.answered.sum(1) >= threshold
    at_the_limit = presence.answered.sum(1) == threshold
    assert enough.sum() > 100
    assert (~enough).sum() > 100
    assert at_the_limit.sum() > 100
    dropped_and_recovered = enough & (presence.participates & ~presence.arrived).any(1)
    assert dropped_and_recovered.sum() > 100
    np.testing.assert_array_equal(found.succeeded, enough)
    counted = np.where(presence.arrived[..., None], vectors, 0).sum(1, dtype=np.uint32)
    expected = np.where(enough[:, None], counted & ring[:, None], 0)
    actual = np.where(enough[:, None], found.total & ring[:, None], found.total)
    np.testing.assert_array_equal(actual, expected)


def test_pairs_agree_on_a_key():
    secrets = draw_secrets(jax.random.key(0), 4)
    public = advertise(secrets)
    both = [power(public[j], secrets.key[i]).tolist() for i, j in ((1, 3), (3, 1), (0, 1))]
    assert both[0] == both[1] != both[2]


PRESENT = (True,) * 4
VECTORS = jnp.array([[10, 5], [30, 2**31], [50, 77], [70, 2**32 - 3]], jnp.uint32)
run, unmask_all = jax.jit(run_clients), jax.jit(unmask)


def present(arrived, answered=None):
    """Presence of four clients that all share their secrets."""
    answered = arrived if answered is None else answered
    return Presence(*map(jnp.array, (PRESENT, arrived, answered)))


@jax.jit
def run_many(vectors, presence):
    """What the server receives of the same vectors under 4000 keys, and the clients' secrets."""

    def one(key):
        received = run_clients(key, vectors, presence, jnp.array(3), RING)
        return received, draw_secrets(jax.random.split(key)[0], 4)

    return jax.vmap(one)(jax.random.split(jax.random.key(5), 4000))


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, None))
def unmask_one(received, client):
    """A client's message less all masks that the answers give."""
    arrived = jnp.arange(4) == client
    dropped = received.presence.participates & ~received.presence.arrived
    presence = Presence(arrived | dropped, arrived, received.presence.answered)
    masked = jnp.where(arrived[:, None], received.masked, 0)
    return unmask(received._replace(masked=masked, presence=presence), jnp.array(1)).total


def is_uniform(numbers):
    counts = np.bincount(np.asarray(numbers) >> np.uint32(27), minlength=32)
    return chisquare(counts).pvalue > 1e-4


def test_messages_are_uniform_whatever_the_vectors():
    for size in (0, 2**32 - 1):
        received, _ = run_many(jnp.full_like(VECTORS, size), present(PRESENT))
        assert all(is_uniform(received.masked[:, client, 0]) for client in range(4))


def test_the_server_unmasks_the_sum_of_all_and_no_sum_of_some():
    """It learns the own masks of those that arrived, and the keys of those that did not.

    What is left of the messages has the masks of pairs that arrived. They hide every sum over
    some of these, which is uniform although vectors are constant.
    """
    arrived = (True, True, False, True)
    received, secrets = run_many(VECTORS, present(arrived))
    found = jax.jit(jax.vmap(reconstruct))(received.answers, received.presence.answered)
    for client, is_there in enumerate(arrived):
        known, hidden = (secrets.seed, secrets.key) if is_there else (secrets.key, secrets.seed)
        assert (found[:, client] == known[:, client]).all()
        assert (found[:, client] != hidden[:, client]).any(1).all()
    there = np.flatnonzero(arrived)
    parts = [unmask_one(received, client)[:, 1] for client in there]
    for count in (1, 2):
        assert all(is_uniform(sum(some)) for some in combinations(parts, count))
    assert (sum(parts) == VECTORS[there, 1].sum(dtype=jnp.uint32)).all()


def test_what_moves_between_two_clients_is_hidden_by_their_mask():
    """Messages differ by what was moved alone, and so they do where the pair's mask differs by it.

    That mask is uniform, and no answer has it.
    """
    moved = VECTORS.at[0].add(7).at[3].add(jnp.uint32(2**32 - 7))
    one, other = (
        run(jax.random.key(2), each, present(PRESENT), jnp.array(3), RING)
        for each in (VECTORS, moved)
    )
    np.testing.assert_array_equal(other.masked - one.masked, moved - VECTORS)
    for name in ("public", "answers"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    totals = [unmask_all(each, jnp.array(3)).total for each in (one, other)]
    np.testing.assert_array_equal(*totals)


def test_no_holder_gives_both_shares_of_an_owner():
    key = jax.random.key(4)
    presence = present((True, False, True, True), (True, False, False, True))
    received = run(key, VECTORS, presence, jnp.array(2), RING)
    secret_key, share_key = jax.random.split(key)
    shares = share_secrets(share_key, draw_secrets(secret_key, 4), jnp.array(2))
    of_owner = np.where(presence.arrived[:, None, None], shares.seed, shares.key)
    expected = np.where(presence.answered[None, :, None], of_owner, 0)
    np.testing.assert_array_equal(received.answers, expected)


def test_a_vector_that_does_not_arrive_leaves_no_trace():
    presence, other = present((True, True, False, True)), VECTORS.at[2].set(999)
    found = [
        run(jax.random.key(0), each, presence, jnp.array(3), RING) for each in (VECTORS, other)
    ]
    assert_same(*found)


def test_too_few_answers_open_no_mask():
    presence, key = present(PRESENT, (True, True, False, False)), jax.random.key(8)
    received = run(key, VECTORS, presence, jnp.array(3), RING)
    secrets = draw_secrets(jax.random.split(key)[0], 4)
    found = reconstruct(received.answers, presence.answered)
    assert (found != secrets.seed).any(1).all()
    total, succeeded = unmask_all(received, jnp.array(3))
    assert not succeeded
    assert not total.any()


def test_masks_are_bits_of_the_generator():
    seed = jnp.array([1, 2, 3, 4], jnp.uint32)
    key = jax.random.wrap_key_data(jnp.array([65538, 196612], jnp.uint32), impl="threefry2x32")
    np.testing.assert_array_equal(expand(seed, 5), jax.random.bits(key, (5,)))
