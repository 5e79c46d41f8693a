"""Draws against enumeration and closed forms, at fixed seeds."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest
from support.compilations import compiles
from support.compiled import evaluate
from support.random_problems import pick, plain_problems, random_problems, stack

from collapipe_jax.edge.cost.decision import active_nodes
from collapipe_jax.edge.cost.feasibility import can_run, is_feasible, usable_blocks
from collapipe_jax.edge.policies.baselines import log_ways, random_composition, random_policy
from collapipe_jax.edge.solver.exhaustive import compositions, enumerate_partitions

BLOCKS = 7
DRAWS = 10_000
UNLIKELY = 1e-3
"""Seeds are fixed, so a right program passes always, and a wrong one fails."""


@jax.jit
def decide(keys, problem):
    return jax.vmap(random_policy)(keys, problem)


draw_for_one = jax.jit(jax.vmap(random_policy, in_axes=(0, None)))


@functools.partial(jax.jit, static_argnums=2)
def compose(keys, capacity, blocks):
    return jax.vmap(lambda key: random_composition(key, capacity, blocks, blocks))(keys)


table = jax.jit(log_ways, static_argnums=1)
feasible = jax.jit(jax.vmap(is_feasible))
runnable = jax.jit(jax.vmap(can_run))


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


def scarce(index, rng, network):
    """Little memory, a third of the devices away, and numbers of micro-batches that matter."""
    memory = network["compute"]["memory_bytes"]
    memory *= rng.uniform(0, 1, memory.shape)
    memory[rng.uniform(size=memory.shape) < 0.3] = 0
    network["workload"]["block_working_bytes"] *= 20


def ways_by_hand(capacity, blocks):
    """Whole numbers of any size."""
    rows = [[1] + [0] * blocks]
    for most in reversed(capacity):
        after = rows[0]
        sums = [sum(after[max(0, held - most) : held + 1]) for held in range(blocks + 1)]
        rows.insert(0, sums)
    return rows


def assert_uniform_over(expected, drawn):
    """Every row of ``expected`` is drawn equally often, and no other."""
    places = {tuple(row): place for place, row in enumerate(expected.tolist())}
    seen = np.bincount([places[tuple(row)] for row in drawn.tolist()], minlength=len(places))
    assert chisquare(seen).pvalue > UNLIKELY


@pytest.mark.parametrize(
    "capacity", [(7, 7, 7), (3, 2, 4, 1), (0, 7, 0, 2), (7, 7), (5,) * 5, (1,) * 7, (1, 6)]
)
def test_compositions_are_uniform_over_all_that_fit(capacity):
    # Devices without room follow, and all cases have one program.
    capacity = np.pad(capacity, (0, 7 - len(capacity)))
    ways = compositions(BLOCKS, len(capacity))
    ways = ways[np.all(ways <= capacity, axis=1)]
    drawn = np.asarray(compose(keys(DRAWS), capacity, BLOCKS))
    if len(ways) == 1:
        assert np.all(drawn == ways)
    else:
        assert_uniform_over(ways, drawn)


@pytest.mark.parametrize("capacity", [(3, 3, 0), (0, 0, 0, 0), (6,)])
def test_no_blocks_where_they_do_not_fit(capacity):
    capacity = np.pad(capacity, (0, 7 - len(capacity)))
    assert not np.any(compose(keys(DRAWS), capacity, BLOCKS))


@given(st.lists(st.integers(0, 8), min_size=4, max_size=4))
def test_ways_are_counted_exactly(capacity):
    counted = np.exp(np.asarray(table(jnp.array(capacity), 12), float))
    np.testing.assert_allclose(counted, ways_by_hand(capacity, 12), rtol=1e-5)


@pytest.mark.parametrize(
    ("blocks", "devices"), [pytest.param(64, 16, marks=pytest.mark.slow), (300, 120)]
)
def test_many_blocks_on_many_devices(blocks, devices):
    capacity = np.random.default_rng(0).integers(0, blocks + 1, devices)
    exact = ways_by_hand(capacity.tolist(), blocks)
    assert exact[0][blocks] > 1e12
    counted = np.asarray(table(jnp.array(capacity), blocks))
    logs = [[math.log(ways) if ways else -np.inf for ways in row] for row in exact]
    np.testing.assert_allclose(counted, logs, rtol=1e-6, atol=1e-5)
    drawn = np.asarray(compose(keys(200), jnp.array(capacity), blocks))
    assert np.all(drawn.sum(1) == blocks)
    assert np.all((drawn >= 0) & (drawn <= capacity))
    assert len(np.unique(drawn, axis=0)) == 200


def two_counts_fit(index, rng, network):
    """Room for 2 and 4 blocks with 2 and 3 micro-batches, for 8 and 9 with 6 and 12."""
    work = network["workload"]
    per_block = work["block_static_bytes"] + work["batch"] * work["block_kept_bytes"]
    work["block_working_bytes"] = 0.3 * per_block
    network["compute"]["memory_bytes"][:] = per_block * np.array([4.3, 2.0, 6.3])


def test_micro_batches_then_segments_are_uniform():
    """Each number that fits equally often; with it, each row that fits."""
    problem = pick(random_problems(1, 2, 3, BLOCKS, two_counts_fit), 0)
    choices = problem.workload.micro_batch_choices
    room = np.asarray(jax.vmap(lambda count: usable_blocks(problem, count))(choices)).sum(-1)
    assert room[:, 0].tolist() == [2, 4, 8, 9]
    own = enumerate_partitions(problem)
    decision = draw_for_one(keys(DRAWS), problem)
    counts = np.asarray(decision.micro_batches)
    for n in range(2):
        values, seen = np.unique(counts[:, n], return_counts=True)
        assert values.tolist() == [6, 12]
        assert chisquare(seen).pvalue > UNLIKELY
        for count in values:
            ways = own.segments[own.allowed[:, 0] & (own.micro_batches == count)]
            assert_uniform_over(ways, np.asarray(decision.segments)[counts[:, n] == count, n])


def test_clusters_are_drawn_independently():
    """Two rows of 36, and two numbers of 4, are the same by chance alone."""
    decision = draw_for_one(keys(DRAWS), pick(plain_problems(1, 2, 3, BLOCKS), 0))
    rows, counts = np.asarray(decision.segments), np.asarray(decision.micro_batches)
    for same, rate in [
        (np.all(rows[:, 0] == rows[:, 1], axis=1), 1 / 36),
        (counts[:, 0] == counts[:, 1], 1 / 4),
    ]:
        assert abs(same.mean() - rate) < 4 * math.sqrt(rate / DRAWS)
    power = np.asarray(decision.d2d_power_w).reshape(DRAWS, -1)
    correlation = np.corrcoef(power[np.all(power > 0, axis=1)].T) - np.eye(power.shape[1])
    assert np.all(np.abs(correlation) < 0.1)


def test_feasible_on_every_network():
    problem = random_problems(100, 3, 4, BLOCKS, scarce)
    decision = decide(keys(100), problem)
    assert np.all(feasible(problem, decision))
    runs = np.asarray(runnable(problem))
    assert 0.1 < runs.mean() < 0.95
    segments = np.asarray(decision.segments)
    np.testing.assert_array_equal(segments.sum(2), np.where(runs, BLOCKS, 0))
    assert not np.any(segments[np.asarray(problem.compute.memory_bytes) == 0])
    for leaf in jax.tree.leaves(decision):
        assert np.all(np.isfinite(leaf))


def test_one_device_and_one_cluster():
    problem = plain_problems(20, 1, 1, BLOCKS)
    decision = decide(keys(20), problem)
    assert np.all(feasible(problem, decision))
    assert np.all(np.asarray(decision.segments) == BLOCKS)
    np.testing.assert_array_equal(decision.d2e_share, 1)


def test_shares_are_uniform_on_the_simplex():
    """Of n members each has mean 1/n and tail (1 - x)^(n - 1); the idle have nothing."""
    problem = pick(plain_problems(1, 3, 4, BLOCKS), 0)
    away = problem.compute.memory_bytes.at[1].set(0).at[0, 2].set(0)
    problem = problem.replace(compute=problem.compute.replace(memory_bytes=away))
    decision = draw_for_one(keys(DRAWS), problem)
    active = np.asarray(active_nodes(decision.segments))
    share, d2e_share = np.asarray(decision.d2d_share), np.asarray(decision.d2e_share)
    np.testing.assert_array_equal(share > 0, active)
    np.testing.assert_array_equal(d2e_share > 0, active[:, :, 0])
    np.testing.assert_allclose(share.sum(2), active[:, :, 0], rtol=1e-5)
    np.testing.assert_allclose(d2e_share.sum(1), 1, rtol=1e-5)
    samples = {2: [d2e_share[:, 0], d2e_share[:, 2]]}
    members = active[:, 2].sum(1)
    for count in (3, 4, 5):
        rows = members == count
        samples[count] = [share[rows & active[:, 2, i], 2, i] for i in range(5)]
    for count, each in samples.items():
        for drawn in each:
            assert drawn.size > 500
            assert drawn.mean() == pytest.approx(1 / count, abs=4 * 0.3 / drawn.size**0.5)
            assert kstest(drawn, lambda x, n=count: 1 - (1 - x) ** (n - 1)).pvalue > UNLIKELY


def test_powers_are_uniform_in_their_boxes():
    problem = pick(plain_problems(1, 3, 4, BLOCKS), 0)
    decision = draw_for_one(keys(DRAWS, 1), problem)
    active = np.asarray(active_nodes(decision.segments))
    d2d = np.asarray(decision.d2d_power_w) / np.asarray(problem.radio.d2d_power_max_w)
    d2e = np.asarray(decision.d2e_power_w) / np.asarray(problem.radio.d2e_power_max_w)
    assert not np.any(d2d[~active])
    for drawn in [d2d[:, n, i][active[:, n, i]] for n in range(3) for i in range(5)] + [*d2e.T]:
        assert 0 < drawn.min() < drawn.max() < 1 + 1e-6
        assert kstest(drawn, "uniform").pvalue > UNLIKELY


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, 0, None))
def with_draw(key, problem, draw):
    """Whether a decision is feasible, and its cost, if all draws are this one."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(jax.random, "uniform", lambda key, shape: jnp.full(shape, draw))
        decision = random_policy(key, problem)
    return is_feasible(problem, decision), evaluate(problem, decision)


@pytest.mark.parametrize("draw", [0.0, 1.0 - 2.0**-23])
def test_no_message_is_broken_by_the_least_or_the_largest_draw(draw):
    problem = plain_problems(5, 3, 4, BLOCKS)
    fits, cost = jax.device_get(with_draw(keys(5), problem, draw))
    assert np.all(fits)
    for value in (cost.latency_s, cost.energy_j, cost.divergence, cost.objective):
        assert np.all(np.isfinite(value))


def test_the_key_alone_decides():
    problem = stack([pick(plain_problems(1, 3, 4, BLOCKS), 0)] * 100)
    first, again = decide(keys(100), problem), decide(keys(100), problem)
    jax.tree.map(np.testing.assert_array_equal, first, again)
    for leaf in (first.segments, first.d2d_share, first.d2d_power_w, first.d2e_power_w):
        rows = np.asarray(leaf).reshape(100, -1)
        assert len(np.unique(rows, axis=0)) > 95
    assert len(np.unique(np.asarray(first.micro_batches), axis=0)) > 40


def test_other_networks_are_not_compiled_again():
    decide(keys(100), plain_problems(100, 3, 4, BLOCKS))
    with compiles(decide, 0):
        for seed in (5, 6, 7):
            problem = random_problems(100, 3, 4, BLOCKS, scarce, seed)
            assert np.all(feasible(problem, decide(keys(100, seed), problem)))
