"""Descent on shares and powers: limits, optima, and the bound that certifies them."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collapipe_jax.cost.chains import chains
from support.random_problems import random_rounds, to_lanes

from collapipe_jax.allocation.allocate import price_logs, to_logs, tune_chains
from collapipe_jax.allocation.projected_gradient import (
    LEAST_LOG_POWER,
    certify,
    descend,
    to_limits,
)
from collapipe_jax.allocation.variables import Resources, Surroundings, first_multipliers
from collapipe_jax.compilation import quick_jit

CLUSTERS, DEVICES, BLOCKS, LANES = 2, 3, 5, 12
NODES = DEVICES + 1
LONG = 2500


@pytest.fixture(scope="module", autouse=True)
def double(lanes_last):
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def some(double):
    """Problems and decisions; in some a cluster sits out or a device idles."""

    def sits_out(index):
        return (1,) if index % 4 == 3 else ()

    rounds = random_rounds(LANES, CLUSTERS, DEVICES, BLOCKS, sits_out, seed=30)
    problem, decision = to_lanes(rounds)
    logs, multipliers, active = prepared(problem, decision)
    return problem, decision, logs, multipliers, np.asarray(active)


@quick_jit
def prepared(problem, decision):
    chain = chains(problem, decision.segments, decision.micro_batches)
    return to_logs(problem, chain, decision), first_multipliers(chain), chain.active


@quick_jit
def together(problem, decision, logs, multipliers, steps):
    """Where a descent ends, and its certificate there."""
    chain = chains(problem, decision.segments, decision.micro_batches)
    end = tune_chains(problem, chain, logs, multipliers, steps, with_price=True)
    return end, certify(end.priced, end.logs, chain.active)


@quick_jit
def alone(problem, decision, logs, multipliers, around, steps):
    chain = chains(problem, decision.segments, decision.micro_batches)
    pricer = functools.partial(price_logs, problem, chain, around=around)
    return descend(pricer, chain.active, logs, multipliers, steps, joint=False)


@pytest.fixture(scope="module")
def optimum(some):
    problem, decision, logs, multipliers, _ = some
    return together(problem, decision, logs, multipliers, LONG)


def random_logs(seed, size):
    rng = np.random.default_rng(seed)
    shapes = [(NODES, CLUSTERS, LANES)] * 2 + [(CLUSTERS, LANES)] * 2
    return Resources(*(rng.normal(-size / 2, size, shape) for shape in shapes))


def assert_within_limits(logs, active, joint):
    present = active[0]
    share = np.where(active, np.exp(logs.d2d_share), 0.0)
    assert np.all(share.sum(axis=0) <= 1 + 1e-12)
    band = np.where(present, np.exp(logs.d2e_share), 0.0)
    assert np.all((band.sum(axis=0) if joint else band) <= 1 + 1e-12)
    assert np.all(share[active] > 0)
    for power in (np.asarray(logs.d2d_power), np.asarray(logs.d2e_power)):
        assert np.all((power >= LEAST_LOG_POWER) & (power <= 0))
    for leaf, used in zip(logs, (active, active, present, present), strict=True):
        assert np.all(np.asarray(leaf)[~used] == 0)


@pytest.mark.parametrize("joint", [True, False])
def test_anything_is_moved_into_the_limits_and_stays_there(some, joint):
    active = some[-1]
    for size in (1, 5, 30):
        once = to_limits(random_logs(size, size), active, joint)
        assert_within_limits(once, active, joint)
        twice = to_limits(once, active, joint)
        for a, b in zip(once, twice, strict=True):
            np.testing.assert_allclose(np.exp(a), np.exp(b), atol=1e-5)


def test_what_is_within_the_limits_is_left_alone(some):
    _, _, logs, _, active = some
    for a, b in zip(logs, to_limits(logs, active), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_a_descent_ends_within_the_limits_and_no_higher_than_it_began(some):
    problem, decision, logs, multipliers, active = some
    last, _ = together(problem, decision, logs, multipliers, 1)
    for a, b in zip(last.logs, logs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    for steps in (2, 5, 20, 100):
        end, _ = together(problem, decision, logs, multipliers, steps)
        assert_within_limits(end.logs, active, True)
        assert np.all(end.objective <= last.objective)
        last = end


def test_the_price_that_comes_with_a_descent_is_that_of_its_end(some):
    problem, decision, logs, multipliers, _ = some

    @quick_jit
    def priced_after(logs, multipliers):
        chain = chains(problem, decision.segments, decision.micro_batches)
        return price_logs(problem, chain, logs, multipliers)

    for steps in (1, 30):
        end, _ = together(problem, decision, logs, multipliers, steps)
        chex.assert_trees_all_close(
            end.priced, priced_after(end.logs, end.multipliers), rtol=1e-9, atol=1e-12
        )


def test_a_descent_ends_where_it_does_without_its_price(some):
    problem, decision, logs, multipliers, _ = some

    @quick_jit
    def without(steps):
        chain = chains(problem, decision.segments, decision.micro_batches)
        return tune_chains(problem, chain, logs, multipliers, steps)

    for steps in (1, 30):
        end, _ = together(problem, decision, logs, multipliers, steps)
        chex.assert_trees_all_close(
            end._replace(priced=None), without(steps), rtol=1e-9, atol=1e-12
        )


def test_no_point_lies_under_a_bound(some, optimum):
    problem, decision, logs, multipliers, _ = some
    lowest = np.asarray(optimum[0].objective) * (1 + 1e-9)
    for steps in (1, 10, 100, LONG):
        end, certificate = together(problem, decision, logs, multipliers, steps)
        assert np.all(certificate.lower_bound <= end.objective * (1 + 1e-12))
        assert np.all(certificate.lower_bound <= lowest)
    for seed in range(3):
        anywhere = random_logs(seed, 3)
        _, certificate = together(problem, decision, anywhere, multipliers, 1)
        assert np.all(certificate.lower_bound <= lowest)


def test_a_long_descent_ends_where_its_certificate_says_optimal(optimum):
    end, certificate = optimum
    gap = 1 - np.asarray(certificate.lower_bound / end.objective)
    assert np.mean(gap < 1e-4) > 0.8
    assert np.max(gap) < 2e-3
    assert np.median(certificate.residual) < 1e-4


def test_all_starts_lead_to_one_optimum(some, optimum):
    problem, decision, _, multipliers, _ = some
    for seed in (1, 2):
        end, _ = together(problem, decision, random_logs(seed, 2), multipliers, LONG)
        np.testing.assert_allclose(end.objective, optimum[0].objective, rtol=1e-4)


def test_an_optimum_does_not_move(some, optimum):
    problem, decision, *_ = some
    end, certificate = optimum
    still = np.asarray(certificate.residual) < 1e-5
    assert still.any()
    again, _ = together(problem, decision, end.logs, end.multipliers, 50)
    for a, b in zip(again.logs, end.logs, strict=True):
        np.testing.assert_allclose(np.exp(a)[..., still], np.exp(b)[..., still], atol=1e-3)
    np.testing.assert_allclose(again.objective[still], end.objective[still], rtol=1e-6)


def test_apart_a_cluster_does_not_care_where_another_starts(some):
    problem, decision, logs, multipliers, active = some
    own = multipliers._replace(cluster=np.full((2, CLUSTERS, LANES), 0.5))
    around = Surroundings(
        heard_w=np.full((NODES, CLUSTERS, LANES), 1e-14),
        price_per_w=np.full((NODES, CLUSTERS, LANES), 0.3),
        price_per_s=np.full((CLUSTERS, LANES), 0.05),
        round_s=np.full(LANES, 20.0),
        price_per_share=np.full(LANES, 0.5),
    )
    one = alone(problem, decision, logs, own, around, 60)
    other_logs = jax.tree.map(jnp.asarray, logs)
    other_logs = other_logs._replace(
        d2d_power=other_logs.d2d_power.at[:, 0].add(-2.0),
        d2e_share=other_logs.d2e_share.at[0].add(-1.0),
    )
    other = alone(problem, decision, other_logs, own, around, 60)
    assert one.objective.shape == (CLUSTERS, LANES)
    assert_within_limits(one.logs, active, False)
    np.testing.assert_array_equal(one.objective[1], other.objective[1])
    for a, b, axis in zip(one.logs, other.logs, (1, 1, 0, 0), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        np.testing.assert_array_equal(a.take(1, axis), b.take(1, axis))
        assert np.any(a.take(0, axis) != b.take(0, axis))
    start = alone(problem, decision, logs, own, around, 1)
    assert np.all(one.objective <= start.objective)
