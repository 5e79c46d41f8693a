"""Segments and micro-batches with everything else fixed, against all there are."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compiled import evaluate
from support.random_problems import random_problems

from collapipe_jax.core.batch_axis import batch_last
from collapipe_jax.edge.cost.decision import decision_allocation, decision_partition, fill_idle
from collapipe_jax.edge.cost.feasibility import is_feasible
from collapipe_jax.edge.cost.fixed_partition import fix_partition
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.policies.alternating import (
    best_combination,
    best_micro_batches,
    best_segments,
)

NETWORKS, CLUSTERS, DEVICES, BLOCKS = 30, 2, 3, 5


def test_the_best_combination_of_all():
    rng = np.random.default_rng(0)
    latency_s, cost = rng.uniform(0, 1, (2, 3, 4, 50)).astype(np.float32)
    latency_s[rng.uniform(size=latency_s.shape) < 0.2] = np.inf
    cost[rng.uniform(size=cost.shape) < 0.1] = np.nan
    per_s = rng.uniform(0, 4, 50).astype(np.float32)
    with jax.numpy_rank_promotion("allow"):  # batch axes come last
        found = np.asarray(jax.jit(best_combination)(per_s, latency_s, cost, np.full((3, 50), 7)))
    for case in range(50):
        totals = {}
        for choice in itertools.product(range(4), repeat=3):
            own = latency_s[range(3), choice, case], cost[range(3), choice, case]
            totals[choice] = per_s[case] * own[0].max() + own[1].sum()
        best = np.nanmin(list(totals.values()))
        if np.isfinite(best):
            assert totals[tuple(found[:, case])] == pytest.approx(best, rel=1e-5)
        else:
            assert found[:, case].tolist() == [7, 7, 7]


def scarce(index, rng, network):
    """Room for few blocks or many, devices away, and numbers of micro-batches that matter."""
    memory, work = network["compute"]["memory_bytes"], network["workload"]
    block = work["block_static_bytes"] + work["batch"] * work["block_kept_bytes"]
    memory[:] = block * rng.uniform(1.5, [3.0, 9.0][index % 2], memory.shape)
    memory[rng.uniform(size=memory.shape) < 0.1] = 0
    work["block_working_bytes"] = 0.2 * block
    network["control"]["v"] *= 10.0 ** rng.uniform(-1, 1)


def _turns(problem):
    """The static pipeline with its best segments, and with its best micro-batches."""

    def solve(problem, decision):
        partition = decision_partition(decision)
        fixed = fix_partition(problem, *partition)
        given = *partition, fill_idle(decision_allocation(decision), fixed.chain.used, 1.0)
        segments = jnp.swapaxes(best_segments(problem, *given), 0, 1)
        return segments, best_micro_batches(problem, *given)

    static = static_pipeline(problem, 3)
    segments, counts = batch_last(solve)(problem, static)
    return static, static.replace(segments=segments), static.replace(micro_batches=counts)


def _costs(problem, static, segments, counts):
    """(P2) of partitions at the static pipeline's shares and powers, infinite if infeasible."""

    def one(segments, counts):
        decision = static.replace(segments=segments, micro_batches=counts)
        used = (segments > 0) <= (static.segments > 0)
        shares = jnp.where(segments > 0, static.d2d_share[:, 1:], 0.0)
        tidy = decision.replace(d2d_share=static.d2d_share.at[:, 1:].set(shares))
        allowed = is_feasible(problem, tidy) & jnp.all(used)
        return jnp.where(allowed, evaluate(problem, decision).objective, jnp.inf)

    return jax.vmap(one)(segments, counts)


@pytest.fixture(scope="module")
def turned():
    problem = random_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS, scarce)
    decisions = jax.jit(jax.vmap(_turns))(problem)
    objective = jax.jit(jax.vmap(jax.vmap(evaluate, (None, 0)), (0, 0)))
    stacked = jax.tree.map(lambda *each: jnp.stack(each, axis=1), *decisions)
    return problem, decisions, np.asarray(objective(problem, stacked).objective)


def test_neither_raises_the_objective(turned):
    _, _, objective = turned
    assert np.all(np.isfinite(objective))
    assert np.all(objective[:, 1:] <= objective[:, :1] * (1 + 1e-5))


@pytest.mark.slow
def test_segments_against_all_compositions(turned):
    """Few ceilings and few parts of the latency may miss the best, by little and seldom."""
    problem, (static, _, _), objective = turned
    rows = itertools.product(range(BLOCKS + 1), repeat=DEVICES)
    rows = np.array([row for row in rows if sum(row) in (0, BLOCKS)], np.int32)
    joint = rows[np.array(list(itertools.product(range(len(rows)), repeat=CLUSTERS)))]
    costs = jax.jit(
        jax.vmap(lambda p, s: _costs(p, s, joint, jnp.tile(s.micro_batches, (len(joint), 1))))
    )
    best = np.min(costs(problem, static), axis=1)
    some = best > 0  # somebody can run
    above = objective[some, 1] / best[some] - 1
    assert np.min(above) > -1e-5
    assert np.mean(above < 1e-5) > 0.8
    assert np.max(above) < 0.15
    assert np.median(objective[some, 0] / best[some]) > 1.05


@pytest.mark.slow
def test_micro_batches_are_the_best_of_all(turned):
    problem, (static, _, found), objective = turned
    choices = np.asarray(problem.workload.micro_batch_choices[0])
    joint = np.array(list(itertools.product(choices, repeat=CLUSTERS)), np.int32)
    costs = jax.jit(
        jax.vmap(lambda p, s: _costs(p, s, jnp.tile(s.segments, (len(joint), 1, 1)), joint))
    )
    best = np.min(costs(problem, static), axis=1)
    np.testing.assert_allclose(objective[:, 2], best, rtol=1e-5)
    assert len(np.unique(found.micro_batches)) > 2


def test_devices_without_a_share_stay_idle(turned):
    _, (static, found, _), _ = turned
    assert not np.any((np.asarray(found.segments) > 0) & (np.asarray(static.segments) == 0))
    assert np.any((np.asarray(found.segments) == 0) & (np.asarray(static.segments) > 0))
