"""Pipelines with blocks at the edge server: every depth by one program, and clients as ever."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compilations import compiles
from support.compiled import splitfed
from support.pipeline_policies import PIPELINE_POLICIES
from support.random_problems import pick, plain_problems, with_ends

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.edge.cost.feasibility import is_feasible
from collapipe_jax.edge.policies.baselines import random_composition
from collapipe_jax.edge.policies.registry import make_policy
from collapipe_jax.edge.solver.exhaustive import enumerate_partitions
from collapipe_jax.edge.solver.partition_bound import count_partitions

CLUSTERS, DEVICES, BLOCKS = 2, 3, 5
DEPTHS = np.array([0, 1, 3, 4, 0, 2, 1, 4], np.int32)
"""Blocks at the server of every network."""


def cut(problem, server_blocks):
    return problem.replace(workload=problem.workload.replace(server_blocks=server_blocks))


@functools.cache
def problems():
    return plain_problems(len(DEPTHS), CLUSTERS, DEVICES, BLOCKS)


@pytest.mark.parametrize("name", PIPELINE_POLICIES)
def test_every_depth_has_a_feasible_decision_by_one_program(name):
    @quick_jit
    @functools.partial(jax.vmap, in_axes=(0, 0, 0))
    def decide(key, problem, server_blocks):
        problem = cut(problem, server_blocks)
        decision = make_policy(name)(key, problem)
        return decision.segments, is_feasible(problem, decision)

    keys = jax.random.split(jax.random.key(0), len(DEPTHS))
    with compiles(decide, 1):
        for depths in (DEPTHS, DEPTHS[::-1]):
            segments, feasible = decide(keys, problems(), jnp.asarray(depths))
            assert np.all(feasible)
            assert np.all(segments.sum(2) == BLOCKS - depths[:, None])


def test_random_rows_are_uniform_over_those_of_the_clusters_blocks():
    keys = jax.random.split(jax.random.key(1), 6000)
    capacity = jnp.array([2, 5, 1])
    draw = jax.jit(jax.vmap(lambda key: random_composition(key, capacity, BLOCKS, jnp.int32(2))))
    rows, counts = np.unique(np.asarray(draw(keys)), axis=0, return_counts=True)
    assert rows.tolist() == [[0, 1, 1], [0, 2, 0], [1, 0, 1], [1, 1, 0], [2, 0, 0]]
    np.testing.assert_allclose(counts, 1200, atol=5 * np.sqrt(1200))


def test_all_partitions_are_those_of_the_clusters_blocks():
    problem = cut(pick(problems(), 0), jnp.int32(3))
    segments = enumerate_partitions(problem).segments
    assert set(segments[:-1].sum(axis=1)) == {2}
    assert count_partitions(problem) == len(segments) - 1


def test_a_cut_of_clients_is_of_the_whole_encoder():
    options = {"client_micro_batches": 1, "shares": "equal", "split": "even"}
    unpipelined = functools.partial(splitfed, **options)
    problem = with_ends(pick(problems(), 0))
    for name in ("half", "best", "4"):
        whole, same = (unpipelined(cut(problem, np.int32(at)), cut=name) for at in (0, 3))
        jax.tree.map(np.testing.assert_array_equal, whole, same)
