"""Turns never raise the objective, and never beat a bound."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compilations import compiles
from support.compiled import evaluate
from support.random_problems import random_problems, to_batch_last

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.feasibility import can_run, is_feasible
from collapipe_jax.edge.cost.static_pipeline import static_pipeline, static_pipelines
from collapipe_jax.edge.policies.alternating import KNOBS, alternate, alternating
from collapipe_jax.edge.solver.allocate import NO_CLUSTER, allocate

NETWORKS, CLUSTERS, DEVICES, BLOCKS = 48, 2, 3, 5
KINDS = "plain", "away", "no queues", "dead link"


def mixed(index, rng, network):
    """Ordinary networks, and some with devices away, without queues, or with a dead link."""
    kind, memory = KINDS[index % len(KINDS)], network["compute"]["memory_bytes"]
    if kind == "away":
        memory[rng.uniform(size=memory.shape) < 0.5] = 0
    if kind == "no queues":
        network["control"]["energy_queue"] *= 0
        network["control"]["divergence_queue"] = 0.0
    if kind == "dead link":
        memory[:] = 1e12
        network["radio"]["d2d_gain"][0, 2] = 0.0
        network["radio"]["d2d_gain"][0, :, 2] = 0.0


def _solve(problem):
    found = alternating(problem)
    decisions = found.decision, static_pipeline(problem, 8)
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), *decisions)
    costs = jax.vmap(evaluate, in_axes=(None, 0))(problem, both)
    return found, costs, is_feasible(problem, found.decision)


solve = quick_jit(jax.vmap(_solve))


@pytest.fixture(scope="module")
def solved():
    problem = random_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS, mixed)
    found, costs, feasible = jax.device_get(solve(problem))
    own, static = (jax.tree.map(lambda leaf, at=at: leaf[:, at], costs) for at in (0, 1))
    return problem, found, own, static, feasible


@pytest.mark.slow
def test_feasible_and_finite_even_where_the_static_pipeline_is_broken(solved):
    problem, found, cost, static, feasible = solved
    assert np.all(feasible)
    assert np.all(np.isfinite(cost.objective))
    assert np.all(np.isinf(static.objective[KINDS.index("dead link") :: len(KINDS)]))
    runs = np.asarray(jax.vmap(can_run)(problem))
    np.testing.assert_array_equal(~cost.absent, runs)
    np.testing.assert_array_equal(found.status == NO_CLUSTER, ~runs.any(axis=1))


@pytest.mark.slow
def test_between_the_bound_of_its_partition_and_the_static_pipeline(solved):
    _, found, cost, static, _ = solved
    np.testing.assert_allclose(found.objective, cost.objective, rtol=1e-4)
    assert np.all(cost.objective <= static.objective * (1 + 1e-5))
    assert np.all(found.lower_bound <= cost.objective * (1 + 1e-5))
    plain = cost.objective[:: len(KINDS)] / static.objective[:: len(KINDS)]
    assert np.median(plain) < 0.9


@pytest.mark.slow
def test_not_below_the_bound_of_a_longer_descent(solved):
    problem, found, cost, *_ = solved
    descend = quick_jit(jax.vmap(lambda one, start: allocate(one, start, 60)))
    assert np.all(descend(problem, found.decision).lower_bound <= cost.objective * (1 + 1e-5))


@pytest.mark.slow
def test_no_turn_raises_the_objective(solved):
    problem = to_batch_last(solved[0])

    @quick_jit
    def after(problem, turns):
        return alternate(problem, static_pipelines(problem, 8), KNOBS, turns).objective

    with jax.numpy_rank_promotion("allow"):  # batch axes come last
        objective = np.stack([after(problem, turns) for turns in range(6)])
    assert np.all(objective[1:] <= objective[:-1])
    assert np.any(objective[2] < objective[1])


PARTS = {
    "segments": {"segments"},
    "micro_batches": {"micro_batches"},
    "shares": {"d2d_share", "d2e_share"},
    "powers": {"d2d_power_w", "d2e_power_w"},
}


@pytest.mark.parametrize("knob", [pytest.param(knob, marks=pytest.mark.slow) for knob in KNOBS])
def test_one_knob_leaves_the_others_as_they_are(knob, solved):
    problem = solved[0]

    @quick_jit
    @jax.vmap
    def decide(problem):
        decision, static = (
            alternating(problem, decides=(knob,)).decision,
            static_pipeline(problem, 8),
        )
        return decision, static, *(evaluate(problem, each) for each in (decision, static))

    decision, static, cost, of_static = decide(problem)
    assert np.all(cost.objective <= of_static.objective * (1 + 1e-5))
    assert np.any(cost.objective < of_static.objective * 0.99)
    held = np.asarray(decision.segments) > 0
    nodes = np.concatenate([held.any(axis=2, keepdims=True), held], axis=2)
    fields = {field: value for field, value in vars(decision).items() if field != "routes"}
    for field, value in fields.items():
        wanted = np.asarray(getattr(static, field))
        if field in ("d2d_share", "d2d_power_w"):  # idle nodes have none
            wanted = np.where(nodes, wanted, 0.0)
        same = np.allclose(value, wanted, rtol=1e-5, atol=0)
        assert same == (field not in PARTS[knob]), field


def test_an_unknown_knob_is_named():
    with pytest.raises(InputError, match=r"policy\.decides = 'gears'"):
        alternating(random_problems(1, 1, 2, 3), decides=("gears",))


def test_one_compilation(solved):
    problem = solved[0]
    with compiles(solve, 0):
        for factor in (0.1, 10.0):
            control = problem.control.replace(v=problem.control.v * factor)
            assert np.all(solve(problem.replace(control=control))[-1])
