"""1F1B against a simulator of every stage, and what fits under it against all active sets."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compiled import in_numpy
from support.random_problems import pick, random_problems

from collapipe_jax.edge.cost import computing, feasibility, latency
from collapipe_jax.edge.cost.feasibility import can_run, holding_set

alternating_events = in_numpy(latency.alternating_events, static_argnums=2)
block_capacity = in_numpy(computing.block_capacity)
device_memory_bytes = in_numpy(computing.device_memory_bytes)
flow_time_s = in_numpy(latency.flow_time_s)
kept_samples = in_numpy(computing.kept_samples)
usable_blocks = in_numpy(feasibility.usable_blocks)
DEVICES, BLOCKS = 4, 6


def passes_in_order(stages, stage, micro_batches):
    """Passes of a stage: forward ones first, then a backward and a forward one in turn."""
    first = min(micro_batches, stages - stage)
    passes = [(True, m) for m in range(first)]
    for m in range(micro_batches):
        passes.append((False, m))
        passes += [(True, first + m)] if first + m < micro_batches else []
    return passes


def simulate(forward_s, backward_s, micro_batches):
    """Start and finish of every pass, by direction, stage and micro-batch.

    Every stage runs its next pass as soon as the neighbour has sent what the pass needs.
    """
    stages, found = len(forward_s), {}
    waiting = [passes_in_order(stages, p, micro_batches) for p in range(stages)]
    free_s = np.zeros(stages)
    while any(waiting):
        for p, passes in enumerate(waiting):
            while passes:
                forward, m = passes[0]
                turns = not forward and p == stages - 1
                sender = (True, p, m) if turns else (forward, p - 1 if forward else p + 1, m)
                if not (forward and p == 0) and sender not in found:
                    break
                arrived_s = found[sender][1] if sender in found else 0.0
                start_s = max(free_s[p], arrived_s)
                free_s[p] = start_s + (forward_s if forward else backward_s)[p]
                found[(*passes.pop(0)[:1], p, m)] = start_s, free_s[p]
    return found


def most_kept(found, stage, micro_batches):
    """Most micro-batches between the start of their forward and the end of their backward pass."""
    ends = [(found[False, stage, m][1], -1) for m in range(micro_batches)]
    starts = [(found[True, stage, m][0], 1) for m in range(micro_batches)]
    return int(np.max(np.cumsum([change for _, change in sorted(ends + starts)])))


def random_stages(rng, devices):
    """Stages of a chain, with twice the time backward on nodes and none on the decoder."""
    forward_s, backward_s = rng.exponential(1, (2, 2 * devices + 4)) ** rng.choice([0.3, 1, 3])
    backward_s[:-2:2] = 2 * forward_s[:-2:2]
    backward_s[-1] = 0
    return forward_s, backward_s


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("seed", range(24))
def test_alternating_events_are_those_of_the_simulator_and_end_by_the_formula(seed):
    rng = np.random.default_rng(seed)
    devices, count = seed % 4 + 1, int(rng.integers(1, 17))
    forward_s, backward_s = random_stages(rng, devices)
    expected = simulate(forward_s, backward_s, count)
    found = alternating_events(forward_s, backward_s, count)
    for forward, events in zip((True, False), found, strict=True):
        for m, p in np.ndindex(events.start_s.shape):
            got = events.start_s[m, p], events.finish_s[m, p]
            assert got == pytest.approx(expected[forward, p, m], abs=1e-9)
    chains = np.array([forward_s, backward_s])
    gpipe_s = flow_time_s(chains.sum(1), chains.max(1), np.asarray(count)).sum()
    assert found[1].finish_s.max() <= gpipe_s * (1 + 1e-12)
    if count == 1:
        assert found[1].finish_s.max() == pytest.approx(gpipe_s)


@pytest.mark.parametrize(("stages", "count"), [(4, 1), (5, 3), (8, 8), (6, 20)])
def test_equal_stages_take_as_long_as_under_gpipe(stages, count):
    one = np.ones(stages)
    _, back = alternating_events(one, 2 * one, count)
    assert back.finish_s.max() == pytest.approx(3 * (stages + count - 1))


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 4, 6, 7, 12, 24])
def test_a_device_keeps_what_the_simulator_keeps(devices, count):
    work = pick(random_problems(1, 1, devices, BLOCKS), 0).workload.replace(schedule="1f1b")
    found = simulate(*random_stages(np.random.default_rng(count), devices), count)
    for s in range(devices):
        kept = most_kept(found, 2 * s + 2, count)
        samples = float(work.batch) / count
        assert kept_samples(work, np.asarray(count), devices - s) == pytest.approx(kept * samples)


def test_memory_is_at_most_that_of_gpipe_and_the_same_for_few_micro_batches():
    work = pick(random_problems(1, 2, DEVICES, BLOCKS), 0).workload
    segments = np.array([[2, 0, 3, 1], [0, 6, 0, 0]])
    for count in (1, 2, 3, 4, 6, 8, 12, 24):
        gpipe, other = (
            device_memory_bytes(work.replace(schedule=name), segments, np.full(2, count))
            for name in ("gpipe", "1f1b")
        )
        assert np.all(other <= gpipe)
        if count <= 4:
            np.testing.assert_array_equal(other, gpipe)
        if count == 24:
            assert np.all(other[segments > 0] < gpipe[segments > 0])


def scarce(_, rng, network):
    """Memory of less than the encoder under GPipe, and devices that are away."""
    work, memory = network["workload"], network["compute"]["memory_bytes"]
    work["micro_batch_choices"] = [2, 6, 12, 24]
    block = work["block_static_bytes"] + work["batch"] * work["block_kept_bytes"]
    work["block_working_bytes"] = 0.05 * block
    memory[:] = block * rng.uniform(0.0, 2.2, memory.shape)
    memory[rng.uniform(size=memory.shape) < 0.2] = 0


def scarce_problem(count, clusters, seed=0):
    problem = random_problems(count, clusters, DEVICES, BLOCKS, scarce, seed)
    return problem.replace(workload=problem.workload.replace(schedule="1f1b"))


def test_the_holding_set_is_the_largest_of_all_that_hold_the_blocks():
    rng = np.random.default_rng(5)
    members = [np.array(row) for row in itertools.product((0, 1), repeat=DEVICES)]
    find = jax.jit(holding_set, static_argnums=1)
    for _ in range(100):
        capacity = np.sort(rng.integers(0, 4, (DEVICES, DEVICES)), axis=1)[:, ::-1]
        left = [np.cumsum(row[::-1])[::-1] for row in members]
        rows = [
            np.array([capacity[k, n - 1] if row[k] else 0 for k, n in enumerate(each)])
            for row, each in zip(members, left, strict=True)
        ]
        rows = [row for row, own in zip(rows, members, strict=True) if np.all(row[own > 0] > 0)]
        holding = [row for row in rows if row.sum() >= BLOCKS]
        found = np.asarray(find(capacity, BLOCKS))
        assert found.tolist() in [row.tolist() for row in rows]
        if holding:
            size = max((row > 0).sum() for row in holding)
            most = max(row.sum() for row in holding if (row > 0).sum() == size)
            assert ((found > 0).sum(), found.sum()) == (size, most)
        else:
            assert found.sum() == max(row.sum() for row in rows)


def test_a_cluster_can_run_if_and_only_if_some_partition_fits():
    problem = scarce_problem(60, 1)
    runs = np.asarray(jax.jit(jax.vmap(can_run))(problem))[:, 0]
    assert 0.3 < runs.mean() < 0.95
    rows = [row for row in np.ndindex(*[BLOCKS + 1] * DEVICES) if sum(row) == BLOCKS]
    rows = jnp.array(rows)

    @jax.jit
    @jax.vmap
    def any_fits(problem):
        def fits(count):
            counts = jnp.full(len(rows), count)
            needs = device_memory_bytes(problem.workload, rows, counts)
            return jnp.any(jnp.all(needs <= problem.compute.memory_bytes, axis=1))

        return jnp.any(jax.vmap(fits)(problem.workload.micro_batch_choices))

    np.testing.assert_array_equal(any_fits(problem), runs)
    gpipe = problem.replace(workload=problem.workload.replace(schedule="gpipe"))
    assert np.sum(runs & ~np.asarray(any_fits(gpipe))) > 3  # 1F1B lets more clusters run


def test_every_part_of_a_usable_set_fits():
    problem = jax.device_get(pick(scarce_problem(1, 3, seed=2), 0))
    for count in (6, 24):
        usable = usable_blocks(problem, count)
        for part in itertools.product((0, 1), repeat=DEVICES):
            segments = usable * np.array(part)
            needs = device_memory_bytes(problem.workload, segments, np.full(3, count))
            assert np.all(needs <= problem.compute.memory_bytes * (1 + 2e-6))


def test_capacity_grows_where_fewer_devices_are_left():
    work = jax.device_get(pick(scarce_problem(1, 1), 0)).workload
    memory_bytes = 3.0 * (work.block_static_bytes + work.batch * work.block_kept_bytes)
    capacity = block_capacity(work, np.full(5, memory_bytes), 24, np.arange(1, 6))
    assert np.all(np.diff(capacity) <= 0)
    assert capacity[0] > capacity[-1]
