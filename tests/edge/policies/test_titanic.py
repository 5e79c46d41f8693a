"""Placements against all there are, with affinities worked out again in NumPy."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.compilations import compiles
from support.random_problems import pick, plain_problems, random_problems

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.feasibility import can_run, is_feasible, usable_blocks
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.policies.baselines import affinity_s, near_equal_sizes, titanic

CLUSTERS, DEVICES, BLOCKS = 3, 5, 7
NETWORKS = 24


def _decide(problem, micro_batches, partitions):
    return jax.vmap(lambda one: titanic(one, micro_batches, partitions))(problem)


decide = jax.jit(_decide, static_argnums=2)
static = jax.jit(jax.vmap(static_pipeline, in_axes=(0, None)))
feasible = jax.jit(jax.vmap(is_feasible))
runnable = jax.jit(jax.vmap(can_run))
room = jax.jit(jax.vmap(jax.vmap(usable_blocks, in_axes=(None, 0)), in_axes=(0, None)))


def block_bytes(work):
    return work["block_static_bytes"] + work["batch"] * work["block_kept_bytes"]


def scarce(index, rng, network):
    """Room for few blocks or for all, devices away, links and speeds of all kinds.

    Numbers of micro-batches may matter, and the best devices are often without room.
    """
    memory, work = network["compute"]["memory_bytes"], network["workload"]
    most = rng.choice([3, 4, 5, BLOCKS + 1], (len(memory), 1))
    memory[:] = block_bytes(work) * (rng.integers(0, most, memory.shape) + rng.uniform(0.1, 1.0))
    memory[rng.uniform(size=memory.shape) < rng.choice([0, 0.2])] = 0
    work["block_working_bytes"] = rng.choice([0, 0.05]) * block_bytes(work)
    work["micro_batch_choices"] = [1, 3, 6, 12]
    network["compute"]["flops_per_s"] *= 4 ** rng.uniform(
        -1, 1, network["compute"]["flops_per_s"].shape
    )
    network["radio"]["d2d_gain"] *= 10 ** rng.uniform(-3, 1, network["radio"]["d2d_gain"].shape)


def sizes_by_hand(partitions):
    sizes = [0] * partitions
    for block in range(BLOCKS):
        sizes[block % partitions] += 1
    return [size for size in sizes if size]


def cost_s(problem, n, device, size, partitions, count):
    """Seconds of a local step on a device (from 1): compute, and twice the mean transfer."""
    work, radio, compute = (
        jax.tree.map(lambda leaf: np.asarray(leaf, float), part)
        for part in (problem.workload, problem.radio, problem.compute)
    )
    samples, share = work.batch / count, 1 / (partitions + 1)
    forward = size * (
        samples * work.block_flops / compute.flops_per_s[n, device] + compute.block_overhead_s
    )
    transfers = 0.0
    for sender, receiver in [(0, device), (device, 0)]:
        noise = share * radio.d2d_bandwidth_hz * radio.node_noise_w_per_hz
        signal = radio.d2d_power_max_w[n, sender] * radio.d2d_gain[n, sender, receiver]
        efficiency = min(
            math.log2(1 + signal / noise / radio.snr_gap), radio.max_spectral_efficiency
        )
        rate = share * radio.d2d_bandwidth_hz * efficiency
        transfers += samples * work.activation_bits / rate + compute.link_overhead_s
    return count * (forward * (1 + work.backward_ratio) + transfers)


def all_placements(problem, n, capacity, count, sizes):
    """Cost of every placement that memory allows, by segments of the devices."""
    table = {
        (device, size): cost_s(problem, n, device + 1, size, len(sizes), count)
        for device in range(DEVICES)
        for size in set(sizes)
    }
    found = {}
    for devices in itertools.permutations(range(DEVICES), len(sizes)):
        pairs = list(zip(devices, sizes, strict=True))
        if all(capacity[device] >= size for device, size in pairs):
            segments = [dict(pairs).get(device, 0) for device in range(DEVICES)]
            found[tuple(segments)] = sum(table[pair] for pair in pairs)
    return found


def check_cluster(problem, n, rooms, decision, fallback, wanted, partitions):
    """One cluster against brute force; the place in the order of attempts, or None."""
    choices = np.asarray(problem.workload.micro_batch_choices).tolist()
    segments, count = decision.segments[n].tolist(), int(decision.micro_batches[n])
    numbers = range(min(partitions, DEVICES), DEVICES + 1)
    for place, (number, tried) in enumerate(itertools.product(numbers, (wanted, max(choices)))):
        capacity = rooms[choices.index(tried), n]
        found = all_placements(problem, n, capacity, tried, sizes_by_hand(number))
        if found:
            assert count == tried
            assert found[tuple(segments)] <= min(found.values()) * (1 + 1e-5)
            return place, len(found)
    assert segments == fallback.segments[n].tolist()
    assert count == int(fallback.micro_batches[n])
    return None, 0


def test_affinities_by_hand():
    problem = pick(random_problems(1, CLUSTERS, DEVICES, BLOCKS, scarce), 0)
    sizes, counts = np.array([[3, 2, 2], [4, 3, 0], [7, 0, 0]]), np.array([3, 1, 12])
    found = jax.jit(affinity_s)(problem, sizes, counts)
    expected = [
        [
            [-cost_s(problem, n, k, size, np.sum(sizes[n] > 0), counts[n]) for k in range(1, 6)]
            if size
            else [0.0] * DEVICES
            for size in sizes[n]
        ]
        for n in range(CLUSTERS)
    ]
    np.testing.assert_allclose(found, expected, rtol=2e-5)


@pytest.mark.parametrize(
    ("wanted", "partitions"),
    [
        (1, 3),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((3, 1), (3, 3), (1, 2))),
    ],
)
def test_the_best_of_all_placements(wanted, partitions):
    """Wanted and finest micro-batches, more partitions, and the static pipeline: all occur."""
    problem = random_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS, scarce, seed=partitions)
    decision, fallback = decide(problem, wanted, partitions), static(problem, wanted)
    assert np.all(feasible(problem, decision))
    rooms = np.asarray(room(problem, problem.workload.micro_batch_choices[0]))
    decision, fallback, problem = jax.device_get((decision, fallback, problem))
    seen = []
    for index in range(NETWORKS):
        one = (pick(decision, index), pick(fallback, index), wanted, partitions)
        for n in range(CLUSTERS):
            seen.append(check_cluster(pick(problem, index), n, rooms[index], *one))
    places = [place for place, _ in seen]
    assert max(ways for _, ways in seen) > 3
    assert {0, 1, 2, None} <= set(places)


def test_feasible_on_every_network():
    problem = random_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS, scarce, seed=9)
    decision = decide(problem, 3, 3)
    assert np.all(feasible(problem, decision))
    runs = np.asarray(runnable(problem))
    assert 0.1 < runs.mean() < 0.99
    segments = np.asarray(decision.segments)
    np.testing.assert_array_equal(segments.sum(2), np.where(runs, BLOCKS, 0))
    away = np.asarray(problem.compute.memory_bytes) == 0
    assert np.any(away & runs[:, :, None])
    assert not np.any(segments[away])


def test_equal_shares_and_full_power():
    problem = plain_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS)
    decision = decide(problem, 3, 3)
    assert np.all(feasible(problem, decision))
    active = np.asarray(decision.segments) > 0
    assert np.all(active.sum(2) == 3)
    np.testing.assert_allclose(np.asarray(decision.d2d_share)[:, :, 1:], np.where(active, 0.25, 0))
    np.testing.assert_allclose(decision.d2d_share[:, :, 0], 0.25)
    np.testing.assert_allclose(decision.d2e_share, 1 / 3)
    power_max_w = np.asarray(problem.radio.d2d_power_max_w)[:, :, 1:]
    np.testing.assert_array_equal(
        np.asarray(decision.d2d_power_w)[:, :, 1:], np.where(active, power_max_w, 0)
    )
    np.testing.assert_array_equal(decision.d2e_power_w, problem.radio.d2e_power_max_w)


@pytest.mark.parametrize(
    ("wanted", "choices", "taken"),
    [(1, [1, 2, 6, 12], 1), (1, [6, 12, 2, 3], 2), (9, [2, 4, 8, 24], 8), (99, [2, 3, 24, 6], 24)],
)
def test_the_nearest_allowed_number_of_micro_batches(wanted, choices, taken):
    problem = plain_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS)
    choices = np.tile(np.array(choices, np.int32), (NETWORKS, 1))
    problem = problem.replace(workload=problem.workload.replace(micro_batch_choices=choices))
    assert np.all(np.asarray(decide(problem, wanted, 3).micro_batches) == taken)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "blocks", "partitions", "expected"),
    [(4, 4, 4, [1, 1, 1, 1]), (4, 3, 9, [0, 1, 1, 1]), (2, 7, 3, [3, 4]), (1, 7, 3, [7])],
)
def test_as_many_partitions_as_devices_or_more(devices, blocks, partitions, expected):
    problem = plain_problems(3, 2, devices, blocks)
    decision = decide(problem, 3, partitions)
    assert np.all(feasible(problem, decision))
    assert np.all(np.sort(np.asarray(decision.segments), axis=2) == expected)


@given(st.integers(1, 12), st.integers(1, 12))
def test_sizes_differ_by_one_at_most(blocks, partitions):
    sizes = np.asarray(near_equal_sizes(blocks, jnp.array([partitions]), 12))[0]
    assert sizes.sum() == blocks
    assert np.all(np.diff(sizes) <= 0)
    assert np.ptp(sizes[:partitions]) <= 1
    assert not np.any(sizes[partitions:])


def with_room(blocks_of_device, working=0.0):
    """Networks whose devices hold so many blocks, working memory left aside."""

    def change(_, __, network):
        work = network["workload"]
        work["block_working_bytes"] = working * block_bytes(work)
        network["compute"]["memory_bytes"][:] = block_bytes(work) * np.array(blocks_of_device)

    return random_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS, change)


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ((2, 2, 0, 2, 2), [1, 2, 2, 2]),  # 3 + 2 + 2 finds no room for 3
        ((2, 1, 1, 2, 1), [1, 1, 1, 2, 2]),  # nor 2 + 2 + 2 + 1 for three times 2
        ((7, 2, 0, 0, 2), [2, 2, 3]),
    ],
)
def test_memory_forces_more_partitions(held, expected):
    decision = decide(with_room([blocks + 0.5 for blocks in held]), 3, 3)
    segments = np.asarray(decision.segments)
    assert np.all(segments <= held)
    assert np.all(np.sort(segments, axis=2)[:, :, -len(expected) :] == expected)
    assert np.all(np.asarray(decision.micro_batches) == 3)


def test_the_static_pipeline_where_nothing_can_be_placed():
    problem = with_room([4.5, 1.5, 1.5, 1.5, 0.5])
    decision = decide(problem, 3, 3)
    jax.tree.map(np.testing.assert_array_equal, decision, static(problem, 3))
    assert np.all(np.asarray(decision.segments) == [4, 1, 1, 1, 0])


def test_the_finest_micro_batches_before_more_partitions():
    """With 3 of them nobody can hold three blocks, with 12 everybody can."""
    decision = decide(with_room([3.3] * 5, working=0.05), 3, 3)
    assert np.all(np.asarray(decision.micro_batches) == 12)
    assert np.all(np.sort(np.asarray(decision.segments), axis=2) == [0, 0, 2, 2, 3])


def test_a_dead_link_is_avoided_if_it_can_be():
    problem = plain_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS)
    gain = problem.radio.d2d_gain
    dead = gain.at[:, :, 2, 0].set(0).at[:, 0, 0, 4].set(0)
    problem = problem.replace(radio=problem.radio.replace(d2d_gain=dead))
    segments = np.asarray(decide(problem, 3, 3).segments)
    assert not np.any(segments[:, :, 1])
    assert not np.any(segments[:, 0, 3])
    nobody = problem.replace(radio=problem.radio.replace(d2d_gain=0 * gain))
    jax.tree.map(np.testing.assert_array_equal, decide(nobody, 3, 3), static(nobody, 3))


def test_where_to_place_is_worth_something():
    """A much faster device with much better links is taken, and gets the largest partition."""

    def one_is_better(index, rng, network):
        network["compute"]["memory_bytes"] *= 1e3
        network["compute"]["flops_per_s"][:, 1 + index % DEVICES] *= 100
        network["radio"]["d2d_gain"][:, 1 + index % DEVICES] *= 100
        network["radio"]["d2d_gain"][:, :, 1 + index % DEVICES] *= 100

    problem = random_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS, one_is_better)
    segments = np.asarray(decide(problem, 3, 3).segments)
    for index in range(NETWORKS):
        assert np.all(segments[index, :, index % DEVICES] == 3)


def test_no_partition_is_an_error():
    with pytest.raises(InputError, match="no partition"):
        decide(plain_problems(1, 1, 2, BLOCKS), 3, 0)


def test_other_networks_and_numbers_are_not_compiled_again():
    decide(plain_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS), 3, 3)
    with compiles(_decide, 0):
        for seed, wanted in ((5, 1), (6, 3), (7, 12)):
            problem = random_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS, scarce, seed)
            assert np.all(feasible(problem, decide(problem, wanted, 3)))
