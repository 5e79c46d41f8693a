"""Closed forms against events, events against a simulator of every machine."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collapipe_jax.edge.cost import latency as timeline
from collapipe_jax.edge.cost.latency import flow_events

LIMIT = 9

events = jax.jit(flow_events, static_argnums=1)


def flow_time_s(stage_s, micro_batches):
    """Closed form of stages along the last axis."""
    stage_s = jnp.asarray(stage_s)
    longest_s = stage_s.max(axis=-1)
    return timeline.flow_time_s(stage_s.sum(axis=-1), longest_s, jnp.asarray(micro_batches))


def simulate_flow(stages, jobs):
    """Finish times of identical jobs, by the rule of each machine. ``[jobs, P]``."""
    finish = np.zeros((jobs, len(stages)))
    for m in range(jobs):
        for p, seconds in enumerate(stages):
            delivered = finish[m, p - 1] if p else 0.0
            free = finish[m - 1, p] if m else 0.0
            finish[m, p] = max(delivered, free) + seconds
    return finish


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
        found = events(jnp.asarray(stages), LIMIT, start_s)
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


def gpipe_s(forward_s, backward_s, jobs):
    """Time of an iteration whose backward flow starts when the forward flow has ended."""
    turned_s = events(forward_s, LIMIT, jnp.zeros(())).finish_s[jobs - 1, -1]
    return events(backward_s, LIMIT, turned_s).finish_s[jobs - 1, -1]


@pytest.mark.parametrize(("micro_batches", "seconds"), [(1, 29), (4, 65), (8, 113)])
def test_golden_makespans(micro_batches, seconds):
    chain = [1, 0.5, 2, 1, 4, 0.25, 1.5], [3, 0.25, 8, 1, 4, 0.5, 2]
    got = gpipe_s(*(jnp.array(part) for part in chain), micro_batches)
    assert got == pytest.approx(seconds)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.usefixtures("x64")
def test_gpipe_is_its_two_flows(seed):
    """With a flush: every forward pass, all decoder passes, then every backward pass."""
    rng = np.random.default_rng(100 + seed)
    jobs = int(rng.integers(1, LIMIT + 1))
    forward, backward = rng.uniform(0, 3, 7), rng.uniform(0, 3, 6)
    expected = simulate_flow(forward, jobs)[-1, -1] + simulate_flow(backward, jobs)[-1, -1]
    got = gpipe_s(jnp.asarray(forward), jnp.asarray(backward), jobs)
    assert got == pytest.approx(expected, rel=1e-12)
    formula = flow_time_s(forward, jobs) + flow_time_s(backward, jobs)
    assert got == pytest.approx(float(formula), rel=1e-12)
