"""A limit on the blocks of a device holds for all pipelines, and for no client."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compiled import decide, is_feasible, splitfed, violations
from support.pipeline_policies import PIPELINE_POLICIES
from support.random_problems import pick, plain_problems, with_ends

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.edge.cost import feasibility
from collapipe_jax.edge.policies.registry import make_policy
from collapipe_jax.edge.solver.exhaustive import exhaustive

NETWORKS, CLUSTERS, DEVICES, BLOCKS, CAPACITY = 8, 2, 3, 5, 2


def limited(problem, capacity):
    return problem.replace(workload=problem.workload.replace(capacity=capacity))


@functools.cache
def problems():
    """Memory abounds: without the limit a device could take all blocks."""
    return plain_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS)


@pytest.mark.parametrize("name", PIPELINE_POLICIES)
def test_no_device_takes_more_and_every_cluster_runs(name):
    @quick_jit
    @functools.partial(jax.vmap, in_axes=(0, 0, None))
    def with_limit(key, problem, capacity):
        problem = limited(problem, capacity)
        decision = make_policy(name)(key, problem)
        return decision.segments, feasibility.is_feasible(problem, decision)

    keys = jax.random.split(jax.random.key(0), NETWORKS)
    tight, feasible = with_limit(keys, problems(), jnp.int32(CAPACITY))
    assert np.all(feasible)
    assert np.all(tight.sum(2) == BLOCKS)
    assert np.max(tight) == CAPACITY
    free, _ = with_limit(keys, problems(), jnp.int32(BLOCKS))
    same, _ = quick_jit(jax.vmap(unlimited(name)))(keys, problems())
    np.testing.assert_array_equal(free, same)


def unlimited(name):
    def decide(key, problem):
        decision = make_policy(name)(key, problem)
        return decision.segments, decision.micro_batches

    return decide


def test_a_larger_segment_is_wrong():
    problem = pick(problems(), 0)
    decision = decide("static_pipeline", problem)
    decision = decision.replace(segments=np.array([[3, 1, 1], [2, 2, 1]], np.int32))
    assert is_feasible(problem, decision)
    broken = violations(limited(problem, np.int32(CAPACITY)), decision)
    assert [name for name, is_broken in broken.items() if is_broken] == ["segments"]


@pytest.mark.slow
def test_the_best_of_all_partitions_is_worse_under_a_limit():
    problem = pick(problems(), 0)
    decision = decide("static_pipeline", problem)
    found = [exhaustive(limited(problem, size), decision).objective for size in (5, 3, 2)]
    assert found[0] == exhaustive(problem, decision).objective
    assert found == sorted(found)


def test_a_cut_of_clients_is_not_limited():
    problem = with_ends(pick(problems(), 0))
    limits = problem, limited(problem, np.int32(1))
    options = {"client_micro_batches": 1, "shares": "equal", "split": "even"}
    free, cut = (splitfed(each, cut="4", **options) for each in limits)
    assert int(cut.client_blocks) == int(free.client_blocks) == 4
