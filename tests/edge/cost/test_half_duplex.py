"""Half duplex: what a node receives and sends in a flow is one stage."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compiled import evaluate, in_numpy, static_pipeline
from support.random_problems import pick, plain_problems
from support.solver_checks import assert_as_good_as_exhaustive, assert_decides_for

from collapipe_jax.edge.cost.static_pipeline import with_equal_allocation
from collapipe_jax.edge.solver.allocate import allocate
from collapipe_jax.edge.solver.exhaustive import enumerate_partitions, exhaustive

equal_allocation = in_numpy(with_equal_allocation)
CLUSTERS, DEVICES, BLOCKS = 2, 3, 5


def with_half_duplex(problem):
    return problem.replace(radio=problem.radio.replace(duplex="half"))


@pytest.fixture(scope="module")
def problem():
    return jax.device_get(pick(plain_problems(1, CLUSTERS, DEVICES, BLOCKS), 0))


def by_hand_s(flow_s, first_hop, count):
    """Time of a flow from its stages in order, of which hops are every second."""
    hop_s = flow_s[first_hop : first_hop + 2 * DEVICES + 2 : 2]
    hop_s = hop_s[hop_s > 0]
    # Every hop starts where the one before it ends, and the first where the last ends.
    stages_s = [*flow_s, *(hop_s + np.roll(hop_s, 1))]
    return np.sum(flow_s) + (count - 1) * max(stages_s)


@pytest.mark.parametrize("segments", [(2, 1, 2), (0, 5, 0), (4, 0, 1)])
def test_a_local_step_by_hand(problem, segments):
    counts = np.array([4, 6])
    decision = equal_allocation(problem, np.array([segments, (1, 2, 2)]), counts)
    cost = evaluate(with_half_duplex(problem), decision)
    full = evaluate(problem, decision)
    for name in ("energy_j", "loss_probability", "flows", "divergence", "compute_latency_s"):
        jax.tree.map(np.testing.assert_array_equal, getattr(cost, name), getattr(full, name))
    for n, count in enumerate((4, 6)):
        flows_s = np.asarray(cost.flows.forward_s[n]), np.asarray(cost.flows.backward_s[n])
        step_s = sum(by_hand_s(flow_s, 1, count) for flow_s in flows_s)
        iterations_s = problem.workload.local_steps * step_s
        np.testing.assert_allclose(cost.parts.iterations_s[n], iterations_s, rtol=1e-5)


def test_nothing_changes_without_a_second_micro_batch(problem):
    decision = equal_allocation(problem, np.array([[2, 1, 2], [1, 2, 2]]), np.ones(2, int))
    half_s = evaluate(with_half_duplex(problem), decision).latency_s
    np.testing.assert_allclose(half_s, evaluate(problem, decision).latency_s, rtol=1e-6)


def test_between_full_duplex_and_twice_its_bottleneck():
    problem = jax.device_get(plain_problems(24, CLUSTERS, DEVICES, BLOCKS, seed=4))
    decision = jax.jit(jax.vmap(static_pipeline, (0, None)))(problem, 12)
    evaluate_all = in_numpy(jax.vmap(evaluate))
    full, half = (evaluate_all(each, decision) for each in (problem, with_half_duplex(problem)))
    through_s = np.sum(full.flows.forward_s, axis=2) + np.sum(full.flows.backward_s, axis=2)
    through_s *= np.asarray(problem.workload.local_steps)[:, None]
    rest_s = np.asarray(full.parts.iterations_s) - through_s
    longer_s = np.asarray(half.parts.iterations_s - full.parts.iterations_s)
    assert np.all(longer_s >= -1e-5 * through_s)
    assert np.all(longer_s <= rest_s * (1 + 1e-4))
    assert np.median(longer_s / rest_s) > 0.1


@pytest.mark.slow
def test_dssra_decides_for_half_duplex():
    assert_decides_for(with_half_duplex, share_optimal=0.8)


@pytest.mark.slow
def test_dssra_finds_what_the_exhaustive_search_finds():
    assert_as_good_as_exhaustive(with_half_duplex)


@pytest.mark.slow
def test_the_exhaustive_search_is_a_plain_loop():
    problem = with_half_duplex(pick(plain_problems(1, 1, 2, 3, seed=6), 0))
    own = enumerate_partitions(problem)

    def solve(segments, count):
        start = with_equal_allocation(problem, segments[None], count[None])
        return allocate(problem, start, 400).objective

    every = jax.jit(jax.vmap(solve))(jnp.asarray(own.segments), jnp.asarray(own.micro_batches))
    least = np.min(np.where(own.allowed[:, 0], every, np.inf))
    np.testing.assert_allclose(exhaustive(problem).objective, least, rtol=1e-4)
