"""Segments by candidates against every composition there is."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.random_problems import random_problems, to_lanes

from collapipe_jax.allocation.allocate import tune_resources
from collapipe_jax.allocation.variables import Resources, Surroundings
from collapipe_jax.compilation import quick_jit
from collapipe_jax.cost.feasibility import can_run, usable_blocks
from collapipe_jax.cost.static_pipeline import with_equal_allocation
from collapipe_jax.partition import candidates as segments
from collapipe_jax.partition.candidates import candidate_sets, fill_segments, propose_layouts

pytestmark = pytest.mark.usefixtures("lanes_last")
BLOCKS, DEVICES, KEPT = 5, 3, 8


def compositions(blocks, devices):
    rows = itertools.product(range(blocks + 1), repeat=devices)
    return np.array([row for row in rows if sum(row) == blocks])


fill = jax.jit(lambda *arguments: fill_segments(*arguments, BLOCKS))


@given(
    st.lists(st.integers(0, 6), min_size=4, max_size=4),
    st.lists(st.integers(0, 5), min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_fill_is_the_cheapest_composition_of_its_set(unit_price, capacity, active):
    unit_price, capacity = np.array(unit_price, np.float32), np.array(capacity, np.float32)
    active = np.array(active)
    row = np.asarray(fill(unit_price, capacity, active))
    rows = compositions(BLOCKS, 4)
    same_set = np.all((rows > 0) == active, axis=1)
    allowed = rows[same_set & np.all(capacity >= rows, axis=1)]
    if not len(allowed):
        assert not row.any()
        return
    assert row.tolist() in allowed.tolist()
    assert row @ unit_price == (allowed @ unit_price).min()


def test_fills_side_by_side_are_those_one_by_one():
    rng = np.random.default_rng(0)
    unit_price = rng.uniform(size=(4, 50)).astype(np.float32)
    capacity = rng.integers(0, 5, (4, 50)).astype(np.float32)
    active = rng.uniform(size=(4, 50)) < 0.7
    together = np.asarray(fill(unit_price, capacity, active))
    assert together.sum(axis=0).any()
    for lane in range(50):
        alone = fill(unit_price[:, lane], capacity[:, lane], active[:, lane])
        np.testing.assert_array_equal(together[:, lane], alone)


def test_all_subsets_of_few_devices():
    sets = np.asarray(candidate_sets(jnp.zeros((2, 4, 3, 5))))
    assert sets.shape == (15, 4, 3, 5)
    for n, lane in np.ndindex(3, 5):
        assert len({tuple(row) for row in sets[:, :, n, lane]}) == 15
    assert sets.any(axis=1).all()


def test_the_best_devices_first_of_many():
    preference = np.random.default_rng(0).uniform(size=(2, 8, 3))
    sets = np.asarray(candidate_sets(jnp.asarray(preference)))
    assert sets.shape == (16, 8, 3)
    for order, size, n in itertools.product(range(2), range(1, 9), range(3)):
        best = np.argsort(preference[order, :, n])[:size]
        assert set(np.flatnonzero(sets[order * 8 + size - 1, :, n])) == set(best)


# --- layouts ----------------------------------------------------------------------------------


def proposal(clusters):
    """Proposals in silence, latency at the round's whole price, an equal D2E share each."""

    @quick_jit
    def propose(problem):
        _, nodes, lanes = problem.compute.flops_per_s.shape
        nodes, each = jnp.zeros((nodes, clusters, lanes)), jnp.ones((clusters, lanes))
        around = Surroundings(
            heard_w=nodes,
            price_per_w=nodes,
            price_per_s=problem.control.v / problem.control.reference_latency_s * each,
            round_s=jnp.zeros(lanes),
            price_per_share=jnp.zeros(lanes),
        )
        tentative = Resources(nodes, nodes, each / clusters, problem.radio.d2e_power_max_w)
        return propose_layouts(problem, tentative, around, KEPT)

    return propose


propose_pairs, propose_one = proposal(2), proposal(1)


def test_layouts_fit_in_memory_and_are_there_where_a_cluster_can_run():
    def scarce(_, rng, network):
        memory = network["compute"]["memory_bytes"]
        memory *= rng.uniform(0.1, 0.6, memory.shape)
        memory[rng.uniform(size=memory.shape) < 0.2] = 0

    problem = random_problems(64, 2, DEVICES, BLOCKS, scarce)
    found = propose_pairs(to_lanes(problem))
    assert found.segments.shape == (KEPT, DEVICES, 2, 64)
    there = np.isfinite(found.price)
    runs = np.asarray(jax.vmap(can_run)(problem))
    assert 0.05 < runs.mean() < 1
    np.testing.assert_array_equal(there.any(axis=0), runs.T)
    assert np.all(np.diff(np.where(there, found.price, 3e38), axis=0) >= 0)
    choices = np.asarray(problem.workload.micro_batch_choices[0])
    assert np.isin(found.micro_batches, choices).all()
    capacity = np.stack([jax.vmap(usable_blocks, in_axes=(0, None))(problem, m) for m in choices])
    which = np.argmax(np.asarray(found.micro_batches)[..., None] == choices, axis=-1)
    for place, n, lane in zip(*np.nonzero(there), strict=True):
        row = np.asarray(found.segments[place, :, n, lane])
        assert row.sum() == BLOCKS
        assert np.all(row >= 0)
        assert np.all(row <= capacity[which[place, n, lane], lane, n])


def test_candidates_differ_in_their_devices_or_their_micro_batches():
    found = propose_pairs(to_lanes(random_problems(64, 2, DEVICES, BLOCKS)))
    there = np.isfinite(found.price)
    used, counts = np.asarray(found.segments) > 0, np.asarray(found.micro_batches)
    for n, lane in np.ndindex(there.shape[1:]):
        keys = [
            (*used[j, :, n, lane], counts[j, n, lane]) for j in np.flatnonzero(there[:, n, lane])
        ]
        assert len(keys) > 1
        assert len(set(keys)) == len(keys)
        share = np.exp(np.asarray(found.log_share)[:, :, n, lane])
        for j, key in enumerate(keys):
            on = np.array([True, *key[:DEVICES]])
            assert share[j][on].sum() <= 1 + 1e-5  # less where losses ask for narrow shares
            assert np.all(share[j][on] > 0)


def test_a_device_behind_a_dead_link_spoils_only_sets_that_use_it():
    def dead(_, __, network):
        network["compute"]["memory_bytes"] *= 1e3
        network["radio"]["d2d_gain"][:, 2, :] = 0
        network["radio"]["d2d_gain"][:, :, 2] = 0

    found = propose_pairs(to_lanes(random_problems(64, 2, DEVICES, BLOCKS, dead)))
    assert np.all(np.asarray(found.segments)[0, 1] == 0)
    assert np.all(np.asarray(found.price)[0] < 1e30)


def test_the_best_layout_is_nearly_always_in_a_promising_set(monkeypatch):
    """Few of the 31 sets of 5 devices get shares; with all of them little would be won."""
    problem = to_lanes(random_problems(256, 1, 5, 8, seed=4))
    few = proposal(1)(problem)
    monkeypatch.setattr(segments, "_LINKED_SETS", 31)
    every = proposal(1)(problem)
    there = np.isfinite(every.price[0])
    assert np.mean(there) > 0.5
    np.testing.assert_array_equal(np.isfinite(few.price[0]), there)
    lost = few.price[0][there] / every.price[0][there] - 1.0
    assert np.all(lost > -1e-4)  # nothing is cheaper for having been left out
    assert np.mean(lost > 1e-3) < 0.02
    assert 0 < np.mean(few.price[-1][there] > 1.001 * every.price[-1][there]) < 0.5


@pytest.mark.slow
def test_the_best_of_all_layouts_is_nearly_always_among_the_first():
    """One cluster, no queues: what every layout costs at its own best shares and powers."""
    count = 6

    def free(_, __, network):
        network["compute"]["memory_bytes"] *= 1e3
        network["control"]["energy_queue"] *= 0
        network["control"]["divergence_queue"] = 0.0

    problem = random_problems(count, 1, DEVICES, BLOCKS, free, seed=2)
    rows = compositions(BLOCKS, DEVICES)
    choices = np.asarray(problem.workload.micro_batch_choices[0])
    layouts = [(*row, m) for row in rows.tolist() for m in choices.tolist()]

    @quick_jit
    @jax.vmap
    def best_of_each(problem):
        def of(layout):
            start = with_equal_allocation(problem, layout[None, :-1], layout[-1:])
            return tune_resources(problem, start, 100)

        return jax.vmap(of)(jnp.asarray(layouts, jnp.int32))

    tuned = best_of_each(problem)
    found = propose_one(to_lanes(problem))
    objective = np.asarray(tuned.objective)
    assert np.all(tuned.lower_bound <= objective * (1 + 1e-5))
    gaps = []
    for lane in range(count):
        proposed = [
            (*np.asarray(found.segments[j, :, 0, lane], int), int(found.micro_batches[j, 0, lane]))
            for j in range(KEPT)
        ]
        best_proposed = min(objective[lane, layouts.index(layout)] for layout in proposed)
        gaps.append(best_proposed / objective[lane].min() - 1)
    assert np.median(gaps) < 1e-4
    assert np.max(gaps) < 0.02
