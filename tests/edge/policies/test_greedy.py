"""Greedy: caps on the energy of a round."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compilations import compiles
from support.compiled import evaluate
from support.random_problems import plain_problems, random_problems, to_batch_last

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.edge.cost.decision import decision_partition
from collapipe_jax.edge.cost.feasibility import can_run, usable_blocks, violations
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.policies.greedy import greedy, relax_infeasible_budgets
from collapipe_jax.edge.solver.allocate import NO_CLUSTER
from collapipe_jax.edge.solver.candidates import candidate_of
from collapipe_jax.edge.solver.energy_caps import fix_capped_partition
from collapipe_jax.edge.solver.smooth_objective import evaluate_allocation

CLUSTERS, DEVICES, BLOCKS = 2, 3, 5
KINDS = ("plain", "generous", "tight", "loose", "uplink", "short", "fades", "away")
NETWORKS = 8 * len(KINDS)
LOW = 0.1  # of full power; what it spends makes the caps


def ugly(index, rng, network):
    kind = KINDS[index % len(KINDS)]
    control, memory = network["control"], network["compute"]["memory_bytes"]
    if kind == "generous":
        control["energy_budget_j"] *= 1e6
    if kind == "short":
        control["energy_budget_j"] *= 10.0 ** -rng.uniform(1, 3)
    if kind == "fades":
        for name in ("d2e_gain", "d2d_gain", "cross_gain"):
            gain = network["radio"][name]
            gain *= 10.0 ** -rng.uniform(0, 3, gain.shape)
    if kind == "away":
        memory[rng.uniform(size=memory.shape) < 0.5] = 0
        memory[: index % 3] = 0  # a cluster or both sit out
    if kind == "loose":
        control["v"] *= index % 3 > 0


def with_caps(problem, static):
    """Caps of what the static pipeline spends at low power, times a factor by kind."""
    low = static.replace(d2d_power_w=LOW * static.d2d_power_w, d2e_power_w=LOW * static.d2e_power_w)
    spent_j, old_j = evaluate_all(problem, low).energy_j, problem.control.energy_budget_j
    factor = np.ones((NETWORKS, CLUSTERS, DEVICES + 1))
    rows = np.arange(NETWORKS) % len(KINDS)
    loose, uplink = (rows == KINDS.index(kind) for kind in ("loose", "uplink"))
    factor[loose] = np.exp(np.random.default_rng(0).uniform(0, 2, factor[loose].shape))
    factor[uplink, :, 0] = 0.3
    capped = np.isin(rows, [KINDS.index(kind) for kind in ("tight", "loose", "uplink")])
    budget_j = jnp.where(capped[:, None, None] & (spent_j > 0), spent_j * factor, old_j)
    return with_control(problem, energy_budget_j=budget_j.astype(old_j.dtype))


def with_control(problem, **changes):
    return problem.replace(control=problem.control.replace(**changes))


def solve(problem):
    solution = greedy(problem)
    broken = jnp.stack(list(violations(problem, solution.decision).values()))
    return solution, evaluate(problem, solution.decision), broken


decide_static = quick_jit(jax.vmap(lambda problem: static_pipeline(problem, 8)))
evaluate_all = quick_jit(jax.vmap(evaluate))
solve_all = quick_jit(jax.vmap(solve))


@pytest.fixture(scope="module")
def solved():
    problem = random_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS, ugly)
    problem = with_caps(problem, decide_static(problem))
    return problem, *jax.tree.map(np.asarray, solve_all(problem))


@pytest.fixture(scope="module")
def static(solved):
    return jax.tree.map(np.asarray, evaluate_all(solved[0], decide_static(solved[0])))


def of_kind(tree, kind):
    """The networks of a kind."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[KINDS.index(kind) :: len(KINDS)], tree)


def largest_use(problem, cost):
    """The largest energy of a node over its cap, ``[networks]``."""
    return np.max(cost.energy_j / np.asarray(problem.control.energy_budget_j), axis=(1, 2))


def without_energy(problem, cost):
    """Objective of a round without its energy."""
    control = problem.control
    latency = np.asarray(control.v / control.reference_latency_s) * cost.latency_s
    return latency + np.asarray(control.divergence_queue / control.divergence_target) * (
        cost.divergence
    )


def test_feasible_over_dead_links(solved):
    gain = solved[0].radio.d2d_gain
    dead = jax.random.bernoulli(jax.random.key(3), 0.3, gain.shape)
    radio = solved[0].radio.replace(d2d_gain=jnp.where(dead, 0.0, gain))
    with compiles(solve_all, 0):
        *_, broken = solve_all(solved[0].replace(radio=radio))
    assert not np.any(broken)


def test_feasible_and_finite_everywhere(solved):
    problem, solution, cost, broken = solved
    assert not np.any(broken)
    for leaf in jax.tree.leaves(solution):
        assert np.all(np.isfinite(leaf))
    runs = np.asarray(quick_jit(jax.vmap(can_run))(problem))
    np.testing.assert_array_equal(~cost.absent, runs)
    np.testing.assert_array_equal(solution.status == NO_CLUSTER, ~runs.any(axis=1))
    assert set(runs.sum(axis=1)) == {0, 1, 2}


def test_caps_are_kept_and_hold_the_decision_back(solved):
    problem, _, cost, _ = solved
    for kind in ("tight", "loose"):
        use = largest_use(*of_kind((problem, cost), kind))
        assert np.all(use <= 1.002)
        assert np.median(use) > 0.999


def test_the_objective_is_latency_and_divergence_and_has_a_lower_bound_near(solved):
    problem, solution, cost, _ = solved
    np.testing.assert_allclose(solution.objective, without_energy(problem, cost), rtol=2e-4)
    assert np.all(solution.lower_bound <= solution.objective * (1 + 1e-5))
    close, bound = of_kind((solution.objective, solution.lower_bound), "tight")
    gap = close / bound - 1
    assert np.median(gap) < 0.01
    assert np.max(gap) < 0.1


def test_looser_caps_cost_less_but_no_less_than_their_bound(solved):
    problem, solution, cost, _ = solved
    looser = with_control(problem, energy_budget_j=1.2 * problem.control.energy_budget_j)
    again, *_ = jax.tree.map(np.asarray, solve_all(looser))
    alike = np.all(again.decision.segments == solution.decision.segments, axis=(1, 2))
    alike &= np.all(again.decision.micro_batches == solution.decision.micro_batches, axis=1)
    both = (largest_use(problem, cost) <= 1.002) & alike & (solution.objective > 0)
    assert both.sum() > 20
    before, after = solution.objective[both], again.objective[both]
    assert np.all(before >= again.lower_bound[both] * (1 - 1e-5))
    assert np.all(after <= before * (1 + 5e-3))
    assert np.mean(after < before * 0.99) > 0.2


def test_never_worse_than_the_static_pipeline_where_that_keeps_the_caps(solved, static):
    problem, solution, cost, _ = solved
    keeps = largest_use(problem, static) <= 1.0
    assert 16 < keeps.sum() < NETWORKS
    assert np.all(largest_use(problem, cost)[keeps] <= 1.002)
    assert np.all(solution.objective[keeps] <= without_energy(problem, static)[keeps] * (1 + 1e-4))


def test_generous_caps_leave_the_optimum_of_the_partition(solved):
    objective, bound = of_kind((solved[1].objective, solved[1].lower_bound), "generous")
    assert np.median(objective / bound - 1) < 2e-3


def test_a_short_budget_raises_no_node_above_the_static_pipeline(solved, static):
    problem, _, cost, _ = solved
    use, before = (largest_use(*of_kind((problem, one), "short")) for one in (cost, static))
    assert np.all(use <= before * 1.002)
    assert np.median(use / before) < 0.5
    assert use.max() > 2


def test_a_cap_that_no_uplink_keeps_does_not_lose_the_round(solved):
    problem, solution, cost, _ = solved
    use = largest_use(*of_kind((problem, cost), "uplink"))
    assert np.all(use > 1.1)
    assert np.all(use < 5.0)
    assert np.all(of_kind(solution.objective, "uplink") < 50.0)


def test_queues_of_energy_change_nothing_and_nothing_is_compiled_again(solved):
    problem, solution, *_ = solved
    queue = 1e3 * np.random.default_rng(0).exponential(size=problem.control.energy_queue.shape)
    queue = jnp.asarray(queue, problem.control.energy_queue.dtype)
    with compiles(solve_all, 0):
        again, *_ = solve_all(with_control(problem, energy_queue=queue))
    jax.tree.map(np.testing.assert_array_equal, again, solution)


@pytest.mark.slow
def test_slopes_under_caps_are_those_of_the_smooth_objective():
    problem = plain_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS)
    static = decide_static(problem)
    spent_j = evaluate_all(problem, static).energy_j
    problem = to_batch_last(with_control(problem, energy_budget_j=0.95 * spent_j))
    static = to_batch_last(static)

    @quick_jit
    def slopes(problem, static):
        fixed = fix_capped_partition(problem, *decision_partition(static))
        own = candidate_of(fixed, static)

        def at(logs, fixed):
            return evaluate_allocation(fixed, logs, own.weights)

        wanted = jax.grad(lambda logs: at(logs, fixed).smooth.sum())(own.logs)
        return at(own.logs, fixed), at(own.logs, fixed.replace(caps=None)), wanted

    with jax.numpy_rank_promotion("allow"):
        found, free, wanted = slopes(problem, static)
    for ours, slope in zip(found.slope, wanted, strict=True):
        np.testing.assert_allclose(ours, slope, rtol=2e-3, atol=2e-4 * np.abs(slope).max())
    paid = np.abs(found.slope.d2d_power - free.slope.d2d_power)
    assert np.median(paid / np.abs(found.slope.d2d_power)) > 0.05
    assert np.all(found.objective > free.objective)


@quick_jit
def relax(problem):
    with jax.numpy_rank_promotion("allow"):
        return relax_infeasible_budgets(problem)


usable = quick_jit(jax.vmap(lambda problem: usable_blocks(problem, 12), -1, -1))


def test_budgets_are_raised_by_the_least_factor_that_pays_for_the_blocks():
    problem = to_batch_last(plain_problems(16, CLUSTERS, DEVICES, BLOCKS))
    for factor, raised in ((1e6, False), (1e-3, True)):
        budget_j = factor * problem.control.energy_budget_j
        relaxed = relax(with_control(problem, energy_budget_j=budget_j))
        level = relaxed.control.energy_budget_j / budget_j
        assert np.all(level > 1.001) if raised else np.all(level == 1.0)
        np.testing.assert_allclose(level, level[:, :1] * np.ones_like(level), rtol=1e-5)
        assert np.all(np.sum(usable(relaxed), axis=1) >= BLOCKS)
        less = with_control(problem, energy_budget_j=0.99 * relaxed.control.energy_budget_j)
        raised_again = relax(less).control.energy_budget_j
        if raised:
            np.testing.assert_allclose(raised_again, relaxed.control.energy_budget_j, rtol=1e-4)
        else:
            np.testing.assert_array_equal(
                relaxed.compute.memory_bytes, problem.compute.memory_bytes
            )


def test_a_device_is_no_receiver_of_its_own():
    """Its gain to itself, of a link that there is not, changes no budget and no memory."""
    problem = to_batch_last(plain_problems(16, CLUSTERS, DEVICES, BLOCKS))
    problem = with_control(problem, energy_budget_j=1e-3 * problem.control.energy_budget_j)
    own, gain = np.arange(DEVICES + 1), np.array(problem.radio.d2d_gain)
    gain[:, own, own] = 1.0
    far, close = relax(problem), relax(problem.replace(radio=problem.radio.replace(d2d_gain=gain)))
    np.testing.assert_array_equal(close.control.energy_budget_j, far.control.energy_budget_j)
    np.testing.assert_array_equal(close.compute.memory_bytes, far.compute.memory_bytes)
