"""Neighbours of a partition, against all partitions there are."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.compiled import evaluate, in_numpy
from support.random_problems import pick, plain_problems, random_problems, to_batch_last

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.edge.cost import computing
from collapipe_jax.edge.cost.decision import decision_partition
from collapipe_jax.edge.cost.feasibility import is_feasible, usable_blocks
from collapipe_jax.edge.cost.fixed_partition import fix_partition
from collapipe_jax.edge.cost.link_quality import link_sinrs
from collapipe_jax.edge.cost.static_pipeline import static_pipeline, with_equal_allocation
from collapipe_jax.edge.policies.dssra import dssra
from collapipe_jax.edge.solver.allocate import allocate
from collapipe_jax.edge.solver.candidates import (
    Start,
    at_falling_powers,
    starting_candidates,
    with_candidate_axis,
)
from collapipe_jax.edge.solver.exhaustive import compositions
from collapipe_jax.edge.solver.joint_search import SearchConfig, optimise, propose_partitions
from collapipe_jax.edge.solver.limits import to_allocation
from collapipe_jax.edge.solver.neighbours import (
    inherited_allocation,
    neighbour_objectives,
    neighbours,
)

pytestmark = pytest.mark.usefixtures("batch_axis_last")
CLUSTERS, DEVICES, BLOCKS, BATCH = 2, 3, 5, 8
CONFIG = SearchConfig(cluster_steps=10)


def some_memory(_, rng, network):
    network["compute"]["memory_bytes"] *= rng.uniform(0.5, 3.0, (CLUSTERS, DEVICES))


@pytest.fixture(scope="module")
def problem():
    return random_problems(BATCH, CLUSTERS, DEVICES, BLOCKS, some_memory, seed=4)


device_memory_bytes = in_numpy(computing.device_memory_bytes)
enumerated = in_numpy(neighbours)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["gpipe", "1f1b"]))
def test_neighbours_are_all_partitions_one_change_away(seed, schedule):
    rng = np.random.default_rng(seed)
    problem = pick(random_problems(1, CLUSTERS, DEVICES, BLOCKS, some_memory, seed % 50), 0)
    problem = problem.replace(workload=problem.workload.replace(schedule=schedule))
    choices = sorted({int(choice) for choice in problem.workload.micro_batch_choices})
    splits = compositions(BLOCKS, DEVICES)
    segments = splits[rng.integers(0, len(splits), CLUSTERS)]
    counts = rng.choice(choices, CLUSTERS)
    batched = jax.tree.map(lambda leaf: np.asarray(leaf)[..., None], problem)
    found = enumerated(batched, segments.T[..., None], counts[..., None])
    memory_bytes = np.asarray(problem.compute.memory_bytes)
    every, numbers = np.tile(splits, (len(choices), 1)), np.repeat(choices, len(splits))
    needs = device_memory_bytes(problem.workload, every, numbers)
    needed_bytes = np.asarray(needs).reshape(len(choices), len(splits), DEVICES)
    for n in range(CLUSTERS):
        fits = np.all(needed_bytes <= memory_bytes[n] * (1 + 1e-6), axis=-1)

        def is_next(split, at, n=n):
            change = split - segments[n]
            if choices[at] != counts[n]:
                return not np.any(change)
            # One block of a device, or all of them, to one other device.
            gives, takes = np.flatnonzero(change < 0), np.flatnonzero(change > 0)
            return len(gives) == len(takes) == 1 and (change[takes[0]] == 1 or split[gives[0]] == 0)

        expected = {
            (*split.tolist(), choices[at])
            for (index, split), at in itertools.product(enumerate(splits), range(len(choices)))
            if is_next(split, at) and fits[at, index]
        }
        possible = np.asarray(found.possible[n, :, 0])
        rows = np.column_stack([found.segments[:, n, :, 0].T, found.micro_batches[n, :, 0]])
        assert possible.sum() == len(expected)
        assert {tuple(row) for row in rows[possible].astype(int).tolist()} == expected
        own = [*segments[n], counts[n]]
        np.testing.assert_array_equal(rows[~possible], np.tile(own, ((~possible).sum(), 1)))


def test_a_cluster_without_blocks_has_no_neighbours(problem):
    batched = to_batch_last(problem)
    segments = np.zeros((DEVICES, CLUSTERS, BATCH))
    segments[0, 0] = BLOCKS
    found = enumerated(batched, segments, np.ones((CLUSTERS, BATCH)))
    assert not np.any(found.possible[1])


@pytest.mark.slow
def test_an_inherited_allocation_keeps_sums_and_the_nodes_that_stay(problem):
    batched = to_batch_last(problem)

    @quick_jit
    def inherited(batched):
        static = jax.vmap(lambda one: static_pipeline(one, 4), -1, -1)(batched)
        own = optimise(batched, starting_candidates(batched, [Start(static)]), 20).candidate
        others = neighbours(batched, own.segments, own.micro_batches)
        wide = with_candidate_axis(batched)
        received_w = wide.by_node.d2d_power_max_w * 1e-9
        before = fix_partition(wide, own.segments[:, :, None], own.micro_batches[:, None])
        after = fix_partition(wide, others.segments, others.micro_batches)
        logs = inherited_allocation(wide, own, before, after, received_w)
        pairs = (before, with_candidate_axis(own.logs)), (after, logs)
        sinrs = [link_sinrs(at, to_allocation(at, each), received_w).hop for at, each in pairs]
        return own, others, logs, sinrs

    own, others, logs, sinrs = jax.device_get(inherited(batched))
    before = np.asarray(own.segments > 0)[:, :, None]
    after = np.asarray(others.segments > 0)
    share = np.where(_nodes(after), np.exp(logs.d2d_share), 0.0)
    own_share = np.where(_nodes(before), np.exp(own.logs.d2d_share)[:, :, None], 0.0)
    np.testing.assert_allclose(share.sum(axis=0), own_share.sum(axis=0) + 0 * share[0], rtol=1e-5)
    own_power = np.broadcast_to(own.logs.d2d_power[:, :, None], logs.d2d_power.shape)
    whole = np.broadcast_to(before, after.shape)
    stays = np.zeros(own_power.shape, bool)
    for place in np.ndindex(after.shape[1:]):
        hops = [_hops(chain[(slice(None), *place)]) for chain in (whole, after)]
        stays[(slice(None), *place)] = [
            node in hops[0] and hops[0].get(node) == hops[1].get(node)
            for node in range(DEVICES + 1)
        ]
    assert 0.1 < np.mean(stays) < 0.9
    np.testing.assert_array_equal(logs.d2d_power[stays], own_power[stays])
    # What others send has the mean SINR of what was sent before, or less at full power.
    least = _least_log_sinr(sinrs[1], after)
    above = least - np.nanmean(_least_log_sinr(sinrs[0], whole), axis=0)
    others, full = ~stays & _nodes(after), logs.d2d_power == 0
    assert 0.1 < np.mean(full[others]) < 0.9
    np.testing.assert_allclose(above[others & ~full], 0.0, atol=1e-4)
    assert np.all(above[others & full] <= 1e-4)
    same = np.all(before == after, axis=0)
    kept = np.broadcast_to(own_share, share.shape)
    np.testing.assert_allclose(share[:, same], kept[:, same], rtol=1e-5)


def _least_log_sinr(sinr, devices):
    """Of what every node sends along its chain; nan where it sends nothing."""
    least = np.full((DEVICES + 1, *devices.shape[1:]), np.inf)
    sinr = np.broadcast_to(sinr, (2, *least.shape))
    for place in np.ndindex(devices.shape[1:]):
        for node, (_, after) in _hops(devices[(slice(None), *place)]).items():
            if after != node:
                least[(node, *place)] = min(least[(node, *place)], sinr[(0, node, *place)])
                least[(after, *place)] = min(least[(after, *place)], sinr[(1, node, *place)])
    return np.log(np.where(np.isinf(least), np.nan, least))


def _nodes(devices):
    """Nodes of devices; the control unit is active."""
    return np.concatenate([np.ones_like(devices[:1]), devices])


def _hops(active):
    """The node before every node of a chain, and the one after it."""
    chain = [0, *(1 + np.flatnonzero(active))]
    return {
        node: (chain[place - 1], chain[(place + 1) % len(chain)])
        for place, node in enumerate(chain)
    }


@quick_jit
def searched_nearby(batched, start):
    first = optimise(batched, starting_candidates(batched, at_falling_powers(start, 2)), 60)
    proposed = propose_partitions(batched, first, CONFIG, nearby=jnp.array(True))
    return first, proposed, optimise(batched, proposed, 60)


@pytest.mark.slow
def test_a_neighbour_is_taken_where_it_is_better(batch_axis_last):
    """Four blocks on one of two like devices and one on the other: a move balances them."""

    def alike(_, __, network):
        network["compute"]["memory_bytes"][:] = 1e12
        network["compute"]["flops_per_s"][:] = 1e9  # computing is most of a round
        network["control"]["energy_queue"] *= 0

    problem = random_problems(3, 1, 2, BLOCKS, alike, seed=1)
    start = jax.vmap(with_equal_allocation)(
        problem, jnp.tile(jnp.array([[4, 1]]), (3, 1, 1)), jnp.full((3, 1), 4)
    )
    first, proposed, second = searched_nearby(*to_batch_last((problem, start)))
    assert np.all(second.evaluation.objective < 0.95 * first.evaluation.objective)
    assert np.all(proposed.segments.sum(axis=0) == BLOCKS)
    np.testing.assert_array_equal(np.sort(second.candidate.segments[:, 0, 0]), [2, 3])


@pytest.mark.slow
def test_never_worse_than_the_incumbent_and_within_memory(problem):
    start = jax.vmap(lambda one: static_pipeline(one, 4))(problem)
    first, proposed, second = searched_nearby(*to_batch_last((problem, start)))
    before, after = first.evaluation.objective, second.evaluation.objective
    assert np.all(after <= before * (1 + 1e-5))
    assert np.any(after < before * (1 - 1e-3))
    held = first.candidate.segments.sum(axis=0)[:, None]
    np.testing.assert_array_equal(proposed.segments.sum(axis=0) - held, 0)
    capacity = jax.vmap(lambda one, m: usable_blocks(one, m[:, None]), (0, -1), -1)
    held = np.swapaxes(second.candidate.segments, 0, 1)
    assert np.all(held <= capacity(problem, second.candidate.micro_batches))


@pytest.mark.slow
def test_objectives_of_neighbours_are_those_of_their_best_allocation(batch_axis_last):
    problem = pick(plain_problems(1, CLUSTERS, DEVICES, BLOCKS, seed=2), 0)
    decision = quick_jit(dssra)(problem).decision
    found = np.asarray(quick_jit(neighbour_objectives)(problem, decision))
    one = jax.tree.map(lambda leaf: jnp.asarray(leaf)[..., None], (problem, decision))
    others = neighbours(one[0], *decision_partition(one[1]))
    others = jax.tree.map(lambda leaf: np.asarray(leaf[..., 0]), others)
    assert found.shape == others.possible.shape
    np.testing.assert_array_equal(np.isfinite(found), others.possible)

    @quick_jit
    @jax.vmap
    def solved(segments, micro_batches):
        start = with_equal_allocation(problem, segments, micro_batches)
        best = allocate(problem, start, 300).decision
        return evaluate(problem, best).objective, is_feasible(problem, best)

    count = found.shape[1]
    for n in range(CLUSTERS):
        segments = np.repeat(np.asarray(decision.segments)[None], count, axis=0)
        numbers = np.repeat(np.asarray(decision.micro_batches)[None], count, axis=0)
        segments[:, n], numbers[:, n] = others.segments[:, n].T, others.micro_batches[n]
        objective, feasible = solved(jnp.asarray(segments), jnp.asarray(numbers))
        assert np.all(feasible)
        there = others.possible[n]
        np.testing.assert_allclose(found[n, there], objective[there], rtol=1e-3)
