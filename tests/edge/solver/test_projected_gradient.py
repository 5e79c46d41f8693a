"""Descent on shares and powers: limits, optima, and clusters by themselves."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compiled import in_numpy
from support.descents import BATCH, CLUSTERS, LONG, NODES, anywhere, descend_together, draw
from support.random_allocations import with_first_cluster_moved

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.edge.cost.chain import Chain
from collapipe_jax.edge.cost.decision import Allocation
from collapipe_jax.edge.cost.fixed_partition import fix_decision
from collapipe_jax.edge.solver import allocate
from collapipe_jax.edge.solver.allocate import descend, descend_jointly
from collapipe_jax.edge.solver.limits import LEAST_LOG_POWER, to_limits
from collapipe_jax.edge.solver.smooth_maximum import Weights
from collapipe_jax.edge.solver.smooth_objective import Coupling, Evaluation, evaluate_allocation

pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture(scope="module")
def some(double):
    return draw()


@quick_jit
def alone(problem, decision, logs, weights, coupling, steps):
    fixed = fix_decision(problem, decision)
    evaluate = functools.partial(evaluate_allocation, fixed, coupling=coupling)
    return descend(evaluate, fixed.chain.used, logs, weights, steps, joint=False)


@pytest.fixture(scope="module")
def optimum(some):
    problem, decision, logs, weights, _ = some
    return descend_together(problem, decision, logs, weights, LONG)


@functools.partial(in_numpy, static_argnums=2)
def limited(logs, active, joint):
    return to_limits(logs, Chain(active).used, joint)


def assert_within_limits(logs, active, joint):
    participates = active[0]
    share = np.where(active, np.exp(logs.d2d_share), 0.0)
    assert np.all(share.sum(axis=0) <= 1 + 1e-12)
    band = np.where(participates, np.exp(logs.d2e_share), 0.0)
    assert np.all((band.sum(axis=0) if joint else band) <= 1 + 1e-12)
    assert np.all(share[active] > 0)
    for power in (np.asarray(logs.d2d_power), np.asarray(logs.d2e_power)):
        assert np.all((power >= LEAST_LOG_POWER) & (power <= 0))
    for leaf, used in zip(logs, (active, active, participates, participates), strict=True):
        assert np.all(np.asarray(leaf)[~used] == 0)


@pytest.mark.parametrize("joint", [True, False])
def test_anything_is_moved_into_the_limits_and_stays_there(some, joint):
    active = some[-1]
    for size in (1, 5, 30):
        once = limited(anywhere(size, size), active, joint)
        assert_within_limits(once, active, joint)
        twice = limited(once, active, joint)
        for a, b in zip(once, twice, strict=True):
            np.testing.assert_allclose(np.exp(a), np.exp(b), atol=1e-5)


def test_what_is_within_the_limits_is_left_alone(some):
    _, _, logs, _, active = some
    for a, b in zip(logs, limited(logs, active, True), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_a_descent_ends_within_the_limits_and_no_higher_than_it_began(some):
    problem, decision, logs, weights, active = some
    last, _ = descend_together(problem, decision, logs, weights, 1)
    for a, b in zip(last.logs, logs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    for steps in (2, 5, 20, 100):
        end, _ = descend_together(problem, decision, logs, weights, steps)
        assert_within_limits(end.logs, active, True)
        assert np.all(end.objective <= last.objective)
        last = end


def test_the_evaluation_that_comes_with_a_descent_is_that_of_its_end(some):
    problem, decision, logs, weights, _ = some

    @quick_jit
    def evaluated_after(problem, decision, logs, weights):
        fixed = fix_decision(problem, decision)
        return evaluate_allocation(fixed, logs, weights)

    for steps in (1, 30):
        end, _ = descend_together(problem, decision, logs, weights, steps)
        chex.assert_trees_all_close(
            end.evaluation,
            evaluated_after(problem, decision, end.logs, end.weights),
            rtol=1e-9,
            atol=1e-12,
        )


@pytest.mark.slow
def test_a_descent_ends_where_it_does_without_its_evaluation(some):
    problem, decision, logs, weights, _ = some

    @quick_jit
    def without(problem, decision, steps):
        fixed = fix_decision(problem, decision)
        return descend_jointly(fixed, logs, weights, steps)

    for steps in (1, 30):
        end, _ = descend_together(problem, decision, logs, weights, steps)
        chex.assert_trees_all_close(
            end._replace(evaluation=None), without(problem, decision, steps), rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_all_starts_lead_to_one_optimum(some, optimum, seed):
    problem, decision, _, weights, _ = some
    end, _ = descend_together(problem, decision, anywhere(seed, 2), weights, LONG)
    np.testing.assert_allclose(end.objective, optimum[0].objective, rtol=1e-4)


def test_an_optimum_does_not_move(some, optimum):
    problem, decision, *_ = some
    end, certificate = optimum
    still = np.asarray(certificate.residual) < 1e-5
    assert still.any()
    again, _ = descend_together(problem, decision, end.logs, end.weights, 50)
    for a, b in zip(again.logs, end.logs, strict=True):
        np.testing.assert_allclose(np.exp(a)[..., still], np.exp(b)[..., still], atol=1e-3)
    np.testing.assert_allclose(again.objective[still], end.objective[still], rtol=1e-6)


@pytest.mark.slow
def test_by_itself_a_cluster_does_not_care_where_another_starts(some):
    problem, decision, logs, weights, active = some
    own = weights._replace(cluster=np.full((2, CLUSTERS, BATCH), 0.5))
    coupling = Coupling(
        interference_w=np.full((NODES, CLUSTERS, BATCH), 1e-14),
        interference_cost_per_w=np.full((NODES, CLUSTERS, BATCH), 0.3),
        latency_cost_per_s=np.full((CLUSTERS, BATCH), 0.05),
        round_s=np.full(BATCH, 20.0),
        bandwidth_cost=np.full(BATCH, 0.5),
    )
    one = alone(problem, decision, logs, own, coupling, 60)
    other = alone(problem, decision, with_first_cluster_moved(logs), own, coupling, 60)
    assert one.objective.shape == (CLUSTERS, BATCH)
    assert_within_limits(one.logs, active, False)
    np.testing.assert_array_equal(one.objective[1], other.objective[1])
    for a, b, axis in zip(one.logs, other.logs, (1, 1, 0, 0), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        np.testing.assert_array_equal(a.take(1, axis), b.take(1, axis))
        assert np.any(a.take(0, axis) != b.take(0, axis))
    start = alone(problem, decision, logs, own, coupling, 1)
    assert np.all(one.objective <= start.objective)


def parabola_after(steps, understated):
    """End of a descent on ``x^2`` in every D2D power, its curvature understated by a factor."""

    def evaluate(logs, weights):
        away = logs.d2d_power + 5.0
        value, nothing = jnp.sum(away**2, axis=(0, 1)), jnp.zeros_like(logs.d2e_power)
        none = Allocation(jnp.zeros_like(away), jnp.zeros_like(away), nothing, nothing)
        return Evaluation(
            smooth=value,
            objective=value,
            cluster_latency_s=nothing,
            slope=none._replace(d2d_power=2.0 * away),
            curvature=none._replace(d2d_power=jnp.full_like(away, 2.0 / understated)),
            interference_cost_per_w=away,
            weights=weights,
        )

    start = jnp.linspace(-5.5, -4.5, 6).reshape(3, 2, 1)
    logs = Allocation(jnp.log(jnp.full_like(start, 0.3)), start, *jnp.full((2, 2, 1), -1.0))
    weights = Weights(*[jnp.ones((2, 1))] * 6)
    end = descend(evaluate, Chain(jnp.ones((3, 2, 1), bool)).used, logs, weights, steps)
    return end.objective[0]


# Two functions: one is traced with the limit of a rise, and one without.
as_it_is, with_any_rise = (jax.jit(lambda *numbers: parabola_after(*numbers)) for _ in range(2))


@pytest.mark.parametrize("understated", [3.0, 6.0, 12.0])
def test_a_descent_comes_back_from_steps_that_are_too_long(understated, monkeypatch):
    start, end = as_it_is(1, understated), as_it_is(20, understated)
    assert end < 1e-2 * start
    monkeypatch.setattr(allocate, "_LARGEST_RISE", np.inf)
    assert end <= with_any_rise(20, understated)
