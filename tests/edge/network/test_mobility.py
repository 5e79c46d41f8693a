"""A walk is a billiard; all laws, shadowing's too, stay."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest
from support.compilations import compiles
from support.tiny_system import PROPAGATION, tiny_params

from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.environment import (
    Environment,
    initial_state,
    observe,
    simulate,
    simulate_round,
)
from collapipe_jax.edge.network.channel import fading_power
from collapipe_jax.edge.network.mobility import (
    Mobility,
    MobilityParams,
    sample_mobility,
    step_mobility,
    walk,
)
from collapipe_jax.edge.network.propagation import (
    TopologyParams,
    large_scale_gain,
    sample_shadowing,
    sample_topology,
    step_shadowing,
)
from collapipe_jax.edge.policies.registry import make_policy
from collapipe_jax.edge.system import sample_system
from collapipe_jax.runs.results.checkpoints import Checkpoints

RADIUS_M = 50.0
TOPOLOGY = TopologyParams(
    clusters=2,
    devices=5,
    cell_radius_m=200.0,
    cluster_radius_m=RADIUS_M,
    d2e_min_distance_m=35.0,
    d2d_min_distance_m=3.0,
)
WALK = MobilityParams(speed_m_per_s=2.0, round_interval_s=10.0, velocity_correlation=0.8)

walk_all = jax.jit(jax.vmap(walk, (0, 0, None, None)))


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


def disc_points(rng, count):
    radius, angle = RADIUS_M * np.sqrt(rng.uniform(size=count)), rng.uniform(0, 2 * np.pi, count)
    return radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def bounce_by_bounce(offset_m, velocity, left_s):
    while True:
        a, b, c = velocity @ velocity, offset_m @ velocity, offset_m @ offset_m - RADIUS_M**2
        until_s = (np.sqrt(max(b * b - a * c, 0.0)) - b) / a
        if until_s >= left_s:
            return offset_m + velocity * left_s, velocity
        offset_m = offset_m + velocity * until_s
        normal = offset_m / np.linalg.norm(offset_m)
        velocity = velocity - 2 * (velocity @ normal) * normal
        left_s -= until_s


def test_a_walk_is_that_of_a_mirrored_ray():
    rng = np.random.default_rng(0)
    offset_m, velocity = disc_points(rng, 400), rng.normal(size=(400, 2)) * 12
    moved_m, after = walk_all(jnp.float32(offset_m), jnp.float32(velocity), 10.0, RADIUS_M)
    pairs = zip(offset_m, velocity, strict=True)
    expected = [bounce_by_bounce(*start, 10.0) for start in pairs]
    np.testing.assert_allclose(offset_m + moved_m, [e[0] for e in expected], atol=0.05)
    np.testing.assert_allclose(after, [e[1] for e in expected], atol=0.05)
    length_m = np.linalg.norm(velocity, axis=1) * 10
    assert np.sum(length_m > 2 * RADIUS_M) > 100  # certain to be mirrored


@given(st.floats(0, 1), st.floats(-np.pi, np.pi), st.floats(-np.pi, np.pi), st.floats(0, 3e3))
def test_a_walk_stays_in_the_disc_and_keeps_speed_and_distance_from_the_centre(r, a, b, speed):
    offset_m = np.float32(RADIUS_M * r * np.array([np.cos(a), np.sin(a)]))
    velocity = np.float32(speed * np.array([np.cos(b), np.sin(b)]))
    moved_m, after = (np.asarray(x[0]) for x in walk_all(offset_m[None], velocity[None], 1.0, 50.0))
    there_m = offset_m + moved_m
    assert np.hypot(*there_m) <= RADIUS_M * (1 + 1e-4)
    assert np.hypot(*after) == pytest.approx(speed, rel=1e-3)
    passed = abs(np.cross([*offset_m, 0], [*velocity, 0])[2])
    assert abs(np.cross([*there_m, 0], [*after, 0])[2]) == pytest.approx(
        passed, abs=2e-3 * RADIUS_M * max(speed, 1e-6)
    )


def test_who_stands_or_walks_along_the_rim_or_through_the_centre():
    offset_m = jnp.array([[20.0, 7.0], [50.0, 0.0], [0.0, 0.0], [50.0, 0.0], [30.0, 0.0]])
    velocity = jnp.array([[0.0, 0.0], [0.0, 15.0], [15.0, 0.0], [15.0, 0.0], [1.0, 0.0]])
    moved_m, after = walk_all(offset_m, velocity, 10.0, RADIUS_M)
    np.testing.assert_array_equal([moved_m[0], after[0]], np.zeros((2, 2)))
    arc = 3.0  # 150 m on a radius of 50
    np.testing.assert_allclose(
        offset_m[1] + moved_m[1], [50 * np.cos(arc), 50 * np.sin(arc)], atol=0.05
    )
    np.testing.assert_allclose(moved_m[2:], [[-50.0, 0.0], [-50.0, 0.0], [10.0, 0.0]], atol=1e-3)
    np.testing.assert_allclose(after[2:], [[15.0, 0.0], [15.0, 0.0], [1.0, 0.0]], atol=1e-4)


@functools.partial(jax.jit, static_argnames="steps")
@functools.partial(jax.vmap, in_axes=(0, None, None))
def walked(key, params, steps):
    """Positions, velocities and shadowing of a network in every round."""
    place_key, shadowing_key, start_key, key = jax.random.split(key, 4)
    position_m = sample_topology(place_key, TOPOLOGY)
    shadowing = sample_shadowing(shadowing_key, position_m, TOPOLOGY, PROPAGATION)
    start = sample_mobility(start_key, position_m, shadowing, params)
    mobility = Mobility(params=params, topology=TOPOLOGY, propagation=PROPAGATION, start=start)

    def step(state, key):
        return step_mobility(key, state, mobility), state

    return jax.lax.scan(step, start, jax.random.split(key, steps))[1]


@pytest.fixture(scope="module")
def history():
    """Sixteen rounds of 600 networks, 20 m a round in discs of 50 m."""
    states = walked(keys(600, seed=1), WALK, 16)
    return jax.tree.map(lambda leaf: np.asarray(leaf, float), states)


def test_positions_stay_in_their_discs_and_uniform(history):
    position_m = history.position_m
    np.testing.assert_array_equal(position_m[:, :, :, 0], position_m[:, :1, :, 0].repeat(16, 1))
    offset_m = position_m[:, :, :, 1:] - position_m[:, :, :, :1]
    radius_m = np.linalg.norm(offset_m, axis=-1)
    assert radius_m.max() < RADIUS_M * (1 + 1e-5)
    for t in (1, 7, 15):
        area, angle = (radius_m[:, t] / RADIUS_M) ** 2, np.arctan2(*offset_m[:, t].T)
        assert kstest(area.ravel(), "uniform").pvalue > 0.01
        assert kstest(angle.ravel() / (2 * np.pi) + 0.5, "uniform").pvalue > 0.01


def test_velocities_stay_normal_whatever_the_place(history):
    offset_m = history.position_m[:, :, :, 1:] - history.position_m[:, :, :, :1]
    deviation = 2.0 * np.sqrt(2 / np.pi)
    for t in (0, 7, 15):
        velocity = history.velocity_m_per_s[:, t]
        assert np.linalg.norm(velocity, axis=-1).mean() == pytest.approx(2.0, rel=0.03)
        assert kstest(velocity[..., 0].ravel() / deviation, "norm").pvalue > 0.01
        outward = np.sum(velocity * offset_m[:, t], axis=-1).ravel() / deviation / RADIUS_M
        assert abs(outward.mean()) < 0.03
        radius_m = np.linalg.norm(offset_m[:, t], axis=-1).ravel()
        speed = np.linalg.norm(velocity, axis=-1).ravel()
        assert abs(np.corrcoef(radius_m, speed)[0, 1]) < 0.05


def test_velocities_are_remembered():
    """Who hardly walks hardly meets the rim: the correlation over rounds is geometric."""
    slow = walked(keys(600), WALK.replace(speed_m_per_s=0.01), 16)
    velocity = np.asarray(slow.velocity_m_per_s)
    for lag in (1, 2, 3):
        measured = np.mean(velocity[:, 0] * velocity[:, lag]) / np.mean(velocity[:, 0] ** 2)
        assert measured == pytest.approx(0.8**lag, abs=0.03)


def whitened(shadow_db, position_m):
    """What is left of a field when its correlation over distance is taken out."""
    flat = position_m.reshape(-1, 12, 2)
    distance_m = np.linalg.norm(flat[:, :, None] - flat[:, None], axis=-1)
    factor = np.linalg.cholesky((np.exp(-distance_m / 50) + 1e-4 * np.eye(12)) / (1 + 1e-4))
    return np.linalg.solve(factor, shadow_db.reshape(-1, 12, 1) / 8.0)[..., 0]


def test_shadowing_keeps_its_law_where_nodes_now_stand(history):
    """Towards the base station: unit normals after whitening by the distances of the round."""
    for t in (1, 15):
        white = whitened(history.shadowing.d2e_db[:, t], history.position_m[:, t])
        assert kstest(white.ravel(), "norm").pvalue > 0.01
        np.testing.assert_allclose(np.corrcoef(white.T), np.eye(12), atol=0.16)
        node_db = history.shadowing.node_db[:, t]
        np.testing.assert_allclose(node_db, node_db.swapaxes(1, 2), rtol=1e-5, atol=1e-5)
        links = node_db[:, *np.triu_indices(12, 1)]
        assert kstest(links.ravel() / 4.0, "norm").pvalue > 0.01
        np.testing.assert_allclose(links.std(axis=0), 4.0, rtol=0.12)


def test_a_device_that_stands_keeps_its_shadowing(history):
    d2e_db, node_db = history.shadowing[:2]
    control = [0, 6]
    units_db = d2e_db[:, :, :, 0]
    np.testing.assert_array_equal(units_db, units_db[:, :1].repeat(16, 1))
    between_db = node_db[:, :, *control]
    np.testing.assert_array_equal(between_db, between_db[:, :1].repeat(16, 1))
    assert np.ptp(d2e_db[:, :, :, 1:], axis=1).min() > 0


PLACES_M = np.array([[[0.0, 90.0], [30.0, 90.0]], [[0.0, 100.0], [-200.0, 0.0]]], np.float32)
MOVES_M = np.array([[[0.0, 0.0], [0.0, 10.0]], [[30.0, 0.0], [3.0, 4.0]]], np.float32)


@jax.jit
@jax.vmap
def moved_once(key):
    first, second = jax.random.split(key)
    before = sample_shadowing(first, jnp.array(PLACES_M), TOPOLOGY, PROPAGATION)
    places_m, moves_m = jnp.array(PLACES_M), jnp.array(MOVES_M)
    return before, step_shadowing(second, before, places_m, moves_m, PROPAGATION)


def test_shadowing_decorrelates_over_what_is_moved_as_gudmundson_has_it():
    before, after = jax.tree.map(np.asarray, moved_once(keys(20_000)))
    old_m, new_m = PLACES_M.reshape(4, 2), (PLACES_M + MOVES_M).reshape(4, 2)
    both = np.concatenate([before.d2e_db, after.d2e_db], axis=1).reshape(-1, 8)
    # Between any two nodes too: a node that comes where another stood sees what that one saw.
    places_m = np.concatenate([old_m, new_m])
    distance_m = np.linalg.norm(places_m[:, None] - places_m[None], axis=-1)
    np.testing.assert_allclose(np.cov(both.T) / 64, np.exp(-distance_m / 50), atol=0.04)
    moved_m = np.linalg.norm(MOVES_M, axis=-1).reshape(4)
    for i, j in zip(*np.triu_indices(4, 1), strict=True):
        pair = np.cov(before.node_db[:, i, j], after.node_db[:, i, j]) / 16
        kept = np.exp(-(moved_m[i] + moved_m[j]) / 10)
        np.testing.assert_allclose(pair, [[1, kept], [kept, 1]], atol=0.04)


def test_sight_keeps_its_law_and_decorrelates_over_what_is_moved():
    propagation = PROPAGATION.replace(d2e_path_loss="uma_2ghz", d2d_path_loss="tr36843_outdoor")
    places_m, moves_m = jnp.array(PLACES_M), jnp.array(MOVES_M)

    @jax.jit
    @jax.vmap
    def moved(key):
        first, second = jax.random.split(key)
        before = sample_shadowing(first, places_m, TOPOLOGY, propagation)
        return before, step_shadowing(second, before, places_m, moves_m, propagation)

    before, after = jax.tree.map(np.asarray, moved(keys(20_000)))
    np.testing.assert_allclose(after.node_sight, after.node_sight.swapaxes(1, 2), atol=1e-5)
    way_m = np.linalg.norm(MOVES_M, axis=-1).reshape(4)
    for i in range(4):
        pair = np.cov(before.d2e_sight.reshape(-1, 4)[:, i], after.d2e_sight.reshape(-1, 4)[:, i])
        kept = np.exp(-way_m[i] / 50)
        np.testing.assert_allclose(pair, [[1, kept], [kept, 1]], atol=0.04)
    for i, j in zip(*np.triu_indices(4, 1), strict=True):
        pair = np.cov(before.node_sight[:, i, j], after.node_sight[:, i, j])
        kept = np.exp(-(way_m[i] + way_m[j]) / 10)
        np.testing.assert_allclose(pair, [[1, kept], [kept, 1]], atol=0.04)


@pytest.mark.slow
def test_a_device_that_walks_keeps_a_law_with_sight():
    params = walking(5.0)
    propagation = params.propagation.replace(
        d2e_path_loss="uma_2ghz", d2d_path_loss="tr36843_outdoor"
    )
    state, happened = rounds(draw(jax.random.key(0), params.replace(propagation=propagation)))
    assert state.mobility.shadowing.d2e_sight.shape == (2, 4)
    assert state.mobility.shadowing.node_sight.shape == (8, 8)
    assert all(np.isfinite(one.cost.latency_s) for one in happened)


draw = jax.jit(sample_system)
start_of = jax.jit(initial_state)
problem_of = jax.jit(lambda key, system, state: observe(Environment(system, state, key)))


@jax.jit
def step(key, system, state, micro_batches=4):
    environment = Environment(system, state, key)
    return simulate_round(environment, lambda key, problem: static_pipeline(problem, micro_batches))


def rounds(system, micro_batches=4, count=3):
    """State after some rounds, and what happened in each."""
    state, happened = start_of(jax.random.key(1), system), []
    for key in keys(count):
        state, one = step(key, system, state, micro_batches)
        happened.append(one)
    return state, happened


def walking(speed_m_per_s=1.4, **dynamics):
    mobility = WALK.replace(speed_m_per_s=jnp.float32(speed_m_per_s))
    return tiny_params(**dynamics).replace(mobility=mobility)


def test_without_a_speed_nothing_is_carried():
    """Abstractly: nothing is compiled."""
    system = jax.eval_shape(sample_system, jax.random.key(0), tiny_params())
    assert system.mobility is None
    assert jax.eval_shape(initial_state, jax.random.key(1), system).mobility is None


def test_the_walk_starts_on_the_network_of_who_stands():
    still = draw(jax.random.key(0), tiny_params())
    system = draw(jax.random.key(0), walking())
    # Two programs round differently.
    same = functools.partial(np.testing.assert_allclose, rtol=1e-5)
    jax.tree.map(same, system.mean_problem, still.mean_problem)
    mobility = system.mobility
    position_m, velocity, shadowing = start_of(jax.random.key(1), system).mobility
    places = position_m, shadowing, mobility.topology, mobility.propagation
    gain = jax.jit(large_scale_gain)(*places)
    np.testing.assert_allclose(gain.d2e, still.mean_problem.radio.d2e_gain, rtol=1e-5)
    np.testing.assert_allclose(gain.node, still.mean_problem.radio.cross_gain, rtol=1e-5)
    assert velocity.shape == (2, 3, 2)


@pytest.mark.slow
def test_who_walks_at_no_speed_meets_the_network_of_who_stands():
    _, still = rounds(draw(jax.random.key(0), tiny_params(fading_correlation=0.5)))
    _, frozen = rounds(draw(jax.random.key(0), walking(0.0, fading_correlation=0.5)))
    for one, other in zip(still, frozen, strict=True):
        np.testing.assert_array_equal(one.decision.segments, other.decision.segments)
        for name in ("latency_s", "energy_j", "divergence"):
            here, there = getattr(one.cost, name), getattr(other.cost, name)
            np.testing.assert_allclose(here, there, rtol=1e-4)


def test_one_compilation_and_the_same_rounds_for_a_key():
    slow, fast = (draw(jax.random.key(0), walking(speed)) for speed in (1.4, 7.0))
    first = rounds(slow)
    with compiles(step, 0):
        jax.tree.map(np.testing.assert_array_equal, first, rounds(slow))
        _, faster = rounds(fast)
    equal = [a.cost.latency_s == b.cost.latency_s for a, b in zip(first[1], faster, strict=True)]
    assert equal == [True, False, False]


@pytest.mark.slow
def test_a_batch_of_horizons_walks_as_single_rounds_do():
    system, batch = draw(jax.random.key(0), walking(5.0)), keys(2, seed=3)
    policy = make_policy("static_pipeline", 4)

    @jax.jit
    @jax.vmap
    def horizon(key):
        state_key, rounds_key = jax.random.split(key)
        start = Environment(system, initial_state(state_key, system), rounds_key)
        return simulate(start, policy, 3)

    history = horizon(batch)
    for index, key in enumerate(batch):
        state_key, rounds_key = jax.random.split(key)
        state = start_of(state_key, system)
        for t, round_key in enumerate(jax.random.split(rounds_key, 3)):
            state, happened = step(round_key, system, state)
            np.testing.assert_allclose(
                happened.cost.energy_j, history.cost.energy_j[index, t], rtol=1e-3
            )
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(history.cost))


def test_every_policy_meets_the_same_network():
    system = draw(jax.random.key(0), walking())
    one, happened = rounds(system)
    other, elsewhere = rounds(system, micro_batches=8)
    for name in ("fading", "mobility"):
        jax.tree.map(np.testing.assert_array_equal, getattr(one, name), getattr(other, name))
    pairs = zip(happened, elsewhere, strict=True)
    assert all(a.cost.latency_s != b.cost.latency_s for a, b in pairs)


def test_gains_of_a_round_follow_positions_and_shadowing_and_all_else_stays():
    system = draw(jax.random.key(0), walking(5.0))
    state, _ = rounds(system)
    problem, mean = problem_of(jax.random.key(2), system, state), system.mean_problem
    position_m = np.asarray(state.mobility.position_m, float)
    d2e_m = np.maximum(np.linalg.norm(position_m, axis=-1), 35.0)
    d2e_db = np.asarray(state.mobility.shadowing.d2e_db) - 128.1 - 37.6 * np.log10(d2e_m / 1e3)
    fading = np.asarray(fading_power(state.fading.d2e, system.dynamics.d2e_rician_factor))
    np.testing.assert_allclose(problem.radio.d2e_gain, 10 ** (d2e_db / 10) * fading, rtol=1e-3)
    flat_m = position_m.reshape(8, 2)
    node_m = np.maximum(np.linalg.norm(flat_m[:, None] - flat_m[None], axis=-1), 3.0)
    decades = np.log10(node_m / 1e3)
    loss_db = np.maximum(148 + 40 * decades, 98.47 + 20 * decades)  # free space up to 3.3 m
    node_db = np.asarray(state.mobility.shadowing.node_db) - loss_db
    fading = np.asarray(fading_power(state.fading.node, system.dynamics.d2d_rician_factor))
    cross = np.asarray(problem.radio.cross_gain)
    np.testing.assert_allclose(cross.reshape(8, 8), 10 ** (node_db / 10) * fading, rtol=1e-3)
    np.testing.assert_allclose(cross, cross.transpose(2, 3, 0, 1), rtol=1e-5)
    for n in range(2):
        np.testing.assert_array_equal(problem.radio.d2d_gain[n], cross[n, :, n, :])
    for name in ("energy_budget_j", "reference_latency_s", "divergence_target"):
        np.testing.assert_array_equal(getattr(problem.control, name), getattr(mean.control, name))


@pytest.mark.slow
def test_rounds_go_on_from_a_checkpoint_as_if_never_stopped(tmp_path):
    system = draw(jax.random.key(0), walking())
    state, _ = rounds(system, count=2)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(2, state, {"rounds": np.zeros(2)})
    with Checkpoints(tmp_path) as checkpoints:
        resumed, _ = checkpoints.load(2, start_of(jax.random.key(1), system))
    jax.tree.map(np.testing.assert_array_equal, resumed, state)
    for key in keys(2, seed=9):
        state, happened = step(key, system, state)
        resumed, again = step(key, system, resumed)
    jax.tree.map(np.testing.assert_array_equal, (resumed, again), (state, happened))
