"""Candidates side by side: starts, choices among them, and mixes of their clusters."""

import jax
import numpy as np
import pytest
from support.compiled import in_numpy
from support.random_problems import random_rounds, to_batch_last

from collapipe_jax.edge.cost.decision import decision_partition
from collapipe_jax.edge.cost.fixed_partition import fix_decision
from collapipe_jax.edge.solver import candidates
from collapipe_jax.edge.solver.candidates import at_falling_powers, starting_candidates
from collapipe_jax.edge.solver.limits import to_logs

join, mix, take = (in_numpy(each) for each in (candidates.join, candidates.mix, candidates.take))
repeat = in_numpy(candidates.repeat, static_argnums=1)
with_candidate_axis = in_numpy(candidates.with_candidate_axis)

pytestmark = pytest.mark.usefixtures("batch_axis_last")
CLUSTERS, DEVICES, BLOCKS, BATCH, COUNT = 2, 3, 5, 12, 4


@pytest.fixture(scope="module")
def some():
    return to_batch_last(random_rounds(BATCH, CLUSTERS, DEVICES, BLOCKS, lambda index: (), seed=3))


@pytest.fixture(scope="module")
def starts(some, batch_axis_last):
    problem, decision = some
    start = in_numpy(lambda p, d: starting_candidates(p, at_falling_powers(d, COUNT)))
    return start(problem, decision)


def test_the_first_start_is_the_decision_and_the_others_its_partition(some, starts):
    problem, decision = some
    fixed = jax.jit(fix_decision)(problem, decision)
    logs = in_numpy(to_logs)(fixed, decision)
    partition = in_numpy(decision_partition)(decision)
    for got, wanted in zip(starts.logs, logs, strict=True):
        np.testing.assert_allclose(got[..., 0, :], wanted, rtol=1e-6)
    for index in range(COUNT):
        for got, wanted in zip(starts, partition, strict=False):
            np.testing.assert_array_equal(got[..., index, :], wanted)
    active = np.asarray(fixed.active)
    power = np.asarray(starts.logs.d2d_power)
    assert np.all(
        np.diff(power, axis=-2)[np.broadcast_to(active[:, :, None], power[:, :, 1:].shape)] < 0
    )
    # Shares of the others are at most those of the decision.
    for got in (starts.logs.d2d_share, starts.logs.d2e_share):
        assert np.all(np.asarray(got) <= np.asarray(got)[..., :1, :] + 1e-6)
    narrowed = np.asarray(starts.logs.d2d_share < starts.logs.d2d_share[..., :1, :] - 1e-3)
    assert narrowed.any()
    assert not narrowed.all()


def test_one_candidate_is_taken_from_each_problem(starts):
    index = np.arange(BATCH) % COUNT
    taken = take(starts, index)
    for got, leaf in zip(jax.tree.leaves(taken), jax.tree.leaves(starts), strict=True):
        wanted = np.stack([np.asarray(leaf)[..., i, r] for r, i in enumerate(index)], axis=-1)
        np.testing.assert_array_equal(got, wanted)
    one = with_candidate_axis(taken.segments)
    np.testing.assert_array_equal(take((starts, one), index)[1], taken.segments)


def test_joined_and_repeated_candidates(starts):
    first = jax.tree.map(lambda leaf: leaf[..., :1, :], starts)
    both = join(starts, first)
    np.testing.assert_array_equal(both.segments[..., -1, :], starts.segments[..., 0, :])
    assert both.logs.d2d_power.shape[-2] == COUNT + 1
    three = repeat(take(starts, np.zeros(BATCH, int)), 3)
    for index in range(3):
        np.testing.assert_array_equal(
            three.logs.d2e_share[..., index, :], starts.logs.d2e_share[..., 0, :]
        )


def test_a_mix_takes_every_cluster_from_its_own_candidate(starts):
    choices = np.random.default_rng(0).integers(0, COUNT, (CLUSTERS, 5, BATCH))
    weight = np.full((CLUSTERS, 1, BATCH), 0.5)
    mixed = mix(starts, choices, weight)
    for n, place, case in np.ndindex(choices.shape):
        chosen = choices[n, place, case]

        def same(get, chosen=chosen, place=place, case=case):
            got, wanted = get(mixed)[..., place, case], get(starts)[..., chosen, case]
            np.testing.assert_array_equal(got, wanted)

        same(lambda c, n=n: c.segments[:, n])
        same(lambda c, n=n: c.micro_batches[n])
        same(lambda c, n=n: c.logs.d2d_share[:, n])
        same(lambda c, n=n: c.logs.d2d_power[:, n])
        same(lambda c, n=n: c.logs.d2e_share[n])
        same(lambda c, n=n: c.logs.d2e_power[n])
        same(lambda c, n=n: c.weights.forward[:, n])
        same(lambda c, n=n: c.weights.hop[:, :, n])
        same(lambda c, n=n: c.weights.uplink[n])
    np.testing.assert_array_equal(mixed.weights.cluster, np.full(choices.shape, 0.5))
