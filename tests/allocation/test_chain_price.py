"""Prices of chains against the price of a round, and their slopes against differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collapipe_jax.allocation.chain_price import price_point
from collapipe_jax.cost.chains import chains, heard_w
from collapipe_jax.cost.round import price
from support.random_problems import random_rounds, to_lanes

from collapipe_jax.allocation.allocate import to_logs, to_resources
from collapipe_jax.allocation.smooth_maximum import to_inverse
from collapipe_jax.allocation.variables import Resources, Surroundings, first_multipliers
from collapipe_jax.compilation import quick_jit
from collapipe_jax.cost.decision import active_nodes
from collapipe_jax.network.channel import RATE_LAWS, interference_w

CLUSTERS, DEVICES, BLOCKS, LANES = 2, 3, 5, 12
NODES = DEVICES + 1
TEMPERATURE = 0.1


@pytest.fixture(scope="module", autouse=True)
def double(lanes_last):
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def some(double):
    """Problems and decisions, first stacked, then with lanes; idle nodes among them."""

    def sits_out(index):
        return (index % CLUSTERS,) if index % 2 else ()

    stacked = random_rounds(LANES, CLUSTERS, DEVICES, BLOCKS, sits_out, seed=20)
    return stacked, to_lanes(stacked)


@quick_jit
def prepared(problem, decision):
    """Logarithms, multipliers to start with, and interference."""
    chain = chains(problem, decision.segments, decision.micro_batches)
    logs = to_logs(problem, chain, decision)
    power_w = jnp.where(chain.active, to_resources(problem, logs).d2d_power, 0.0)
    return logs, first_multipliers(chain), heard_w(chain.cross_gain, power_w)


def logs_of(problem, decision):
    return prepared(problem, decision)[0]


@functools.partial(quick_jit, static_argnames="temperature")
def priced(problem, decision, logs, multipliers, temperature):
    chain = chains(problem, decision.segments, decision.micro_batches)
    point = to_resources(problem, logs)
    return price_point(problem, chain, point, multipliers, temperature=temperature)


@functools.partial(quick_jit, static_argnames="temperature")
def priced_alone(problem, decision, logs, multipliers, temperature, around):
    chain = chains(problem, decision.segments, decision.micro_batches)
    point = to_resources(problem, logs)
    return price_point(problem, chain, point, multipliers, around, temperature)


price_all = quick_jit(jax.vmap(price))


def random_logs(rng):
    """Anywhere within the limits of a power and a share, sums apart."""
    return Resources(
        rng.uniform(-4, 0, (NODES, CLUSTERS, LANES)),
        rng.uniform(-5, 0, (NODES, CLUSTERS, LANES)),
        rng.uniform(-4, 0, (CLUSTERS, LANES)),
        rng.uniform(-5, 0, (CLUSTERS, LANES)),
    )


def random_multipliers(rng, first, last=(CLUSTERS, LANES)):
    """Weights of any kind: of sum 1 over the first axis, or of one of two."""

    def weights(shape):
        some = rng.exponential(size=shape)
        return some / some.sum(axis=0)

    of_two = {
        name: rng.uniform(size=leaf.shape)
        for name, leaf in first._asdict().items()
        if name not in ("forward", "backward", "cluster", "caps")
    }
    flow = first.forward.shape
    return first._replace(
        forward=weights(flow), backward=weights(flow), cluster=weights(last), **of_two
    )


def random_surroundings(rng, point):
    return Surroundings(
        heard_w=10.0 ** rng.uniform(-15, -12, (NODES, CLUSTERS, LANES)),
        price_per_w=rng.uniform(0, 3, (NODES, CLUSTERS, LANES)),
        price_per_s=0.1 * rng.uniform(size=(CLUSTERS, LANES)),
        round_s=np.asarray(jnp.median(point.cluster_latency_s, axis=0)),
        price_per_share=rng.uniform(0, 2, LANES),
    )


@pytest.fixture(scope="module")
def first(some):
    """Multipliers to start with."""
    return prepared(*some[1])[1]


def test_the_price_of_a_decision_is_that_of_the_round(some, first):
    (problems, decisions), (problem, decision) = some
    got = priced(problem, decision, logs_of(problem, decision), first, TEMPERATURE)
    wanted = price_all(problems, decisions)
    np.testing.assert_allclose(got.objective, wanted.objective, rtol=1e-8)
    np.testing.assert_allclose(got.cluster_latency_s, wanted.cluster_latency_s.T, rtol=1e-12)
    assert np.any(np.asarray(wanted.absent))
    assert np.ptp(np.log(wanted.objective)) > 1


def differences(value, logs, step=1e-5):
    """Slope of ``value(logs)`` for every variable, all lanes at once."""
    slopes = []
    for field in Resources._fields:
        leaf = np.asarray(getattr(logs, field))
        slope = np.zeros_like(leaf)
        for index in np.ndindex(leaf.shape[:-1]):
            ends = []
            for sign in (1, -1):
                moved = leaf.copy()
                moved[index] += sign * step
                ends.append(np.asarray(value(logs._replace(**{field: moved}))))
            slope[index] = (ends[0] - ends[1]) / (2 * step)
        slopes.append(slope)
    return Resources(*slopes)


def assert_slopes(slope, wanted, size):
    for field in Resources._fields:
        got, true = np.asarray(getattr(slope, field)), getattr(wanted, field)
        np.testing.assert_allclose(got / size, true / size, rtol=1e-5, atol=1e-7, err_msg=field)
        assert np.any(true != 0), field


@pytest.mark.parametrize("rate_law", RATE_LAWS)
def test_slopes_are_those_of_differences(some, first, rate_law):
    rng = np.random.default_rng(1)
    problem, decision = some[1]
    problem = problem.replace(radio=problem.radio.replace(rate_law=rate_law))
    logs, multipliers = logs_of(problem, decision), random_multipliers(rng, first)

    def point(logs):
        return priced(problem, decision, logs, multipliers, TEMPERATURE)

    here = point(logs)
    assert_slopes(here.slope, differences(lambda x: point(x).smooth, logs), here.smooth)


def test_slopes_of_clusters_on_their_own_are_those_of_differences(some, first):
    rng = np.random.default_rng(2)
    problem, decision = some[1]
    logs, multipliers = (
        logs_of(problem, decision),
        random_multipliers(rng, first, (2, CLUSTERS, LANES)),
    )
    together = priced(problem, decision, logs, first, TEMPERATURE)
    around = random_surroundings(rng, together)

    def point(logs):
        return priced_alone(problem, decision, logs, multipliers, TEMPERATURE, around)

    here = point(logs)
    assert here.smooth.shape == (CLUSTERS, LANES)
    total = np.asarray(here.smooth).sum(axis=0)
    assert_slopes(here.slope, differences(lambda x: point(x).smooth.sum(axis=0), logs), total)
    moved = jax.tree.map(lambda leaf: jnp.asarray(leaf), logs)
    moved = moved._replace(d2d_power=moved.d2d_power.at[:, 0].add(-1.0))
    moved = moved._replace(d2e_share=moved.d2e_share.at[0].add(-1.0))
    np.testing.assert_array_equal(point(moved).smooth[1:], here.smooth[1:])
    assert np.any(point(moved).smooth[0] != here.smooth[0])


def test_a_cluster_alone_sees_the_slopes_of_all_together(some, first):
    """With the interference it hears and makes at their prices, and its price of time."""
    problem, decision = some[1]
    logs = logs_of(problem, decision)
    latency_s = priced(problem, decision, logs, first, TEMPERATURE).cluster_latency_s
    slowest = np.asarray(jnp.argmax(latency_s, axis=0) == np.arange(CLUSTERS)[:, None], float)
    together = priced(problem, decision, logs, first._replace(cluster=slowest), TEMPERATURE)
    control = problem.control
    around = Surroundings(
        heard_w=prepared(problem, decision)[2],
        price_per_w=together.price_per_heard_w,
        price_per_s=control.v / control.reference_latency_s * slowest,
        round_s=jnp.max(latency_s, axis=0),
        price_per_share=np.zeros(LANES),
    )
    never = np.stack([np.zeros((CLUSTERS, LANES)), np.ones((CLUSTERS, LANES))])
    own = first._replace(cluster=never)
    alone = priced_alone(problem, decision, logs, own, TEMPERATURE, around)
    for got, wanted in zip(alone.slope, together.slope, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)


def active_lanes(decision):
    return jnp.moveaxis(active_nodes(jnp.moveaxis(decision.segments, 2, 0)), 0, -1).swapaxes(0, 1)


def test_interference_is_that_of_the_channel(some):
    (problems, decisions), (problem, decision) = some
    got = np.moveaxis(prepared(problem, decision)[2], -1, 0).swapaxes(1, 2)
    wanted = jax.vmap(lambda radio, segments, power: interference_w(
        radio, active_nodes(segments), power
    ))(problems.radio, decisions.segments, decisions.d2d_power_w)  # fmt: skip
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_no_multipliers_lift_the_smooth_price_above_the_true_one(some, first):
    rng = np.random.default_rng(3)
    problem, decision = some[1]
    for temperature in (0.01, 0.1, 0.5):
        logs, multipliers = random_logs(rng), random_multipliers(rng, first)
        point = priced(problem, decision, logs, multipliers, temperature)
        assert np.all(point.smooth <= point.objective * (1 + 1e-12))
        assert np.any(point.smooth < point.objective * (1 - 1e-3))


@pytest.mark.parametrize("temperature", [0.1, 0.5, 0.3])
def test_powers_by_products_are_those_by_logarithms(temperature):
    ratio = np.array([0.0, 1e-3, 0.3, 0.9, 1.0])
    np.testing.assert_allclose(
        to_inverse(ratio, temperature), ratio ** (1 / temperature), rtol=1e-12, atol=1e-30
    )


def test_multipliers_gather_on_what_is_largest_and_close_the_gap(some, first):
    problem, decision = some[1]
    logs, multipliers = logs_of(problem, decision), first
    last = np.full(LANES, -np.inf)
    for _ in range(400):
        point = priced(problem, decision, logs, multipliers, TEMPERATURE)
        assert np.all(point.smooth >= last * (1 - 1e-5))
        last, multipliers = point.smooth, point.multipliers
    np.testing.assert_allclose(point.smooth, point.objective, rtol=1e-5)
    present = np.asarray(active_lanes(decision)[0])
    for weights in multipliers[:2]:
        np.testing.assert_allclose(np.sum(weights, axis=0)[present], 1.0)
    np.testing.assert_allclose(np.sum(multipliers.cluster, axis=0), 1.0)


def test_the_price_is_convex_in_logarithms(some, first):
    problem, decision = some[1]
    rng = np.random.default_rng(4)
    bent = 0
    for _ in range(40):
        multipliers = random_multipliers(rng, first)
        ends = random_logs(rng), random_logs(rng)
        middle = jax.tree.map(lambda a, b: 0.5 * (a + b), *ends)
        points = [priced(problem, decision, x, multipliers, TEMPERATURE) for x in (*ends, middle)]
        smooth, objective = zip(*((p.smooth, p.objective) for p in points), strict=True)
        for one, other, between in (smooth, objective):
            assert np.all(between <= 0.5 * (one + other) * (1 + 1e-9))
            bent += int(np.sum(between < 0.45 * (one + other)))
    assert bent > 100
