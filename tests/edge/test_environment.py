"""Rounds under vmap and scan against plain loops, and queues against (20)."""

import functools

import jax
import numpy as np
import pytest
from support.compilations import compiles
from support.compiled import control_unit_floor_j
from support.tiny_system import tiny_params

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.environment import (
    Environment,
    initial_state,
    observe,
    observed_problems,
    reset,
    simulate,
    step,
)
from collapipe_jax.edge.policies.registry import OfflinePolicy, make_policy
from collapipe_jax.edge.system import sample_system

ROUNDS, REALISATIONS = 9, 5
policy = make_policy("static_pipeline", 4)
started, problem_of = jax.jit(reset), jax.jit(observe)
carry_out, decide = jax.jit(step), jax.jit(policy)


def drawn(**dynamics):
    """A system, and its state before the first round."""
    environment = started(jax.random.key(0), tiny_params(**dynamics))
    return environment.system, environment.state


def one_round(key, system, state):
    """A round by the programs of :func:`step` and all that it needs."""
    environment = Environment(system, state, key)
    decision = decide(key, problem_of(environment))
    environment, happened = carry_out(key, environment, decision)
    return environment.state, happened


@jax.jit
def run(keys, params):
    return jax.vmap(lambda key: simulate(reset(key, params), policy, ROUNDS))(keys)


def keys(seed=0):
    return jax.random.split(jax.random.key(seed), REALISATIONS)


@pytest.fixture(scope="module")
def history():
    return run(keys(), tiny_params())


def with_queue_params(system, **params):
    changed = {name: jax.device_put(value) for name, value in params.items()}
    return system.replace(queue_params=system.queue_params.replace(**changed))


@pytest.mark.slow
def test_equal_to_loops_over_keys_and_rounds(history):
    params = tiny_params()
    draw, start_of = jax.jit(sample_system), jax.jit(initial_state)
    for index, key in enumerate(keys()):
        system_key, state_key, rounds_key = jax.random.split(key, 3)
        system = draw(system_key, params)
        state = start_of(state_key, system)
        for t, round_key in enumerate(jax.random.split(rounds_key, ROUNDS)):
            state, happened = one_round(round_key, system, state)
            jax.tree.map(
                lambda one, all_of_them, index=index, t=t: np.testing.assert_allclose(
                    one, all_of_them[index, t], rtol=2e-4, atol=1e-6
                ),
                happened,
                history,
            )


def test_queues_follow_their_recursion(history):
    """Mean E <= budget (1 + (q_R - q_0) / R) on every node of every path, and (20)."""
    control = tiny_params().control
    energy_j = np.asarray(history.cost.energy_j, float)
    budget_j = np.full(energy_j.shape[2:], float(control.device_budget_j))
    budget_j[:, 0] = float(control.control_unit_budget_j)
    queue = np.asarray(history.queues.energy, float)
    before = np.concatenate([np.zeros_like(queue[:, :1]), queue[:, :-1]], axis=1)
    expected = np.maximum(before + energy_j / budget_j - 1, 0)
    np.testing.assert_allclose(queue, expected, rtol=1e-5, atol=1e-5)
    assert np.all(energy_j.mean(1) <= budget_j * (1 + queue[:, -1] / ROUNDS) * (1 + 1e-5))
    assert np.any(queue[:, -1] > 0)


def test_realisations_and_rounds_differ(history):
    latency_s = np.asarray(history.cost.latency_s)
    assert np.unique(latency_s).size == latency_s.size


def test_one_compilation_for_other_parameters(history):
    with compiles(run, 0):
        run(keys(3), tiny_params(availability=0.5, fading_correlation=0.9))


def test_nobody_there_spends_nothing():
    happened = run(keys(), tiny_params(availability=0.0))
    assert np.all(happened.cost.absent)
    for value in (happened.decision.segments, happened.cost.energy_j, happened.queues.energy):
        assert not np.any(value)
    for value in (happened.cost.latency_s, happened.cost.divergence, happened.cost.objective):
        assert not np.any(value)


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, None, None))
def memory_of_round(key, system, state):
    return problem_of(Environment(system, state, key)).compute.memory_bytes


@pytest.mark.parametrize("share", [0.0, 0.8, 1.0])
def test_every_device_is_available_in_this_share_of_rounds_whatever_the_others_are(share):
    system, state = drawn(availability=share)
    memory = np.asarray(memory_of_round(jax.random.split(jax.random.key(2), 4000), system, state))
    available = memory > 0
    np.testing.assert_allclose(available.mean(axis=0), share, atol=0 if share in (0, 1) else 0.025)
    whole = np.broadcast_to(system.mean_problem.compute.memory_bytes, memory.shape)
    np.testing.assert_array_equal(memory[available], whole[available])
    apart = available.reshape(4000, -1) - share
    covariance = apart.T @ apart / 4000
    expected = share * (1 - share) * np.eye(len(covariance))
    np.testing.assert_allclose(covariance, expected, atol=0.02)


def test_some_there():
    """With one device of three, memory still suffices; with none the cluster is away."""
    happened = run(keys(), tiny_params(availability=0.3))
    absent = np.asarray(happened.cost.absent)
    assert 0.05 < absent.mean() < 0.8
    spent = np.asarray(happened.cost.energy_j).sum(-1)
    np.testing.assert_array_equal(spent == 0, absent)


ONCE = OfflinePolicy(functools.partial(policy, None))


@jax.jit
def decided_once(key, params):
    """What is decided at mean gains, memory in every round, and decisions of all rounds."""
    start = reset(key, params)
    wanted = policy(key, start.system.mean_problem)
    problems = observed_problems(start, ONCE, ROUNDS)
    return wanted, problems.compute.memory_bytes, simulate(start, ONCE, ROUNDS).decision


@pytest.mark.parametrize("share", [0.7, 1.0])
def test_an_offline_policy_decides_once_and_clusters_that_need_an_absent_device_sit_out(share):
    wanted, memory_bytes, decision = jax.device_get(
        decided_once(jax.random.key(0), tiny_params(availability=share))
    )
    runs = ~np.any((wanted.segments > 0) & (memory_bytes == 0), axis=2)
    assert runs.all() == (share == 1.0)
    segments = np.where(runs[..., None], wanted.segments, 0)
    np.testing.assert_array_equal(decision.segments, segments)
    everyone = runs.all(axis=1)
    for one, all_of_them in zip(*map(jax.tree.leaves, (wanted, decision)), strict=True):
        for own in all_of_them[everyone]:
            np.testing.assert_allclose(own, one, rtol=1e-6)


def test_a_frozen_channel_repeats_its_rounds():
    happened = run(keys(), tiny_params(fading_correlation=1.0))
    latency_s = np.asarray(happened.cost.latency_s)
    np.testing.assert_allclose(latency_s, np.broadcast_to(latency_s[:, :1], latency_s.shape), 1e-5)
    assert np.unique(latency_s[:, 0]).size == REALISATIONS


def test_the_queue_floor_is_the_least_effective_queue_of_divergence_and_leaves_the_queue_alone():
    system, state = drawn()
    system = with_queue_params(system, divergence_queue_floor=2.5)
    for queue, seen in [(0.0, 2.5), (2.0, 2.5), (4.0, 4.0)]:
        with_backlog = state._replace(queues=state.queues._replace(divergence=np.float32(queue)))
        problem = problem_of(Environment(system, with_backlog, jax.random.key(2)))
        assert float(problem.control.divergence_queue) == seen
        after, happened = one_round(jax.random.key(2), system, with_backlog)
        target = float(problem.control.divergence_target)
        grown = queue + float(happened.cost.divergence) / target - 1
        assert float(after.queues.divergence) == pytest.approx(max(grown, 0), abs=1e-5)


def test_the_queue_floor_of_energy_holds_at_every_node_and_leaves_queues_alone():
    system, state = drawn()
    system = with_queue_params(system, energy_queue_floor=0.5)
    queue = np.zeros(state.queues.energy.shape, np.float32)
    queue[0, 1], queue[1, 2] = 0.2, 3.0
    with_backlog = state._replace(queues=state.queues._replace(energy=queue))
    problem = problem_of(Environment(system, with_backlog, jax.random.key(2)))
    seen = np.full(queue.shape, 0.5)
    seen[1, 2] = 3.0
    np.testing.assert_array_equal(problem.control.energy_queue, seen)
    after, happened = one_round(jax.random.key(2), system, with_backlog)
    budget_j = np.asarray(problem.control.energy_budget_j)
    grown = queue + np.asarray(happened.cost.energy_j) / budget_j - 1
    np.testing.assert_allclose(after.queues.energy, np.maximum(grown, 0), atol=1e-5)


def test_a_fade_that_no_decision_can_afford_counts_in_its_own_round():
    system, state = drawn()
    system = with_queue_params(
        system,
        energy_queue_floor=0.0,
        unavoidable_arrival_weight=0.5,
    )
    mean = system.mean_problem
    gain = np.asarray(mean.radio.d2e_gain) * np.float32([[1e-4], [1.0]])
    faded = mean.radio.replace(d2e_gain=gain)
    system = system.replace(mean_problem=mean.replace(radio=faded))
    state = state._replace(queues=state.queues._replace(energy=np.full((2, 4), 0.3, np.float32)))
    problem = problem_of(Environment(system, state, jax.random.key(2)))
    floor = control_unit_floor_j(problem) / np.asarray(problem.control.energy_budget_j)[:, 0]
    assert floor[0] > 2 > 1 > floor[1]
    seen = np.full((2, 4), np.float32(0.3))
    seen[0, 0] += (floor[0] - 1) / 2
    np.testing.assert_allclose(problem.control.energy_queue, seen, rtol=1e-6)
    _, happened = one_round(jax.random.key(2), system, state)
    np.testing.assert_array_equal(happened.effective_queues.energy, problem.control.energy_queue)
    assert float(happened.queues.energy[0, 0]) >= 0.3 + floor[0] - 1  # whatever was decided


def test_this_rounds_gains_are_mean_gains_times_fading():
    system, state = drawn()
    problem = problem_of(Environment(system, state, jax.random.key(2)))
    radio, mean = problem.radio, system.mean_problem.radio
    ratio = np.asarray(radio.cross_gain) / np.asarray(mean.cross_gain)
    np.testing.assert_allclose(ratio, ratio.transpose(2, 3, 0, 1), rtol=1e-5)
    own = np.asarray(radio.d2d_gain) / np.asarray(mean.d2d_gain)
    for n in range(2):
        np.testing.assert_allclose(own[n], ratio[n, :, n, :], rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda start: reset(start.key, "quickstart"), "params"),
        (lambda start: simulate(start.system, policy, 1), "environment"),
        (lambda start: simulate(start, "static_pipeline", 1), "policy"),
        (lambda start: simulate(start, policy, -1), "rounds"),
        (lambda start: simulate(start, policy, 1.0), "rounds"),
    ],
)
def test_a_wrong_argument_is_named(call, key):
    start = jax.eval_shape(reset, jax.random.key(0), tiny_params())
    with pytest.raises(InputError) as caught:
        call(start)
    assert caught.value.key == key


def test_reset_observe_and_step_are_the_rounds_of_simulate():
    """A loop of one's own, with one's own keys, meets what ``simulate`` does with these keys."""
    params = tiny_params(availability=0.6)
    expected = jax.tree.map(lambda leaf: np.asarray(leaf)[0], run(keys(7), params))
    start = started(keys(7)[0], params)
    round_keys = jax.random.split(start.key, ROUNDS)
    environment = start._replace(key=round_keys[0])
    for index, following in enumerate(round_keys[1:5]):
        decision = decide(jax.random.key(0), problem_of(environment))
        environment, record = carry_out(following, environment, decision)
        for name in ("energy_j", "latency_s"):
            wanted = getattr(expected.cost, name)[index]
            np.testing.assert_allclose(getattr(record.cost, name), wanted, rtol=1e-5)
        for name, queue in environment.state.queues._asdict().items():
            wanted = getattr(expected.queues, name)[index]
            np.testing.assert_allclose(queue, wanted, rtol=1e-4, atol=1e-5)
