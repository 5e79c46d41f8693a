"""The price of changing layouts: none by default, kept to where it is asked for."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.random_problems import pick, random_problems
from support.tiny_system import tiny_params

from collapipe_jax.compilation import quick_jit
from collapipe_jax.cost.feasibility import is_feasible
from collapipe_jax.cost.round import price
from collapipe_jax.cost.static_pipeline import with_equal_resources
from collapipe_jax.cost.switching import Switching, SwitchingParams, moved_encoders
from collapipe_jax.errors import InputError
from collapipe_jax.files.documents import write_network
from collapipe_jax.policies.dssra import Effort, dssra
from collapipe_jax.policies.registry import make_policy
from collapipe_jax.simulation.environment import initial_state, simulate_round
from collapipe_jax.simulation.system import sample_system

CLUSTERS, DEVICES, BLOCKS, NETWORKS = 2, 2, 3, 16
LIGHT = Effort(joint_steps=(8, 16), plans=2, layouts=3, cluster_steps=5)


def test_moved_blocks_against_a_loop():
    rng = np.random.default_rng(0)
    before = rng.integers(0, 3, (DEVICES, 40)) * (rng.uniform(size=40) < 0.8)
    now = rng.integers(0, 3, (DEVICES, 40))
    got = np.asarray(moved_encoders(before, now, BLOCKS))
    for column in range(40):
        taken = sum(max(b - a, 0) for a, b in zip(before[:, column], now[:, column], strict=True))
        wanted = taken / BLOCKS if before[:, column].any() else 0.0
        assert got[column] == pytest.approx(wanted)


@quick_jit
@jax.vmap
def solve(problem):
    tuned = dssra(problem, effort=LIGHT)
    free = price(problem.replace(switching=None), tuned.decision)
    return tuned, price(problem, tuned.decision), free, is_feasible(problem, tuned.decision)


@pytest.fixture(scope="module")
def problems():
    """In every other network a device is away."""

    def sometimes_away(index, rng, network):
        network["compute"]["memory_bytes"] *= 10.0
        if index % 2:
            network["compute"]["memory_bytes"][0, 0] = 0.0

    return random_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS, sometimes_away, seed=5)


@pytest.fixture(scope="module")
def free(problems):
    """What is decided where no cluster held anything before."""
    nothing = np.zeros((NETWORKS, CLUSTERS, DEVICES), np.int32)
    counts = np.ones((NETWORKS, CLUSTERS), np.int32)
    return solve(with_switching(problems, nothing, counts, 0.0))


def with_switching(problems, segments, micro_batches, cost, hysteresis=0.0):
    each = functools.partial(jnp.full, len(segments))
    switching = Switching(
        segments=jnp.asarray(segments),
        micro_batches=jnp.asarray(micro_batches),
        switching_cost=each(cost),
        hysteresis=each(hysteresis),
    )
    return problems.replace(switching=switching)


def other_layouts(decision):
    """The same segments on other devices, whether or not memory allows them."""
    return np.asarray(decision.segments)[..., ::-1], np.asarray(decision.micro_batches)


def are_possible(problems, segments, micro_batches):
    """Layouts that memory allows, by network."""

    def one(problem, segments, micro_batches):
        return is_feasible(problem, with_equal_resources(problem, segments, micro_batches))

    return np.asarray(jax.vmap(one)(problems, jnp.asarray(segments), jnp.asarray(micro_batches)))


@pytest.mark.slow
def test_the_objective_counts_what_moves(problems, free):
    before, counts = other_layouts(free[0].decision)
    tuned, priced, without, feasible = solve(with_switching(problems, before, counts, 0.7))
    moved = jax.vmap(lambda a, b: jnp.sum(moved_encoders(a.T, b.T, BLOCKS)))(
        before, tuned.decision.segments
    )
    np.testing.assert_allclose(tuned.objective, priced.objective, rtol=1e-4)
    np.testing.assert_allclose(priced.objective, without.objective + 0.7 * moved, rtol=1e-5)
    assert np.all(feasible)
    assert np.ptp(moved) > 0


@pytest.mark.slow
def test_a_high_price_keeps_every_layout_that_is_possible(problems, free):
    before, counts = other_layouts(free[0].decision)
    tuned, _, _, feasible = solve(with_switching(problems, before, counts, 1e6))
    possible = are_possible(problems, before, counts)
    stays = np.all(np.asarray(tuned.decision.segments) == before, axis=(1, 2))
    assert np.all(feasible)
    assert np.all(stays[possible])
    assert np.any(possible & (before != np.asarray(free[0].decision.segments)).any(axis=(1, 2)))
    assert not np.all(possible)


@pytest.mark.slow
@pytest.mark.parametrize(("hysteresis", "changes"), [(0.0, True), (1.0, False)])
def test_hysteresis_asks_for_a_gain(problems, free, hysteresis, changes):
    decision = free[0].decision
    before, _ = other_layouts(decision)
    most = np.max(problems.workload.micro_batch_choices, axis=1)
    counts = np.broadcast_to(most[:, None], decision.micro_batches.shape)
    tuned, _, _, feasible = solve(with_switching(problems, before, counts, 0.0, hysteresis))
    assert np.all(feasible)
    possible = are_possible(problems, before, counts)
    stays = np.all(np.asarray(tuned.decision.segments) == before, axis=(1, 2))
    assert np.any(possible)
    assert np.all(stays[possible]) != changes
    if not changes:
        np.testing.assert_array_equal(tuned.decision.micro_batches[possible], counts[possible])


@pytest.mark.slow
def test_without_a_price_a_layout_before_does_no_harm(problems, free):
    before, counts = other_layouts(free[0].decision)
    tuned, *_ = solve(with_switching(problems, before, counts, 0.0))
    assert np.all(tuned.objective <= free[0].objective * 1.02)


draw = quick_jit(sample_system)


@quick_jit
def step(key, system, state):
    return simulate_round(key, system, state, make_policy("static_pipeline", 4))


def with_price(params):
    switching = SwitchingParams(switching_cost=jnp.float32(1.0), hysteresis=jnp.float32(0.1))
    return params.replace(control=params.control.replace(switching=switching))


def test_a_cluster_that_sits_out_keeps_its_blocks():
    system = draw(jax.random.key(0), with_price(tiny_params(availability=0.5)))
    state = initial_state(jax.random.key(1), system)
    before = np.asarray(state.held.segments)
    assert not before.any()
    sat_out = 0
    for key in jax.random.split(jax.random.key(2), 8):
        state, happened = step(key, system, state)
        segments, present = happened.decision.segments, ~np.asarray(happened.cost.absent)
        before = np.where(present[:, None], segments, before)
        sat_out += np.sum(~present & before.any(axis=1))
        np.testing.assert_array_equal(state.held.segments, before)
    assert sat_out > 0


def test_by_default_no_layout_is_remembered():
    assert initial_state(jax.random.key(1), draw(jax.random.key(0), tiny_params())).held is None


def test_a_price_is_not_written_on_file(tmp_path, problems):
    problem = pick(problems, 0)
    counts = np.ones(CLUSTERS, np.int32)
    switching = Switching(
        segments=np.zeros((CLUSTERS, DEVICES)),
        micro_batches=counts,
        switching_cost=1.0,
        hysteresis=0.0,
    )
    with pytest.raises(InputError, match=r"control\.switching_cost"):
        write_network(tmp_path / "network.json", problem.replace(switching=switching))
