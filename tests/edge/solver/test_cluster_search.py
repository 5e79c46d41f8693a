"""Segments of a cluster against every composition that there is."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.random_problems import random_problems, to_batch_last

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.edge.cost.decision import Allocation
from collapipe_jax.edge.cost.feasibility import can_run, usable_blocks
from collapipe_jax.edge.cost.static_pipeline import with_equal_allocation
from collapipe_jax.edge.solver import cluster_search
from collapipe_jax.edge.solver.active_sets import fill_in_order, fill_order
from collapipe_jax.edge.solver.allocate import allocate
from collapipe_jax.edge.solver.cluster_search import (
    ClusterCandidates,
    cheapest,
    diverse,
    search_clusters,
)
from collapipe_jax.edge.solver.smooth_objective import Coupling

pytestmark = pytest.mark.usefixtures("batch_axis_last")
BLOCKS, DEVICES, KEPT = 5, 3, 8


def compositions(blocks, devices):
    rows = itertools.product(range(blocks + 1), repeat=devices)
    return np.array([row for row in rows if sum(row) == blocks])


fill = jax.jit(lambda cost, *held: fill_in_order(fill_order(cost), *held, BLOCKS))


@given(
    st.lists(st.integers(0, 6), min_size=4, max_size=4),
    st.lists(st.integers(0, 5), min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_fill_is_the_cheapest_composition_of_its_set(unit_cost, capacity, active):
    unit_cost, capacity = np.array(unit_cost, np.float32), np.array(capacity, np.float32)
    active = np.array(active)
    row = np.asarray(fill(unit_cost, capacity, active))
    rows = compositions(BLOCKS, 4)
    same_set = np.all((rows > 0) == active, axis=1)
    allowed = rows[same_set & np.all(capacity >= rows, axis=1)]
    if not len(allowed):
        assert not row.any()
        return
    assert row.tolist() in allowed.tolist()
    assert row @ unit_cost == (allowed @ unit_cost).min()


def test_fills_side_by_side_are_those_one_by_one():
    rng = np.random.default_rng(0)
    unit_cost = rng.uniform(size=(4, 50)).astype(np.float32)
    capacity = rng.integers(0, 5, (4, 50)).astype(np.float32)
    active = rng.uniform(size=(4, 50)) < 0.7
    together = np.asarray(fill(unit_cost, capacity, active))
    assert together.sum(axis=0).any()
    for case in range(50):
        alone = fill(unit_cost[:, case], capacity[:, case], active[:, case])
        np.testing.assert_array_equal(together[:, case], alone)


# --- search -----------------------------------------------------------------------------------


def searcher(clusters):
    """Search without interference, latency at its whole cost, an equal D2E share each."""

    @quick_jit
    def search(problem):
        _, nodes, batch = problem.compute.flops_per_s.shape
        nodes, each = jnp.zeros((nodes, clusters, batch)), jnp.ones((clusters, batch))
        coupling = Coupling(
            interference_w=nodes,
            interference_cost_per_w=nodes,
            latency_cost_per_s=problem.control.v / problem.control.reference_latency_s * each,
            round_s=jnp.zeros(batch),
            bandwidth_cost=jnp.zeros(batch),
        )
        tentative = Allocation(nodes, nodes, each / clusters, problem.radio.d2e_power_max_w)
        return cheapest(search_clusters(problem, tentative, coupling), KEPT)

    return search


search_pairs, search_one = searcher(2), searcher(1)


def test_partitions_fit_in_memory_and_exist_where_a_cluster_can_run():
    def scarce(_, rng, network):
        memory = network["compute"]["memory_bytes"]
        memory *= rng.uniform(0.1, 0.6, memory.shape)
        memory[rng.uniform(size=memory.shape) < 0.2] = 0

    problem = random_problems(64, 2, DEVICES, BLOCKS, scarce)
    found = search_pairs(to_batch_last(problem))
    assert found.segments.shape == (DEVICES, 2, KEPT, 64)
    found, exists = jax.device_get(found), np.isfinite(found.cost)
    choices = np.asarray(problem.workload.micro_batch_choices[0])

    @quick_jit
    @jax.vmap
    def memory_of(problem):
        return can_run(problem), jnp.stack([usable_blocks(problem, count) for count in choices])

    runs, capacity = jax.device_get(memory_of(problem))
    assert 0.05 < runs.mean() < 1
    np.testing.assert_array_equal(exists.any(axis=1), runs.T)
    assert np.all(np.diff(np.where(exists, found.cost, 3e38), axis=1) >= 0)
    assert np.isin(found.micro_batches, choices).all()
    which = np.argmax(np.asarray(found.micro_batches)[..., None] == choices, axis=-1)
    for n, place, case in zip(*np.nonzero(exists), strict=True):
        row = np.asarray(found.segments[:, n, place, case])
        assert row.sum() == BLOCKS
        assert np.all(row >= 0)
        assert np.all(row <= capacity[case, which[n, place, case], n])


def test_candidates_differ_in_their_devices_or_their_micro_batches():
    found = search_pairs(to_batch_last(random_problems(64, 2, DEVICES, BLOCKS)))
    exists = np.isfinite(found.cost)
    used, counts = np.asarray(found.segments) > 0, np.asarray(found.micro_batches)
    for n, case in np.ndindex(exists.shape[0], exists.shape[2]):
        keys = [
            (*used[:, n, j, case], counts[n, j, case]) for j in np.flatnonzero(exists[n, :, case])
        ]
        assert len(keys) > 1
        assert len(set(keys)) == len(keys)
        share = np.exp(np.asarray(found.log_share)[:, n, :, case]).T
        for j, key in enumerate(keys):
            on = np.array([True, *key[:DEVICES]])
            assert share[j][on].sum() <= 1 + 1e-5  # less where losses ask for narrow shares
            assert np.all(share[j][on] > 0)


def test_a_device_behind_a_dead_link_spoils_only_sets_that_use_it():
    def dead(_, __, network):
        network["compute"]["memory_bytes"] *= 1e3
        network["radio"]["d2d_gain"][:, 2, :] = 0
        network["radio"]["d2d_gain"][:, :, 2] = 0

    found = search_pairs(to_batch_last(random_problems(64, 2, DEVICES, BLOCKS, dead)))
    assert np.all(np.asarray(found.segments)[1, :, 0] == 0)
    assert np.all(np.asarray(found.cost)[:, 0] < 1e30)


def test_no_active_set_takes_all_places():
    rng = np.random.default_rng(0)
    number, most, clusters, batch = 40, cluster_search._OF_A_SET, 2, 30
    sets = rng.integers(1, 6, (clusters, number, batch))  # as bits
    cost = rng.exponential(size=sets.shape)
    cost = np.where(rng.uniform(size=sets.shape) < 0.3, np.inf, cost)
    segments = 2 * (sets >> np.arange(DEVICES)[:, None, None, None] & 1)
    place = np.broadcast_to(np.arange(number)[:, None], sets.shape)
    node = np.zeros((DEVICES, *sets.shape))
    given = map(jnp.asarray, (segments, place, node, node, cost))
    found = diverse(ClusterCandidates(*given), KEPT)
    assert found.cost.shape[1] == 3 * KEPT
    found = cheapest(found, KEPT)
    for n, r in itertools.product(range(clusters), range(batch)):
        considered = [i for i in np.argsort(cost[n, :, r])[: 3 * KEPT] if cost[n, i, r] < np.inf]
        of_set = [considered[: k + 1] for k in range(len(considered))]
        nth = [sum(sets[n, i, r] == sets[n, b[-1], r] for i in b) for b in of_set]
        wanted = [i for i, k in zip(considered, nth, strict=True) if k <= most][:KEPT]
        kept = np.asarray(found.micro_batches[n, : len(wanted), r])
        np.testing.assert_array_equal(kept, wanted)
        np.testing.assert_allclose(found.cost[n, : len(wanted), r], cost[n, wanted, r], rtol=1e-6)


@pytest.mark.slow
def test_the_best_partition_is_nearly_always_in_a_promising_set(monkeypatch):
    """Few of the 31 sets of 5 devices get shares; with all of them little would be won."""
    problem = to_batch_last(random_problems(256, 1, 5, 8, seed=4))
    few = searcher(1)(problem)
    monkeypatch.setattr(cluster_search, "_FILLED_SETS", 31)
    every = searcher(1)(problem)
    exists = np.isfinite(every.cost[0])
    assert np.mean(exists) > 0.5
    np.testing.assert_array_equal(np.isfinite(few.cost[0]), exists)
    lost = few.cost[0][exists] / every.cost[0][exists] - 1.0
    assert np.all(lost > -1e-4)  # nothing is cheaper for having been left out
    assert np.mean(lost > 1e-3) < 0.02
    assert 0 < np.mean(few.cost[-1][exists] > 1.001 * every.cost[-1][exists]) < 0.5


@pytest.mark.slow
def test_the_best_of_all_partitions_is_nearly_always_among_the_first():
    """One cluster, no queues: every partition at its own best shares and powers."""
    count = 6

    def free(_, __, network):
        network["compute"]["memory_bytes"] *= 1e3
        network["control"]["energy_queue"] *= 0
        network["control"]["divergence_queue"] = 0.0

    problem = random_problems(count, 1, DEVICES, BLOCKS, free, seed=2)
    rows = compositions(BLOCKS, DEVICES)
    choices = np.asarray(problem.workload.micro_batch_choices[0])
    partitions = [(*row, m) for row in rows.tolist() for m in choices.tolist()]

    @quick_jit
    @jax.vmap
    def best_of_each(problem):
        def of(partition):
            start = with_equal_allocation(problem, partition[None, :-1], partition[-1:])
            return allocate(problem, start, 100)

        return jax.vmap(of)(jnp.asarray(partitions, jnp.int32))

    solution = best_of_each(problem)
    found = search_one(to_batch_last(problem))
    objective = np.asarray(solution.objective)
    assert np.all(solution.lower_bound <= objective * (1 + 1e-5))
    gaps = []
    for case in range(count):
        proposed = [
            (*np.asarray(found.segments[j, :, 0, case], int), int(found.micro_batches[j, 0, case]))
            for j in range(KEPT)
        ]
        best_proposed = min(objective[case, partitions.index(partition)] for partition in proposed)
        gaps.append(best_proposed / objective[case].min() - 1)
    assert np.median(gaps) < 1e-4
    assert np.max(gaps) < 0.02
