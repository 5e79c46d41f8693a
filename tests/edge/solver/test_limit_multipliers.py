"""Multipliers of limits against the change of (P2) where a limit is relaxed."""

import jax
import numpy as np
import pytest
from support import ROOT

from collapipe_jax.core.compilation import compile_for_now
from collapipe_jax.edge.cost.computing import device_memory_bytes
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.solver.allocate import Solution, allocate
from collapipe_jax.edge.solver.partition_bound import (
    FullDevice,
    _bytes_of_one_more,
    full_devices,
    limit_multipliers,
)
from collapipe_jax.runs.documents import read_network

EXAMPLE = ROOT / "docs" / "examples" / "edge.network.json"


@pytest.fixture(scope="module")
def hasty():
    """A round with empty energy queues, so that most nodes send with all their power."""
    problem = read_network(EXAMPLE)
    control = problem.control
    return problem.replace(control=control.replace(energy_queue=0.0 * control.energy_queue))


@pytest.fixture(scope="module")
def solve(hasty):
    start = jax.jit(static_pipeline)(hasty, 6)
    compiled = compile_for_now(lambda *round_: allocate(*round_, 400), hasty, start)
    return lambda problem: jax.device_get(compiled(problem, start))


@pytest.fixture(scope="module")
def multipliers(hasty, solve):
    decision = solve(hasty).decision
    return jax.device_get(compile_for_now(limit_multipliers, hasty, decision)(hasty, decision))


def test_multipliers_explain_the_slopes(multipliers):
    assert multipliers.residual < 0.01
    np.testing.assert_allclose(multipliers.cluster_latency.sum(), multipliers.latency, rtol=1e-3)
    assert all(np.all(each >= 0) for each in multipliers)


def test_a_power_limits_multiplier_is_the_fall_with_a_higher_limit(hasty, solve, multipliers):
    """By more than the solver's own error: all limits grow by a fifth together."""
    growth = 1.2
    radio = hasty.radio
    wider = hasty.replace(
        radio=radio.replace(
            d2d_power_max_w=growth * radio.d2d_power_max_w,
            d2e_power_max_w=growth * radio.d2e_power_max_w,
        )
    )
    saved = float(solve(hasty).objective - solve(wider).objective)
    multiplier = multipliers.d2d_power.sum() + multipliers.d2e_power.sum()
    assert multiplier > 0
    # Convex in the logarithm of the limit: each further bit saves less.
    assert saved <= 1.02 * multiplier * np.log(growth)
    assert saved >= 0.7 * multiplier * np.log(growth)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_one_block_more_is_that_of_one_device_alone(hasty, schedule):
    """Under 1F1B an idle device that gets a block changes what those before it keep."""
    work = hasty.workload.replace(schedule=schedule)
    segments, counts = np.array([[2, 0, 4], [0, 6, 0]]), np.array([12, 6])
    found = jax.device_get(jax.jit(_bytes_of_one_more)(work, segments, counts))
    held = jax.jit(device_memory_bytes)
    for n, k in np.ndindex(2, 3):
        more = np.zeros_like(segments)
        more[n, k] = 1
        assert found[n, k] == np.asarray(held(work, segments + more, counts))[n, k]


def test_room_counts_only_where_the_decision_needs_it(hasty):
    """A made-up solver puts all blocks on one device as soon as they fit."""
    problem = jax.device_get(hasty)
    decision = jax.device_get(jax.jit(static_pipeline)(hasty, 6))
    needed = problem.workload.block_static_bytes
    needed = needed + problem.workload.batch * problem.workload.block_kept_bytes
    working = problem.workload.batch / 6 * problem.workload.block_working_bytes
    memory_bytes = np.full((2, 3), 10 * needed + working, np.float32)
    memory_bytes[0, 1] = 2 * needed + working
    problem = problem.replace(compute=problem.compute.replace(memory_bytes=memory_bytes))

    def answer(segments, objective):
        moved = decision.replace(segments=np.array([segments, [2, 2, 2]], np.int32))
        return Solution(moved, np.float32(objective), np.float32(0), np.float32(0), np.int32(0))

    def moves_in(_):
        return answer([1, 3, 2], 4.0)

    def goes_elsewhere(_):
        return answer([3, 1, 2], 4.0)

    before = answer([2, 2, 2], 5.0)
    assert full_devices(problem, before, moves_in) == [FullDevice(0, 2, 2, 1.0)]
    assert full_devices(problem, before, goes_elsewhere) == [FullDevice(0, 2, 2, 0.0)]
