"""The smooth objective: a convex lower bound of the exact one, which is that of the round."""

import functools

import jax
import numpy as np
import pytest
from support.compiled import evaluate, in_numpy
from support.random_allocations import (
    central_differences,
    random_coupling,
    random_logs,
    random_weights,
)
from support.random_problems import random_rounds, to_batch_last

from collapipe_jax.edge.cost.fixed_partition import fix_decision
from collapipe_jax.edge.cost.link_quality import active_power_w, interference_w
from collapipe_jax.edge.network.channel import RATE_LAWS
from collapipe_jax.edge.solver.limits import to_allocation, to_logs
from collapipe_jax.edge.solver.smooth_maximum import initial_weights
from collapipe_jax.edge.solver.smooth_objective import Coupling, evaluate_allocation

pytestmark = pytest.mark.usefixtures("double")
CLUSTERS, DEVICES, BLOCKS, BATCH = 2, 3, 5, 12
TEMPERATURE = 0.1


@pytest.fixture(scope="module")
def some(double):
    """Problems and decisions, first stacked, then batch last; idle nodes among them."""

    def sits_out(index):
        return (index % CLUSTERS,) if index % 2 else ()

    stacked = random_rounds(BATCH, CLUSTERS, DEVICES, BLOCKS, sits_out, seed=20)
    return jax.device_get((stacked, to_batch_last(stacked)))


@in_numpy
def prepared(problem, decision):
    """Logarithms, initial weights, and interference."""
    fixed = fix_decision(problem, decision)
    logs = to_logs(fixed, decision)
    power_w = active_power_w(fixed, to_allocation(fixed, logs))
    return logs, initial_weights(fixed), interference_w(fixed.cross_gain, power_w), fixed.active


def logs_of(problem, decision):
    return prepared(problem, decision)[0]


@functools.partial(in_numpy, static_argnums=5)
def evaluated(problem, decision, logs, weights, coupling=None, temperature=TEMPERATURE):
    fixed = fix_decision(problem, decision)
    return evaluate_allocation(fixed, logs, weights, coupling, temperature)


evaluate_all = in_numpy(jax.vmap(evaluate))


@pytest.fixture(scope="module")
def initial(some):
    return prepared(*some[1])[1]


def test_the_objective_of_a_decision_is_that_of_the_round(some, initial):
    (problems, decisions), (problem, decision) = some
    got = evaluated(problem, decision, logs_of(problem, decision), initial)
    wanted = evaluate_all(problems, decisions)
    np.testing.assert_allclose(got.objective, wanted.objective, rtol=1e-8)
    np.testing.assert_allclose(got.cluster_latency_s, wanted.cluster_latency_s.T, rtol=1e-12)
    assert np.any(np.asarray(wanted.absent))
    assert np.ptp(np.log(wanted.objective)) > 1


def assert_slopes(slope, value, logs, size):
    """Against differences of ``value(logs)``."""
    counted = set()
    for field, index, wanted in central_differences(value, logs, 1e-5):
        got = np.asarray(getattr(slope, field))[index]
        np.testing.assert_allclose(got / size, wanted / size, rtol=1e-5, atol=1e-7, err_msg=field)
        if np.any(wanted != 0):
            counted.add(field)
    assert counted == set(logs._fields)


@pytest.mark.parametrize(
    "rate_law",
    [law if law == "mean" else pytest.param(law, marks=pytest.mark.slow) for law in RATE_LAWS],
)
def test_slopes_are_those_of_differences(some, initial, rate_law):
    rng = np.random.default_rng(1)
    problem, decision = some[1]
    problem = problem.replace(radio=problem.radio.replace(rate_law=rate_law))
    logs, weights = logs_of(problem, decision), random_weights(rng, initial)

    def point(logs):
        return evaluated(problem, decision, logs, weights)

    here = point(logs)
    assert_slopes(here.slope, lambda x: point(x).smooth, logs, here.smooth)


def test_slopes_of_clusters_by_themselves_are_those_of_differences(some, initial):
    rng = np.random.default_rng(2)
    problem, decision = some[1]
    logs = logs_of(problem, decision)
    weights = random_weights(rng, initial, (2, CLUSTERS, BATCH))
    latency_s = evaluated(problem, decision, logs, initial).cluster_latency_s
    coupling = random_coupling(rng, np.median(latency_s, axis=0), CLUSTERS, DEVICES, BATCH)

    def point(logs):
        return evaluated(problem, decision, logs, weights, coupling)

    here = point(logs)
    assert here.smooth.shape == (CLUSTERS, BATCH)
    total = np.asarray(here.smooth).sum(axis=0)
    assert_slopes(here.slope, lambda x: point(x).smooth.sum(axis=0), logs, total)


def test_a_cluster_by_itself_has_the_slopes_of_all_together(some, initial):
    """With its interference, both ways, at its cost, and with its part of the latency's."""
    problem, decision = some[1]
    logs, _, received_w, _ = prepared(problem, decision)
    latency_s = evaluated(problem, decision, logs, initial).cluster_latency_s
    slowest = np.asarray(np.argmax(latency_s, axis=0) == np.arange(CLUSTERS)[:, None], float)
    together = evaluated(problem, decision, logs, initial._replace(cluster=slowest))
    control = problem.control
    coupling = Coupling(
        interference_w=received_w,
        interference_cost_per_w=together.interference_cost_per_w,
        latency_cost_per_s=control.v / control.reference_latency_s * slowest,
        round_s=np.max(latency_s, axis=0),
        bandwidth_cost=np.zeros(BATCH),
    )
    never = np.stack([np.zeros((CLUSTERS, BATCH)), np.ones((CLUSTERS, BATCH))])
    own = initial._replace(cluster=never)
    alone = evaluated(problem, decision, logs, own, coupling)
    for got, wanted in zip(alone.slope, together.slope, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "temperature", [0.1, *(pytest.param(t, marks=pytest.mark.slow) for t in (0.01, 0.5))]
)
def test_no_weights_lift_the_smooth_objective_above_the_exact_one(some, initial, temperature):
    rng = np.random.default_rng(3)
    problem, decision = some[1]
    for _ in range(3):
        logs = random_logs(rng, CLUSTERS, DEVICES, BATCH)
        weights = random_weights(rng, initial)
        point = evaluated(problem, decision, logs, weights, None, temperature)
        assert np.all(point.smooth <= point.objective * (1 + 1e-12))
        assert np.any(point.smooth < point.objective * (1 - 1e-3))


def test_weights_gather_on_the_largest_entries_and_close_the_gap(some, initial):
    problem, decision = some[1]
    logs, weights = logs_of(problem, decision), initial
    last = np.full(BATCH, -np.inf)
    for _ in range(400):
        point = evaluated(problem, decision, logs, weights)
        assert np.all(point.smooth >= last * (1 - 1e-5))
        last, weights = point.smooth, point.weights
    np.testing.assert_allclose(point.smooth, point.objective, rtol=1e-5)
    participates = np.asarray(prepared(problem, decision)[-1][0])
    for flow in (weights.forward, weights.backward):
        np.testing.assert_allclose(np.sum(flow, axis=0)[participates], 1.0)
    np.testing.assert_allclose(np.sum(weights.cluster, axis=0), 1.0)


def test_the_objective_is_convex_in_logarithms(some, initial):
    problem, decision = some[1]
    rng = np.random.default_rng(4)
    curved = 0
    for _ in range(40):
        weights = random_weights(rng, initial)
        ends = [random_logs(rng, CLUSTERS, DEVICES, BATCH) for _ in range(2)]
        middle = jax.tree.map(lambda a, b: 0.5 * (a + b), *ends)
        points = [evaluated(problem, decision, x, weights) for x in (*ends, middle)]
        smooth, objective = zip(*((p.smooth, p.objective) for p in points), strict=True)
        for one, other, between in (smooth, objective):
            assert np.all(between <= 0.5 * (one + other) * (1 + 1e-9))
            curved += int(np.sum(between < 0.45 * (one + other)))
    assert curved > 100
