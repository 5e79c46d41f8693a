"""Closed forms against events, events against simulators written from the schedules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collapipe_jax.cost import timeline
from collapipe_jax.cost.timeline import (
    PipelineStages,
    flow_events,
    gpipe_makespan_s,
    one_f_one_b_makespan_s,
)

STAGES, LIMIT = 5, 9

gpipe = jax.jit(gpipe_makespan_s, static_argnums=3)
one_f_one_b = jax.jit(one_f_one_b_makespan_s, static_argnums=2)
events = jax.jit(flow_events, static_argnums=1)


def flow_time_s(stage_s, micro_batches):
    """Closed form of stages along the last axis."""
    stage_s = jnp.asarray(stage_s)
    return timeline.flow_time_s(stage_s.sum(axis=-1), stage_s.max(axis=-1), micro_batches)


def simulate_flow(stages, jobs):
    """Finish times of identical jobs, by the rule of each machine. ``[jobs, P]``."""
    finish = np.zeros((jobs, len(stages)))
    for m in range(jobs):
        for p, seconds in enumerate(stages):
            delivered = finish[m, p - 1] if p else 0.0
            free = finish[m - 1, p] if m else 0.0
            finish[m, p] = max(delivered, free) + seconds
    return finish


def simulate_schedule(stages: PipelineStages, jobs: int, orders) -> float:
    """Makespan when each stage runs its passes in a given order and the rest serve in turn.

    An operation starts when what it needs has arrived and its resource has done what stands
    before it; finish times follow by recursion.
    """
    count = int(stages.active)
    seconds = {
        "uplink": float(stages.uplink_s),
        "decoder": float(stages.decoder_s),
        "downlink": float(stages.downlink_s),
    }
    queue = {name: [(name, 0, m) for m in range(jobs)] for name in seconds}
    for s in range(count):
        queue["stage", s] = [(kind, s, m) for kind, m in orders[s]]
        queue["there", s] = [("there", s, m) for m in range(jobs)]
        queue["back", s] = [("back", s, m) for m in range(jobs)]
        seconds |= {
            ("forward", s): float(stages.forward_s[s]),
            ("backward", s): float(stages.backward_s[s]),
            ("there", s): float(stages.forward_link_s[s]),
            ("back", s): float(stages.backward_link_s[s]),
        }
    before = {}
    for line in queue.values():
        before |= dict(zip(line[1:], line[:-1], strict=True))

    def needs(kind, s, m):
        last = s == count - 1
        return {
            "forward": None if s == 0 else ("there", s - 1, m),
            "there": ("forward", s, m),
            "uplink": ("forward", count - 1, m),
            "decoder": ("uplink", 0, m),
            "downlink": ("decoder", 0, m),
            "backward": ("downlink", 0, m) if last else ("back", s, m),
            "back": ("backward", s + 1, m),
        }[kind]

    known = {None: 0.0}

    def finish(operation):
        if operation not in known:
            kind, s, _ = operation
            start = max(finish(needs(*operation)), finish(before.get(operation)))
            known[operation] = start + seconds.get((kind, s), seconds.get(kind))
        return known[operation]

    return max(finish(("backward", s, m)) for s in range(count) for m in range(jobs))


def one_f_one_b_order(s, count, jobs):
    """Warm-up of ``min(M, S - s)`` forward passes, then one backward, one forward, ..."""
    ahead = min(jobs, count - s)
    order = [("forward", m) for m in range(ahead)]
    for m in range(jobs):
        order.append(("backward", m))
        if ahead + m < jobs:
            order.append(("forward", ahead + m))
    return order


def gpipe_order(jobs):
    return [(kind, m) for kind in ("forward", "backward") for m in range(jobs)]


def random_stages(rng):
    def times():
        return rng.uniform(0.1, 3.0, STAGES) * rng.choice([0.1, 1.0, 4.0], STAGES)

    turn = rng.uniform(0.0, 2.0, 3)
    active = int(rng.integers(1, STAGES + 1))
    return PipelineStages(times(), times(), times(), times(), *turn, active)


# --- flow shop ---


@settings(max_examples=60)
@given(
    st.lists(st.floats(0, 10, width=32), min_size=4, max_size=4),
    st.integers(1, LIMIT),
    st.floats(0, 5, width=32),
)
def test_formula_equals_events_equals_simulation(stage_s, jobs, start_s):
    with jax.enable_x64(True):
        stages = np.array(stage_s, np.float64)
        expected = simulate_flow(stages, LIMIT)
        found = events(stages, LIMIT, start_s)
        np.testing.assert_allclose(found.finish_s - start_s, expected, atol=1e-11)
        np.testing.assert_allclose(
            found.finish_s - found.start_s, np.tile(stages, (LIMIT, 1)), atol=1e-11
        )
        assert flow_time_s(stages, jobs) == pytest.approx(expected[jobs - 1, -1])


def test_a_flow_is_exact_along_leading_axes_and_ignores_idle_stages():
    stage_s = np.random.default_rng(0).uniform(0.1, 2, (2, 3, 6))
    stage_s[0, 1, 2:4] = 0
    jobs = np.array([[1, 2, 5], [7, 3, 9]])
    got = flow_time_s(stage_s, jobs)
    for index in np.ndindex(jobs.shape):
        busy = [seconds for seconds in stage_s[index] if seconds]
        expected = simulate_flow(busy, jobs[index])[-1, -1]
        assert got[index] == pytest.approx(expected, rel=1e-5)


def test_no_stage_serves_two_jobs_at_once():
    stage_s = jnp.array([0.4, 2.0, 0.3, 1.1])
    found = events(stage_s, LIMIT)
    assert np.all(found.start_s[1:] >= found.finish_s[:-1] - 1e-5)
    assert np.all(found.start_s[:, 1:] >= found.finish_s[:, :-1] - 1e-5)


# --- whole iterations ---


@pytest.mark.parametrize(
    ("micro_batches", "gpipe_s", "one_f_one_b_s"), [(1, 29, 29), (4, 65, 61), (8, 113, 109)]
)
def test_golden_makespans(micro_batches, gpipe_s, one_f_one_b_s):
    forward, backward = [1, 2, 4, 1.5, 0], [2, 4, 8, 3, 0]
    links = [0.5, 1, 0.25, 0, 0]
    chain = [1, 0.5, 2, 1, 4, 0.25, 1.5], [3, 0.25, 8, 1, 4, 0.5, 2]
    got = gpipe(*(jnp.array(part) for part in chain), micro_batches, LIMIT)
    assert got == pytest.approx(gpipe_s)
    arrays = [jnp.array(part, jnp.float32) for part in (forward, backward, links, links)]
    zero = jnp.float32(0)
    stages = PipelineStages(*arrays, zero, zero, zero, 4)
    assert one_f_one_b(stages, micro_batches, LIMIT) == pytest.approx(one_f_one_b_s)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.usefixtures("x64")
def test_schedules_equal_independent_simulations(seed):
    rng = np.random.default_rng(seed)
    stages, jobs = random_stages(rng), int(rng.integers(1, LIMIT + 1))
    count = stages.active
    orders = [one_f_one_b_order(s, count, jobs) for s in range(count)]
    expected = simulate_schedule(stages, jobs, orders)
    got = one_f_one_b(jax.tree.map(jnp.asarray, stages), jobs, LIMIT)
    assert got == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.usefixtures("x64")
def test_gpipe_is_its_two_flows(seed):
    """With a flush: every forward pass, all decoder passes, then every backward pass."""
    rng = np.random.default_rng(100 + seed)
    jobs = int(rng.integers(1, LIMIT + 1))
    forward, backward = rng.uniform(0, 3, 7), rng.uniform(0, 3, 6)
    expected = simulate_flow(forward, jobs)[-1, -1] + simulate_flow(backward, jobs)[-1, -1]
    got = gpipe(jnp.asarray(forward), jnp.asarray(backward), jobs, LIMIT)
    assert got == pytest.approx(expected, rel=1e-12)
    formula = flow_time_s(forward, jobs) + flow_time_s(backward, jobs)
    assert got == pytest.approx(float(formula), rel=1e-12)


def test_the_simulator_knows_gpipe_too():
    """The oracle of 1F1B agrees with the closed form where there is one: no overlap, M = 1."""
    stages = random_stages(np.random.default_rng(3))._replace(active=3)
    chain = sum(float(part[:3].sum()) for part in (stages.forward_s, stages.backward_s))
    links = float(stages.forward_link_s[:2].sum() + stages.backward_link_s[:2].sum())
    turn = stages.uplink_s + stages.decoder_s + stages.downlink_s
    for orders in ([gpipe_order(1)] * 3, [one_f_one_b_order(s, 3, 1) for s in range(3)]):
        assert simulate_schedule(stages, 1, orders) == pytest.approx(chain + links + turn)


def test_no_more_in_flight_than_the_schedule_allows():
    for s in range(4):
        in_flight, most = 0, 0
        for kind, _ in one_f_one_b_order(s, 4, 6):
            in_flight += 1 if kind == "forward" else -1
            most = max(most, in_flight)
        assert most == 4 - s


def test_one_compilation_serves_every_number_of_micro_batches():
    fresh = jax.jit(lambda *arguments: one_f_one_b_makespan_s(*arguments, LIMIT))
    makespans = []
    for jobs in range(1, LIMIT + 1):
        stages = random_stages(np.random.default_rng(5))._replace(active=1 + jobs % STAGES)
        makespans.append(
            float(
                fresh(
                    jax.tree.map(jnp.float32, stages)._replace(active=jnp.asarray(stages.active)),
                    jobs,
                )
            )
        )
    assert fresh._cache_size() == 1
    assert len(set(makespans)) == LIMIT
