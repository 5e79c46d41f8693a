"""Shares and powers: projections, slopes, and optima known otherwise."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_problems import pick, plain_problems, random_problems
from scipy.optimize import minimize, minimize_scalar

from collapipe_jax.cost.decision import active_nodes
from collapipe_jax.cost.round import price
from collapipe_jax.scheduling.baselines import static_pipeline
from collapipe_jax.scheduling.feasibility import is_feasible
from collapipe_jax.scheduling.resources import (
    LogResources,
    from_decision,
    project,
    smooth_objective,
    to_decision,
    tune_resources,
)

CLUSTERS, DEVICES, BLOCKS = 3, 4, 7
STEPS = 150


def one_cluster_out(index, rng, network):
    network["compute"]["memory_bytes"] *= 1e3
    network["compute"]["memory_bytes"][index % CLUSTERS] = 0


def random_variables(seed, batch=()):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return jnp.asarray(rng.normal(0, 3, (*batch, *shape)).astype(np.float32))

    nodes = DEVICES + 1
    return LogResources(
        normal(CLUSTERS, nodes + 1),
        normal(CLUSTERS, nodes),
        normal(CLUSTERS + 1),
        normal(CLUSTERS),
    )


decide = jax.jit(jax.vmap(static_pipeline, in_axes=(0, None)))
projected = jax.jit(jax.vmap(project))
realised = jax.jit(jax.vmap(to_decision))
feasible = jax.jit(jax.vmap(is_feasible))


@pytest.fixture(scope="module")
def some():
    problem = random_problems(32, CLUSTERS, DEVICES, BLOCKS, one_cluster_out)
    return problem, decide(problem, 6)


def test_any_variables_stand_for_a_feasible_decision_and_projection_keeps_it(some):
    problem, base = some
    once = projected(random_variables(1, (32,)), base.segments)
    twice = projected(once, base.segments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), once, twice)
    decision = realised(problem, base, once)
    assert np.all(feasible(problem, decision))
    used = np.asarray(active_nodes(base.segments))
    assert np.all(np.asarray(decision.d2d_share)[~used] == 0)
    total = np.exp(once.d2d_share).sum(-1) - (~used).sum(-1)  # idle entries are log 1
    np.testing.assert_allclose(total, 1.0, atol=1e-5)
    unclipped = random_variables(1, (32,))._replace(d2d_power=once.d2d_power)
    again = realised(problem, base, unclipped)
    np.testing.assert_allclose(again.d2d_share, decision.d2d_share, atol=1e-6)
    np.testing.assert_allclose(again.d2e_share, decision.d2e_share, atol=1e-6)


def test_variables_and_decisions_are_inverse(some):
    problem, base = some
    decision = realised(problem, base, projected(random_variables(2, (32,)), base.segments))
    back = realised(problem, base, jax.vmap(from_decision)(problem, decision))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6), decision, back
    )


@pytest.mark.usefixtures("x64")
def test_slopes_are_those_of_differences():
    problem = pick(random_problems(1, CLUSTERS, DEVICES, BLOCKS, one_cluster_out, seed=3), 0)
    base = static_pipeline(problem, 6)
    point = jax.tree.map(lambda x: x.astype(float) / 6, random_variables(4))
    point = point._replace(d2d_power=point.d2d_power - 2, d2e_power=point.d2e_power - 2)

    @jax.jit
    def value(variables):
        return smooth_objective(problem, to_decision(problem, base, variables), 0.05)

    slope = jax.jit(jax.grad(value))(point)
    assert all(np.all(np.isfinite(leaf)) for leaf in slope)
    for name in LogResources._fields:
        flat, unravel = jax.flatten_util.ravel_pytree(getattr(point, name))
        expected = []
        for direction in np.eye(flat.size) * 1e-5:
            plus = value(point._replace(**{name: unravel(flat + direction)}))
            minus = value(point._replace(**{name: unravel(flat - direction)}))
            expected.append((plus - minus) / 2e-5)
        got = np.ravel(getattr(slope, name))
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7 * float(value(point)))
        assert np.any(got != 0), name


@pytest.mark.usefixtures("x64")
def test_the_smooth_objective_falls_to_the_true_one():
    problem = plain_problems(1, CLUSTERS, DEVICES, BLOCKS, seed=5)
    problem, decision = pick(problem, 0), pick(decide(problem, 6), 0)
    smooth = jax.jit(smooth_objective)
    true = float(jax.jit(price)(problem, decision).objective)
    excess = [float(smooth(problem, decision, t)) - true for t in (0.3, 0.1, 0.03, 0.01, 1e-4)]
    assert all(a > b >= -1e-9 * true for a, b in pairwise(excess))
    assert excess[-1] < 1e-4 * true
    assert excess[0] > 1e-3 * true


@pytest.fixture(scope="module")
def tune():
    return jax.jit(jax.vmap(lambda problem, start: tune_resources(problem, start, STEPS)))


def test_the_objective_never_rises_and_mostly_falls(some, tune):
    problem, start = some
    tuned, objective = tune(problem, start)
    before = np.asarray(jax.vmap(price)(problem, start).objective)
    after = np.asarray(jax.vmap(price)(problem, tuned).objective)
    assert np.all(after <= before * (1 + 1e-6))
    np.testing.assert_allclose(objective, after, rtol=1e-5)
    assert np.median(after / before) < 0.97
    assert np.all(feasible(problem, tuned))
    np.testing.assert_array_equal(tuned.segments, start.segments)
    np.testing.assert_array_equal(tuned.micro_batches, start.micro_batches)


# --- one cluster, one device: optima found by scipy on the same objective --------------------


def lonely(kind):
    """Two clusters must sit out, and the third has one device: shapes stay the same."""

    def change(index, rng, network):
        control = network["control"]
        memory = network["compute"]["memory_bytes"]
        memory *= 0
        memory[0, 0] = 1e12
        if kind != "everything":
            control["energy_queue"] *= 0
        if kind == "latency":
            control["divergence_queue"] *= 0
        if kind == "divergence":
            control["v"] = 0.0
            network["radio"]["d2e_gain"] *= 0.02

    return random_problems(32, CLUSTERS, DEVICES, BLOCKS, change, seed=7)


priced_alone = jax.jit(lambda problem, decision: price(problem, decision).objective)


def with_shares(decision, hop, uplink):
    share = jnp.zeros((CLUSTERS, DEVICES + 1)).at[0, :2].set(jnp.asarray(hop))
    return decision.replace(d2d_share=share, d2e_share=jnp.array([uplink, 0.0, 0.0]))


def test_latency_alone_takes_full_power_and_the_best_cut_of_the_band(tune):
    problems = lonely("latency")
    full = decide(problems, 6)
    tuned, _ = tune(problems, full)
    for index in range(4):
        problem, start = pick(problems, index), pick(full, index)

        def of(share, problem=problem, start=start):
            return float(priced_alone(problem, with_shares(start, [share, 1 - share], 1.0)))

        best = minimize_scalar(of, bounds=(0.01, 0.99), method="bounded")
        found = float(priced_alone(problem, pick(tuned, index)))
        assert found == pytest.approx(best.fun, rel=0.01)
        assert of(0.02) > 1.01 * best.fun


def test_divergence_alone_leaves_most_of_the_band_unused(tune):
    """Less band gathers the power: what is lossless in the limit is a share of 0."""
    problems = lonely("divergence")
    tuned, _ = tune(problems, decide(problems, 6))
    for index in range(4):
        problem, decision = pick(problems, index), pick(tuned, index)
        found = float(priced_alone(problem, decision))
        full = decision.replace(d2e_power_w=problem.radio.d2e_power_max_w)
        tiny = float(priced_alone(problem, with_shares(full, [1e-4, 1e-4], 1e-4)))
        whole = float(priced_alone(problem, with_shares(full, [0.5, 0.5], 1.0)))
        assert found < whole
        assert found == pytest.approx(tiny, rel=0.01)
        assert float(decision.d2e_share[0]) < 0.5


def test_everything_at_once_against_a_search_without_slopes(tune):
    problems = lonely("everything")
    starts = decide(problems, 6)
    tuned, _ = tune(problems, starts)
    for index in range(3):
        problem, start = pick(problems, index), pick(starts, index)

        def of(x, problem=problem, start=start):
            hop = np.exp([x[0], 0.0, x[1]])
            decision = with_shares(start, hop[:2] / hop.sum(), 1 / (1 + np.exp(x[4])))
            power_w = start.d2d_power_w.at[0, :2].multiply(jnp.exp(np.minimum(x[2:4], 0)))
            uplink_w = start.d2e_power_w * float(np.exp(min(x[5], 0)))
            decision = decision.replace(d2d_power_w=power_w, d2e_power_w=uplink_w)
            return float(priced_alone(problem, decision))

        options = {"maxiter": 400, "xatol": 1e-3, "fatol": 1e-4}
        best = minimize(of, [0, -8, -1, -1, -8, -1], method="Nelder-Mead", options=options)
        assert float(priced_alone(problem, pick(tuned, index))) <= best.fun * 1.01
