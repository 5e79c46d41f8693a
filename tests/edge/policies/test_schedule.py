"""Policies under 1F1B: what they decide fits by the rule of its active set."""

import functools

import jax
import numpy as np
import pytest
from support.compiled import evaluate
from support.pipeline_policies import PIPELINE_POLICIES
from support.random_problems import pick, random_problems

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.edge.cost.feasibility import can_run, is_feasible
from collapipe_jax.edge.policies.dssra import dssra
from collapipe_jax.edge.policies.registry import make_policy
from collapipe_jax.edge.solver.exhaustive import exhaustive

NETWORKS, CLUSTERS, DEVICES, BLOCKS = 32, 2, 3, 5


def scarce(_, rng, network):
    """Memory of about the encoder under GPipe, and many micro-batches."""
    work, memory = network["workload"], network["compute"]["memory_bytes"]
    work["micro_batch_choices"] = [2, 6, 12, 24]
    work["block_static_bytes"] = 4 * work["block_kept_bytes"]
    block = work["block_static_bytes"] + work["batch"] * work["block_kept_bytes"]
    work["block_working_bytes"] = 0.02 * block
    memory[:] = block * rng.uniform(0.4, 2.2, memory.shape)


@functools.cache
def problems(count=NETWORKS, clusters=CLUSTERS, devices=DEVICES, blocks=BLOCKS):
    problem = random_problems(count, clusters, devices, blocks, scarce)
    return problem.replace(workload=problem.workload.replace(schedule="1f1b"))


@pytest.mark.parametrize("name", PIPELINE_POLICIES)
def test_decisions_are_feasible_and_use_what_1f1b_allows(name):
    problem = problems()

    @quick_jit
    @jax.vmap
    def decide(key, problem):
        decision = make_policy(name)(key, problem)
        as_gpipe = problem.replace(workload=problem.workload.replace(schedule="gpipe"))
        fits = is_feasible(problem, decision), is_feasible(as_gpipe, decision)
        return *fits, evaluate(problem, decision).absent, can_run(problem)

    keys = jax.random.split(jax.random.key(0), NETWORKS)
    feasible, under_gpipe, absent, runs = jax.device_get(decide(keys, problem))
    assert np.all(feasible)
    np.testing.assert_array_equal(~absent, runs)
    assert 0.5 < runs.mean() < 1
    assert np.sum(feasible & ~under_gpipe) > 3


@pytest.mark.slow
def test_dssra_is_near_the_best_of_all_partitions():
    problem = problems(6, 2, 2, 4)
    decided = quick_jit(jax.vmap(dssra))(problem)
    runs = np.asarray(jax.vmap(can_run)(problem)).any(axis=1)
    above = []
    for index in np.flatnonzero(runs):
        found = exhaustive(pick(problem, index), pick(decided.decision, index))
        assert is_feasible(pick(problem, index), found.decision)
        assert decided.objective[index] >= found.lower_bound
        above.append(decided.objective[index] / found.objective - 1)
    assert len(above) > 3
    assert np.median(above) < 0.01
    assert max(above) < 0.1
