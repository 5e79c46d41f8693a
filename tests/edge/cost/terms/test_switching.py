"""The cost of changing partitions: none by default, kept to where it is asked for."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compiled import evaluate
from support.random_problems import pick, random_problems
from support.tiny_system import tiny_params

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.feasibility import is_feasible
from collapipe_jax.edge.cost.problem import Switching, SwitchingParams
from collapipe_jax.edge.cost.static_pipeline import with_equal_allocation
from collapipe_jax.edge.cost.terms import moved_encoders
from collapipe_jax.edge.environment import Environment, initial_state, simulate_round
from collapipe_jax.edge.policies.dssra import SearchConfig, dssra
from collapipe_jax.edge.policies.registry import make_policy
from collapipe_jax.edge.system import sample_system
from collapipe_jax.runs.documents import write_network

CLUSTERS, DEVICES, BLOCKS, NETWORKS = 2, 2, 3, 16
LIGHT = SearchConfig(
    allocation_steps=(8, 8, 16), candidates=2, cluster_candidates=3, cluster_steps=5
)


def test_moved_encoders_against_a_loop():
    rng = np.random.default_rng(0)
    before = rng.integers(0, 3, (DEVICES, 40)) * (rng.uniform(size=40) < 0.8)
    now = rng.integers(0, 3, (DEVICES, 40))
    got = np.asarray(moved_encoders(jnp.asarray(before), jnp.asarray(now), BLOCKS))
    for column in range(40):
        taken = sum(max(b - a, 0) for a, b in zip(before[:, column], now[:, column], strict=True))
        wanted = taken / BLOCKS if before[:, column].any() else 0.0
        assert got[column] == pytest.approx(wanted)


@quick_jit
@jax.vmap
def solve(problem):
    solution = dssra(problem, config=LIGHT)
    decision = solution.decision
    free = evaluate(problem.replace(switching=None), decision)
    return solution, evaluate(problem, decision), free, is_feasible(problem, decision)


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


def other_partitions(decision):
    """The same segments on other devices, whether or not memory allows them."""
    return np.asarray(decision.segments)[..., ::-1], np.asarray(decision.micro_batches)


def are_possible(problems, segments, micro_batches):
    """Partitions that memory allows, by network."""

    def one(problem, segments, micro_batches):
        return is_feasible(problem, with_equal_allocation(problem, segments, micro_batches))

    return np.asarray(jax.vmap(one)(problems, jnp.asarray(segments), jnp.asarray(micro_batches)))


@pytest.mark.slow
def test_the_objective_counts_what_moves(problems, free):
    before, counts = other_partitions(free[0].decision)
    solution, cost, without, feasible = solve(with_switching(problems, before, counts, 0.7))
    moved = jax.vmap(lambda a, b: jnp.sum(moved_encoders(a.T, b.T, BLOCKS)))(
        before, solution.decision.segments
    )
    np.testing.assert_allclose(solution.objective, cost.objective, rtol=1e-4)
    np.testing.assert_allclose(cost.objective, without.objective + 0.7 * moved, rtol=1e-5)
    assert np.all(feasible)
    assert np.ptp(moved) > 0


@pytest.mark.slow
def test_a_high_cost_keeps_every_partition_that_is_possible(problems, free):
    before, counts = other_partitions(free[0].decision)
    solution, _, _, feasible = solve(with_switching(problems, before, counts, 1e6))
    possible = are_possible(problems, before, counts)
    stays = np.all(np.asarray(solution.decision.segments) == before, axis=(1, 2))
    assert np.all(feasible)
    assert np.all(stays[possible])
    assert np.any(possible & (before != np.asarray(free[0].decision.segments)).any(axis=(1, 2)))
    assert not np.all(possible)


@pytest.mark.slow
@pytest.mark.parametrize(("hysteresis", "changes"), [(0.0, True), (1.0, False)])
def test_hysteresis_asks_for_a_gain(problems, free, hysteresis, changes):
    decision = free[0].decision
    before, _ = other_partitions(decision)
    most = np.max(problems.workload.micro_batch_choices, axis=1)
    counts = np.broadcast_to(most[:, None], decision.micro_batches.shape)
    solution, _, _, feasible = solve(with_switching(problems, before, counts, 0.0, hysteresis))
    assert np.all(feasible)
    possible = are_possible(problems, before, counts)
    stays = np.all(np.asarray(solution.decision.segments) == before, axis=(1, 2))
    assert np.any(possible)
    assert np.all(stays[possible]) != changes
    if not changes:
        np.testing.assert_array_equal(solution.decision.micro_batches[possible], counts[possible])


@pytest.mark.slow
def test_without_a_cost_a_partition_before_does_no_harm(problems, free):
    before, counts = other_partitions(free[0].decision)
    solution, *_ = solve(with_switching(problems, before, counts, 0.0))
    # Another candidate changes the path of the search, so a few end higher.
    excess = np.asarray(solution.objective / free[0].objective) - 1
    assert np.median(np.abs(excess)) < 1e-4
    assert np.mean(excess > 0.02) < 0.1
    assert np.max(excess) < 0.1


draw = quick_jit(sample_system)


@quick_jit
def step(key, system, state):
    return simulate_round(Environment(system, state, key), make_policy("static_pipeline", 4))


def with_switching_cost(params):
    switching = SwitchingParams(switching_cost=jnp.float32(1.0), hysteresis=jnp.float32(0.1))
    return params.replace(control=params.control.replace(switching=switching))


@pytest.mark.slow
def test_a_cluster_that_sits_out_keeps_its_blocks():
    system = draw(jax.random.key(0), with_switching_cost(tiny_params(availability=0.5)))
    state = initial_state(jax.random.key(1), system)
    before = np.asarray(state.held.segments)
    assert not before.any()
    sat_out = 0
    for key in jax.random.split(jax.random.key(2), 8):
        state, record = step(key, system, state)
        segments, participates = record.decision.segments, ~np.asarray(record.cost.absent)
        before = np.where(participates[:, None], segments, before)
        sat_out += np.sum(~participates & before.any(axis=1))
        np.testing.assert_array_equal(state.held.segments, before)
    assert sat_out > 0


def test_by_default_no_partition_is_remembered():
    assert initial_state(jax.random.key(1), draw(jax.random.key(0), tiny_params())).held is None


def test_a_switching_cost_is_not_written_on_file(tmp_path, problems):
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
