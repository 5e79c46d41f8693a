"""The search over every partition against a plain loop, and its parts."""

import itertools
import math

import jax
import numpy as np
import pytest
from support.compiled import evaluate, in_numpy, is_feasible
from support.random_problems import pick, random_problems

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost import feasibility
from collapipe_jax.edge.cost.static_pipeline import with_equal_allocation
from collapipe_jax.edge.policies.alternating import alternating
from collapipe_jax.edge.policies.dssra import dssra
from collapipe_jax.edge.solver.allocate import allocate
from collapipe_jax.edge.solver.exhaustive import (
    bound_clusters,
    compositions,
    enumerate_partitions,
    exhaustive,
)

can_run, usable_blocks = in_numpy(feasibility.can_run), in_numpy(feasibility.usable_blocks)
CLUSTERS, DEVICES, BLOCKS, CHOICES = 2, 2, 3, (2, 3, 6)
SPLITS = [row for row in itertools.product(range(BLOCKS + 1), repeat=DEVICES) if sum(row) == BLOCKS]


def problem_with_room(*room):
    """A network whose devices hold so many blocks, by cluster and device."""
    problem = jax.device_get(pick(random_problems(1, CLUSTERS, DEVICES, BLOCKS, seed=3), 0))
    work = problem.workload.replace(micro_batch_choices=np.array(CHOICES))
    block_bytes = work.block_static_bytes + work.batch * work.block_kept_bytes
    working_bytes = work.batch / max(CHOICES) * work.block_working_bytes
    memory_bytes = 1.01 * (np.array(room) * block_bytes + working_bytes)
    compute = problem.compute.replace(memory_bytes=memory_bytes)
    return jax.device_put(problem.replace(workload=work, compute=compute))


def roomy():
    return problem_with_room((9, 9), (9, 9))


@pytest.mark.parametrize(("total", "parts"), [(0, 1), (3, 1), (3, 2), (6, 3), (4, 5), (2, 4)])
def test_compositions_are_all_there_once(total, parts):
    rows = compositions(total, parts)
    assert rows.shape == (math.comb(total + parts - 1, parts - 1), parts)
    assert np.all(rows >= 0)
    assert np.all(rows.sum(axis=1) == total)
    assert len({tuple(row) for row in rows}) == len(rows)


def test_partitions_are_those_that_memory_allows():
    problem = problem_with_room((1, 2), (0, 2))
    capacity = {count: np.asarray(usable_blocks(problem, count)) for count in CHOICES}
    assert np.any(capacity[2] < capacity[6])
    found = enumerate_partitions(problem)
    every = np.column_stack([found.segments, found.micro_batches])
    for n in range(CLUSTERS):
        allowed = {
            (*row, count)
            for count in CHOICES
            for row in SPLITS
            if np.all(row <= capacity[count][n])
        }
        rows = every[found.allowed[:, n]].tolist()
        assert {tuple(row) for row in rows} == (allowed or {(0, 0, 6)})
        assert len(rows) == max(len(allowed), 1)


@pytest.fixture(scope="module")
def plain():
    """Objective of every joint partition, by the segments and micro-batches of each cluster."""
    problem = roomy()
    joints = list(itertools.product(itertools.product(SPLITS, CHOICES), repeat=CLUSTERS))

    def solve(segments, counts):
        start = with_equal_allocation(problem, segments, counts)
        return allocate(problem, start, 400).objective

    segments = np.array([[row for row, _ in joint] for joint in joints])
    counts = np.array([[count for _, count in joint] for joint in joints])
    objectives = jax.jit(jax.vmap(solve))(segments, counts)
    return dict(zip(joints, objectives.tolist(), strict=True))


def partition_of(decision):
    rows = [tuple(row) for row in np.asarray(decision.segments).tolist()]
    return tuple(zip(rows, np.asarray(decision.micro_batches).tolist(), strict=True))


def test_the_best_of_a_plain_loop(plain):
    problem = roomy()
    best = min(plain.values())
    found = exhaustive(problem)
    assert found.partitions == len(plain)
    assert 0 < found.solved < found.partitions
    assert plain[partition_of(found.decision)] <= best * (1 + 1e-4)
    np.testing.assert_allclose(found.objective, best, rtol=1e-4)
    objective = evaluate(problem, found.decision).objective
    np.testing.assert_allclose(objective, found.objective, rtol=1e-5)
    assert found.objective * (1 - 1e-3) < found.lower_bound <= found.objective
    assert is_feasible(problem, found.decision)


def test_clusters_by_themselves_bound_every_partition(plain):
    """For every mean of the latencies and any cost of the band."""
    problem = roomy()
    segments, counts, _ = enumerate_partitions(problem)
    weights = np.linspace(0.1, 0.9, 9, dtype=np.float32)
    own = [(tuple(row), int(m)) for row, m in zip(segments.tolist(), counts, strict=True)]
    for band_cost in (0.0, 0.3):
        own_weights = np.stack([weights, weights], axis=1)
        found = bound_clusters(problem, segments, counts, own_weights, band_cost).bound
        first, second = np.moveaxis(np.asarray(found), 2, 0)
        bounds = np.max(first[:, :, None] + second[::-1, None], axis=0) - band_cost
        for joint, objective in plain.items():
            bound = bounds[own.index(joint[0]), own.index(joint[1])]
            assert 0.3 * objective < bound <= objective * (1 + 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [dssra, alternating])
def test_no_policy_is_below_the_bound_or_better_than_the_best(policy):
    problem = roomy()
    decided = quick_jit(policy)(problem)
    found = exhaustive(problem)
    assert decided.objective >= found.lower_bound
    assert decided.objective >= found.objective * (1 - 2e-5)


def test_a_cluster_that_cannot_run_sits_out():
    problem = problem_with_room((2, 2), (1, 1))
    assert can_run(problem).tolist() == [True, False]
    found = exhaustive(problem)
    assert not np.any(found.decision.segments[1])
    assert found.decision.segments[0].sum() == BLOCKS
    assert found.lower_bound <= found.objective < np.inf
    assert is_feasible(problem, found.decision)


def test_too_many_partitions_are_refused():
    problem = pick(random_problems(1, 4, 4, 8, seed=1), 0)
    with pytest.raises(InputError, match="joint partitions"):
        exhaustive(problem)
