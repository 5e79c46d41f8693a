"""Shares and powers of given partitions: never worse, and optima known otherwise."""

import jax
import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from support.compiled import evaluate, in_numpy
from support.random_problems import pick, random_problems, roomy

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.edge.cost.decision import active_nodes
from collapipe_jax.edge.cost.feasibility import is_feasible
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.solver.allocate import (
    BROKEN,
    NO_CLUSTER,
    OPTIMAL,
    STEP_LIMIT,
    TOLERANCE,
    allocate,
)

CLUSTERS, DEVICES, BLOCKS, COUNT = 2, 3, 5, 24
STEPS = 400


def one_cluster_out(index, rng, network):
    roomy(index, rng, network)
    network["compute"]["memory_bytes"][index % (2 * CLUSTERS) :][:1] = 0


# In NumPy: numbers of weak types would be compiled for apart.
start_of = in_numpy(jax.vmap(lambda problem: static_pipeline(problem, 6)))


@quick_jit
@jax.vmap
def judged(problem, decision):
    return evaluate(problem, decision).objective, is_feasible(problem, decision)


optimised = in_numpy(jax.vmap(lambda problem, start: allocate(problem, start, STEPS)))


@pytest.fixture(scope="module")
def some():
    problem = random_problems(COUNT, CLUSTERS, DEVICES, BLOCKS, one_cluster_out)
    start = start_of(problem)
    return problem, start, judged(problem, start)[0], optimised(problem, start)


def test_the_objective_never_rises_and_mostly_falls(some):
    problem, start, before, solution = some
    after, feasible = judged(problem, solution.decision)
    assert np.all(feasible)
    assert np.all(after <= before * (1 + 1e-6))
    assert np.median(after / before) < 0.99
    np.testing.assert_allclose(solution.objective, after, rtol=1e-5)
    np.testing.assert_array_equal(solution.decision.segments, start.segments)
    np.testing.assert_array_equal(solution.decision.micro_batches, start.micro_batches)
    assert solution.decision.segments.dtype == start.segments.dtype
    assert solution.decision.micro_batches.dtype == start.micro_batches.dtype
    idle = ~np.asarray(jax.jit(jax.vmap(active_nodes))(start.segments))
    assert idle.any()
    assert np.all(np.asarray(solution.decision.d2d_share)[idle] == 0)
    assert np.all(np.asarray(solution.decision.d2d_power_w)[idle] == 0)


def test_a_certificate_says_how_far_from_the_best(some):
    *_, solution = some
    gap = 1 - np.asarray(solution.lower_bound / solution.objective)
    assert np.all(gap > -1e-5)
    close = gap <= TOLERANCE
    assert np.mean(close) > 0.7
    np.testing.assert_array_equal(solution.status, np.where(close, OPTIMAL, STEP_LIMIT))
    assert np.all(np.isfinite(solution.residual))
    assert np.all(np.asarray(solution.residual)[close] < 0.05)


def test_an_allocation_stays_as_good_when_optimised_again(some):
    problem, _, _, solution = some
    again = optimised(problem, solution.decision)
    assert np.all(again.objective <= solution.objective * (1 + 1e-6))
    np.testing.assert_allclose(again.objective, solution.objective, rtol=3e-3)


def test_a_share_and_a_power_of_nothing_grow_where_they_are_used(some):
    problem, start, _, solution = some
    nothing = start.replace(
        d2d_share=np.zeros_like(start.d2d_share),
        d2d_power_w=np.zeros_like(start.d2d_power_w),
        d2e_share=np.zeros_like(start.d2e_share),
        d2e_power_w=np.zeros_like(start.d2e_power_w),
    )
    found = optimised(problem, nothing)
    assert np.all(judged(problem, found.decision)[1])
    assert np.all(np.isfinite(found.objective))
    assert np.median(found.objective / solution.objective) < 1.01


def test_nobody_runs_or_a_link_is_dead_or_all_is_well():
    def trouble(index, rng, network):
        roomy(index, rng, network)
        if index % 3 == 0:
            network["compute"]["memory_bytes"] *= 0
        if index % 3 == 1:
            network["radio"]["d2d_gain"][0, 1, 2] = 0
        if index % 6 == 4:
            network["radio"]["d2e_gain"] *= 0

    problem = random_problems(COUNT, CLUSTERS, DEVICES, BLOCKS, trouble, seed=6)
    start = start_of(problem)
    solution = optimised(problem, start)
    status = np.asarray(solution.status)
    assert np.all(status[0::3] == NO_CLUSTER)
    assert np.all(status[1::3] == BROKEN)
    assert np.all(np.isin(status[2::3], (OPTIMAL, STEP_LIMIT)))
    assert np.all(np.asarray(solution.objective)[0::3] == 0)
    assert np.all(np.asarray(solution.objective)[1::3] == np.inf)
    for leaf in jax.tree.leaves(solution.decision):
        assert np.all(np.isfinite(leaf))
    assert np.all(judged(problem, solution.decision)[1])


@quick_jit
def with_slope(problem, decision):
    """Objective of a decision, and its slope by every number of the problem."""
    return jax.value_and_grad(lambda one: evaluate(one, decision).objective, allow_int=True)(
        problem
    )


def cost_alone(problem, decision):
    return with_slope(problem, decision)[0]


def test_the_cost_of_a_held_decision_has_finite_slopes_by_every_number_of_the_problem(some):
    problem, _, _, solution = some
    for index in range(4):
        _, found = with_slope(pick(problem, index), pick(solution.decision, index))
        for path, leaf in jax.tree_util.tree_leaves_with_path(found):
            if leaf.dtype != jax.dtypes.float0:
                assert np.all(np.isfinite(leaf)), jax.tree_util.keystr(path)


# --- one cluster, one device: optima found by scipy on the same objective --------------------


def lonely(kind):
    """All other clusters must sit out, and the first has one device: shapes stay the same."""

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

    problem = random_problems(COUNT, CLUSTERS, DEVICES, BLOCKS, change, seed=7)
    start = start_of(problem)
    return problem, start, optimised(problem, start)


def with_shares(decision, hop, uplink):
    share = np.zeros((CLUSTERS, DEVICES + 1), np.float32)
    share[0, :2] = hop
    d2e_share = np.zeros(CLUSTERS, np.float32)
    d2e_share[0] = uplink
    return decision.replace(d2d_share=share, d2e_share=d2e_share)


def test_latency_alone_takes_full_power_and_the_best_cut_of_the_band():
    problems, starts, solution = lonely("latency")
    for index in range(4):
        problem, start = pick(problems, index), pick(starts, index)

        def of(share, problem=problem, start=start):
            return float(cost_alone(problem, with_shares(start, [share, 1 - share], 1.0)))

        best = minimize_scalar(of, bounds=(0.01, 0.99), method="bounded")
        assert float(solution.objective[index]) == pytest.approx(best.fun, rel=2e-3)
        assert of(0.02) > 1.01 * best.fun


def test_divergence_alone_leaves_most_of_the_band_unused():
    """Less band gathers the power: what is lossless in the limit is a share of 0."""
    problems, _, solution = lonely("divergence")
    for index in range(4):
        problem, decision = pick(problems, index), pick(solution.decision, index)
        found = float(solution.objective[index])
        full = decision.replace(d2e_power_w=problem.radio.d2e_power_max_w)
        tiny = float(cost_alone(problem, with_shares(full, [1e-4, 1e-4], 1e-4)))
        whole = float(cost_alone(problem, with_shares(full, [0.5, 0.5], 1.0)))
        assert found < whole
        assert found == pytest.approx(tiny, rel=0.01)
        assert float(decision.d2e_share[0]) < 0.5


def test_everything_at_once_against_a_search_without_slopes():
    problems, starts, solution = lonely("everything")
    for index in range(2):
        problem, start = pick(problems, index), pick(starts, index)
        power_w, uplink_w = np.asarray(start.d2d_power_w), np.asarray(start.d2e_power_w)

        def of(x, problem=problem, start=start, power_w=power_w, uplink_w=uplink_w):
            hop = np.exp([x[0], 0.0, x[1]])
            decision = with_shares(start, hop[:2] / hop.sum(), 1 / (1 + np.exp(x[4])))
            scale = np.ones_like(power_w)
            scale[0, :2] = np.exp(np.minimum(x[2:4], 0))
            decision = decision.replace(
                d2d_power_w=power_w * scale,
                d2e_power_w=uplink_w * np.float32(np.exp(min(x[5], 0))),
            )
            return float(cost_alone(problem, decision))

        options = {"maxiter": 400, "xatol": 1e-3, "fatol": 1e-4}
        best = minimize(of, [0, -8, -1, -1, -8, -1], method="Nelder-Mead", options=options)
        assert float(solution.objective[index]) <= best.fun * 1.003
        assert float(solution.lower_bound[index]) <= best.fun * (1 + 1e-5)
