import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.random_problems import pick, plain_problems, random_problems

from collapipe_jax.edge.cost.feasibility import can_run, is_feasible, usable_blocks
from collapipe_jax.edge.cost.static_pipeline import split_equally, static_pipeline

BLOCKS = 7
split = jax.jit(lambda capacity: split_equally(capacity, BLOCKS))
decide = jax.jit(jax.vmap(static_pipeline, in_axes=(0, None)))
feasible = jax.jit(jax.vmap(is_feasible))
runnable = jax.jit(jax.vmap(can_run))


@given(st.lists(st.integers(0, 7), min_size=3, max_size=3))
def test_split_moves_blocks_only_where_memory_forbids(capacity):
    row = np.asarray(split(np.array([capacity])))[0]
    if sum(capacity) < BLOCKS:
        assert row.tolist() == [0, 0, 0]
        return
    equal = np.array([3, 2, 2])
    assert row.sum() == BLOCKS
    assert np.all(row <= capacity)
    assert np.all(row >= np.minimum(equal, capacity))
    # Homeless blocks fill the first devices with room: none before the last taker has any left.
    takers = np.flatnonzero(row > equal)
    if takers.size:
        assert np.all(row[: takers[-1]] == np.array(capacity)[: takers[-1]])


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        ([7, 7, 7], [3, 2, 2]),
        ([1, 7, 7], [1, 4, 2]),
        ([7, 1, 1], [5, 1, 1]),
        ([0, 0, 7], [0, 0, 7]),
        ([2, 2, 2], [0, 0, 0]),
    ],
)
def test_split_by_hand(capacity, expected):
    assert split(np.array([capacity])).tolist() == [expected]


def test_equal_shares_and_full_power():
    problem = plain_problems(4, 3, 4, BLOCKS)
    decision = decide(problem, 3)
    assert np.all(feasible(problem, decision))
    assert decision.segments[0].tolist() == [[2, 2, 2, 1]] * 3
    np.testing.assert_allclose(decision.d2d_share, 0.2)
    np.testing.assert_allclose(decision.d2e_share, 1 / 3)
    np.testing.assert_array_equal(decision.d2d_power_w, problem.radio.d2d_power_max_w)
    np.testing.assert_array_equal(decision.d2e_power_w, problem.radio.d2e_power_max_w)


@pytest.mark.parametrize(("wanted", "taken"), [(1, 2), (3, 3), (8, 6), (100, 12)])
def test_the_nearest_allowed_number_of_micro_batches(wanted, taken):
    decision = decide(plain_problems(4, 3, 4, BLOCKS), wanted)
    assert np.all(np.asarray(decision.micro_batches) == taken)


def test_feasible_whatever_the_memory():
    def scarce(index, rng, network):
        memory = network["compute"]["memory_bytes"]
        memory *= rng.uniform(0, 1, memory.shape)
        memory[rng.uniform(size=memory.shape) < 0.3] = 0

    problem = random_problems(200, 3, 4, BLOCKS, scarce)
    decision = decide(problem, 3)
    assert np.all(feasible(problem, decision))
    runs = np.asarray(runnable(problem))
    assert 0.1 < runs.mean() < 0.95
    np.testing.assert_array_equal(np.asarray(decision.segments).sum(2) > 0, runs)
    present = runs.sum(1)[:, None]
    np.testing.assert_allclose(decision.d2e_share, np.where(runs, 1 / np.maximum(present, 1), 0))


def test_the_finest_micro_batches_where_the_wanted_ones_do_not_fit():
    def only_finest(index, rng, network):
        work = network["workload"]
        per_block = work["block_static_bytes"] + work["batch"] * work["block_kept_bytes"]
        work["block_working_bytes"] = per_block
        memory = per_block * (2 + work["batch"] / 12 * 1.001)
        network["compute"]["memory_bytes"][1] = memory
        network["compute"]["memory_bytes"][[0, 2]] = 1e15

    problem = random_problems(1, 3, 4, BLOCKS, only_finest)
    decision = decide(problem, 3)
    assert decision.micro_batches[0].tolist() == [3, 12, 3]
    assert decision.segments[0, 1].tolist() == [2, 2, 2, 1]
    assert np.asarray(usable_blocks(pick(problem, 0), jnp.array(3)))[1].sum() == 0
