import jax
import jax.numpy as jnp
import numpy as np
import pytest

from collapipe_jax.learning.federated.secure_aggregation import (
    SecureAggregation,
    dequantise,
    least_answers,
    quantise,
    ring_mask,
    secure_mean,
)

PARTIES, ROUNDS = 6, 80
mean_of = jax.jit(secure_mean)
quantised, restored, mask_of = map(jax.jit, (quantise, dequantise, ring_mask))


def make_rule(**changed):
    numbers = {"ring_bits": 32, "clip": 1.0, "threshold": 0.5, "dropout_probability": 0.0}
    return SecureAggregation(**numbers | changed)


def make_round(seed):
    """Updates, some of them beyond a clip of 1, shares, and rows that clients read."""
    rng = np.random.default_rng(seed)
    updates = {
        "bias": rng.normal(0.0, 0.5, (PARTIES, 3)).astype(np.float32),
        "kernel": rng.normal(0.0, 0.5, (PARTIES, 2, 2)).astype(np.float32),
    }
    shares = rng.random(PARTIES) * (rng.random(PARTIES) < 0.8)
    met = {"word": rng.random((PARTIES, 5)) < 0.4}
    return updates, (shares / max(shares.sum(), 1e-9)).astype(np.float32), met


def test_the_mean_over_those_that_arrive_is_right_to_the_quantiser():
    checked = 0
    for seed in range(ROUNDS):
        updates, shares, met = make_round(seed)
        rng = np.random.default_rng(seed)
        bits, clip = int(rng.integers(16, 33)), float(10.0 ** rng.uniform(-2, 1))
        rule = make_rule(ring_bits=bits, clip=clip, dropout_probability=0.2)
        found = mean_of(rule, updates, shares, met, jax.random.key(seed))
        if found.report.failed:
            continue
        checked += 1
        weights = np.where(found.arrived, shares, 0.0).astype(np.float64)
        assert not found.arrived[shares == 0.0].any()
        # Half a step for each of them, in the sum and in the weight that it is divided by.
        step = 2.0 ** (2 - bits) * np.sum(found.arrived) / weights.sum() + 1e-6
        weights /= weights.sum()
        for name, leaf in updates.items():
            expected = np.tensordot(weights, np.clip(leaf, -clip, clip), axes=1)
            np.testing.assert_allclose(found.update[name], expected, rtol=0, atol=clip * step)
        np.testing.assert_allclose(found.row_shares["word"], weights @ met["word"], atol=step)
    assert checked > ROUNDS / 2


@pytest.mark.parametrize("bits", [16, 23, 32])
def test_numbers_survive_the_ring_to_half_a_step_and_sums_use_all_of_it(bits):
    entries = jnp.linspace(-1.0, 1.0, 1001)
    back = restored(quantised(entries[None], bits)[0] & mask_of(bits), bits)
    np.testing.assert_allclose(back, entries, rtol=1e-7, atol=0.5 * 2.0 ** (2 - bits))
    # The bit to spare: a step less than twice the largest sum still has its sign.
    ends = 2 * quantised(jnp.array([[1.0, -1.0]]), bits)[0] + jnp.array([2**32 - 1, 1], jnp.uint32)
    np.testing.assert_allclose(restored(ends & mask_of(bits), bits), [2, -2], rtol=2e-4)


def test_a_row_that_nobody_read_has_no_weight_at_all():
    updates, shares, met = make_round(3)
    met["word"][:, 2] = False
    found = mean_of(make_rule(ring_bits=16), updates, shares, met, jax.random.key(0))
    assert found.row_shares["word"][2] == 0.0


def test_too_few_answers_give_nothing_and_say_so():
    updates, shares, met = make_round(1)
    found = mean_of(make_rule(dropout_probability=1.0), updates, shares, met, jax.random.key(0))
    assert found.report.failed == found.report.dropped == 1.0
    assert not found.arrived.any()
    assert not any(leaf.any() for leaf in jax.tree.leaves((found.update, found.row_shares)))


def test_a_single_party_has_no_sum_to_hide_in():
    updates, _, met = make_round(1)
    alone = jnp.zeros(PARTIES).at[2].set(1.0)
    assert mean_of(make_rule(), updates, alone, met, jax.random.key(0)).report.failed == 1.0


def test_the_threshold_is_a_share_rounded_up_but_two_at_least():
    for count, share, expected in ((6, 0.5, 3), (6, 0.51, 4), (3, 0.66, 2), (5, 0.0, 2), (2, 1, 2)):
        participates = jnp.arange(PARTIES) < count
        assert least_answers(make_rule(threshold=share), participates) == expected


@pytest.mark.slow
def test_drop_outs_come_with_their_probability():
    updates, _, met = make_round(2)
    shares, rule = np.full(PARTIES, 1.0 / PARTIES, np.float32), make_rule(dropout_probability=0.3)
    keys = jax.random.split(jax.random.key(0), 500)
    found = jax.vmap(mean_of, (None, None, None, None, 0))(rule, updates, shares, met, keys)
    np.testing.assert_allclose(found.report.dropped.mean(), 0.3, atol=0.03)
    # Three of six have to stay through both.
    stays = np.random.default_rng(0).random((20_000, 2, PARTIES)) >= 0.3
    np.testing.assert_allclose(
        found.report.failed.mean(), (stays.all(1).sum(1) < 3).mean(), atol=0.07
    )


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_drops_out(number):
    updates, _, met = make_round(2)
    updates["kernel"][4, 1, 1] = number
    shares = np.full(PARTIES, 1.0 / PARTIES, np.float32)
    found = mean_of(make_rule(), updates, shares, met, jax.random.key(0))
    assert found.arrived.tolist() == [True] * 4 + [False, True]
    expected = np.clip(np.delete(updates["kernel"], 4, 0), -1, 1).mean(0)
    np.testing.assert_allclose(found.update["kernel"], expected, atol=1e-6)


def test_clipped_entries_are_counted_among_participants():
    updates, _, met = make_round(2)
    shares = np.array([0.0] + [0.2] * (PARTIES - 1), np.float32)
    found = mean_of(make_rule(clip=0.25), updates, shares, met, jax.random.key(0))
    flat = np.concatenate([leaf[1:].reshape(5, -1) for leaf in updates.values()], axis=1)
    np.testing.assert_allclose(found.report.clipped, (np.abs(flat) > 0.25).mean(), rtol=1e-6)


def test_a_control_unit_adds_up_its_devices_before_it_masks():
    updates, shares, met = make_round(4)  # two clients of each cluster participate
    by_client = mean_of(make_rule(), updates, shares, met, jax.random.key(0))
    by_cluster = mean_of(make_rule(clients=3), updates, shares, met, jax.random.key(0))
    for a, b in zip(*map(jax.tree.leaves, (by_client[:2], by_cluster[:2])), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    # A cluster drops out as a whole: of two parties both have to answer.
    rule = make_rule(clients=3, dropout_probability=0.5)
    for key in jax.random.split(jax.random.key(1), 8):
        for own in mean_of(rule, updates, shares, met, key).arrived[shares > 0.0].reshape(2, -1):
            assert len(set(own.tolist())) == 1
