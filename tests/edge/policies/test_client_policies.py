import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.compilations import compiles
from support.compiled import (
    control_unit_fl,
    evaluate,
    hierarchical_fl,
    in_numpy,
    selected_fl,
    splitfed,
    vanilla_fl,
    violations,
)
from support.random_problems import pick, plain_problems, random_problems, with_ends

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost import client_round
from collapipe_jax.edge.policies import client_policies
from collapipe_jax.edge.policies.client_shares import even_parts, min_max_parts

split = in_numpy(even_parts)
client_memory_bytes = in_numpy(client_round.client_memory_bytes)
unpipelined = functools.partial(splitfed, client_micro_batches=1)
EQUAL = {"shares": "equal", "split": "even"}
"""Options with which a policy compiles in a moment."""


@pytest.fixture(scope="module")
def problems():
    """Networks with room for everything; all tests have their shape, and share programs."""
    stacked = plain_problems(8, 2, 3, 4)
    return [with_ends(pick(stacked, index)) for index in range(8)]


@pytest.fixture(scope="module")
def problem(problems):
    return problems[0]


def with_memory(problem, memory_bytes):
    """The problem with other memory of devices."""
    memory_bytes = np.asarray(memory_bytes, np.float32)
    return problem.replace(compute=problem.compute.replace(memory_bytes=memory_bytes))


@given(st.integers(1, 40), st.lists(st.booleans(), min_size=5, max_size=5))
def test_a_batch_is_split_evenly_over_who_is_there(batch, available):
    row = split(batch, np.array([available]))[0]
    there = np.array(available)
    assert np.all(row[~there] == 0)
    assert row.sum() == (batch if there.any() else 0)
    held = row[there]
    assert not there.any() or held.max() - held.min() <= 1
    assert np.all(np.diff(held) <= 0)  # the first get the remainder


@pytest.mark.parametrize(
    "policy",
    [
        *(
            pytest.param(own, marks=pytest.mark.slow)
            for own in (hierarchical_fl, control_unit_fl, splitfed)
        ),
        vanilla_fl,
    ],
)
def test_nothing_is_violated_where_memory_abounds(problems, policy):
    for problem in problems:
        decision = policy(problem)
        broken = violations(problem, decision)
        assert not any(bool(value) for value in broken.values()), broken
        assert np.asarray(decision.d2e_share).sum() <= 1.0 + 1e-6
        assert int(decision.client_blocks) == (4 if decision.whole_model else 2)


def test_vanilla_fl_ignores_memory_and_is_reported_so(problem):
    small = with_memory(problem, np.ones((2, 3)))
    broken = violations(small, vanilla_fl(small))
    assert [name for name, value in broken.items() if value] == ["memory"]


@pytest.mark.parametrize("room_for", [0, 1])
def test_splitfed_takes_as_many_blocks_as_fit_the_smallest_device(problem, room_for):
    held = unpipelined(problem, shares="equal").replace(client_blocks=np.int32(room_for))
    memory = np.array(problem.compute.memory_bytes)
    memory[1, 2] = client_memory_bytes(problem.workload, held)[1, 2]
    tight = with_memory(problem, memory)
    decision = unpipelined(tight, shares="equal")
    assert int(decision.client_blocks) == room_for
    assert not violations(tight, decision)["memory"]


def test_the_fewest_samples_leave_devices_out(problem):
    problem = problem.replace(workload=problem.workload.replace(batch=np.int32(2)))
    decision = jax.device_get(vanilla_fl(problem, **EQUAL))
    assert decision.samples.tolist() == [[1, 1, 0], [1, 1, 0]]
    np.testing.assert_allclose(decision.d2e_share[:, :2], 0.25)
    assert np.all(decision.d2e_share[:, 2] == 0)
    assert np.all(decision.d2e_power_w[:, 2] == 0)
    assert np.all(np.isfinite(evaluate(problem, decision).energy_j))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda d: d.replace(samples=d.samples + np.eye(2, 3, dtype=np.int32)), "samples"),
        (lambda d: d.replace(d2e_share=2 * d.d2e_share), "d2e_share"),
        (lambda d: d.replace(d2e_power_w=2 * d.d2e_power_w), "d2e_power"),
    ],
)
def test_each_violation_is_reported_by_its_name(problem, change, name):
    broken = violations(problem, change(jax.device_get(vanilla_fl(problem))))
    assert [key for key, value in broken.items() if value] == [name]


@pytest.mark.parametrize(
    "policy", [vanilla_fl, pytest.param(control_unit_fl, marks=pytest.mark.slow)]
)
def test_the_best_pieces_are_the_fewest_that_fit(problem, policy):
    whole = client_memory_bytes(problem.workload, policy(problem, **EQUAL))
    single = policy(problem, accumulation=int(problem.workload.batch), **EQUAL)
    least = client_memory_bytes(problem.workload, single)
    room = np.max(0.6 * least + 0.4 * whole)
    compute = problem.compute.replace(
        memory_bytes=np.full((2, 3), room), control_unit_memory_bytes=np.full(2, room)
    )
    tight = problem.replace(compute=compute)
    decision = jax.device_get(policy(tight, **EQUAL))
    assert not violations(tight, decision)["memory"]
    pieces = decision.accumulation
    assert pieces.max() > 1
    for fewer in np.unique(pieces[pieces > 1]) - 1:
        held = decision.replace(accumulation=np.full_like(pieces, fewer))
        needed = client_memory_bytes(tight.workload, held)
        assert np.all(needed[pieces == fewer + 1] > room)


def test_the_best_parts_are_those_of_all_splits():
    """Of a batch of 7 over 3 clients every split, with times that grow by steps."""
    rng = np.random.default_rng(3)
    start_s, sample_s = rng.uniform(0, 3, (20, 1, 3)), rng.uniform(0.1, 3, (20, 1, 3))

    @jax.jit
    @jax.vmap
    def fastest(start_s, sample_s):
        def latency_s(parts):
            return jnp.where(parts > 0, start_s + sample_s * parts + 0.3 * jnp.sqrt(parts), 0.0)

        parts = min_max_parts(latency_s, jnp.asarray(7), jnp.ones((1, 3), bool))
        return parts, latency_s(parts)

    parts, ours_s = jax.device_get(fastest(start_s, sample_s))
    assert np.all(parts.sum(axis=(1, 2)) == 7)
    splits = np.array([s for s in np.ndindex(8, 8, 8) if sum(s) == 7])
    every_s = np.where(splits > 0, start_s + sample_s * splits + 0.3 * np.sqrt(splits), 0.0)
    np.testing.assert_allclose(ours_s.max((1, 2)), every_s.max(2).min(1), rtol=1e-5)


def test_equal_clients_get_even_parts():
    @jax.jit
    @jax.vmap
    def both(batch):
        everybody = jnp.ones((1, 3), bool)
        alike = min_max_parts(lambda parts: 1.0 + parts, batch, everybody)
        return alike, even_parts(batch, everybody)

    np.testing.assert_array_equal(*both(np.array([1, 2, 7, 100_000])))


@pytest.mark.parametrize(
    "policy",
    [
        vanilla_fl,
        *(
            pytest.param(policy, marks=pytest.mark.slow)
            for policy in (hierarchical_fl, unpipelined)
        ),
    ],
)
def test_nobody_is_slower_for_the_best_parts(problems, policy):
    for problem in problems[:4]:
        even, best = policy(problem, **EQUAL), policy(problem, shares="equal")
        assert np.asarray(best.samples).sum() == np.asarray(even.samples).sum()
        slower = evaluate(problem, best).latency_s / evaluate(problem, even).latency_s
        assert slower <= 1.0001


@pytest.mark.parametrize("options", [EQUAL, pytest.param({}, marks=pytest.mark.slow)])
def test_selected_clients_keep_limits_where_they_can_and_all_are_everybody(problem, options):
    def selected(problem, number="best"):
        return jax.device_get(selected_fl(problem, clients=number, **options))

    everybody, all_three = vanilla_fl(problem, **options), selected(problem, "3")
    for one, other in zip(jax.tree.leaves(everybody), jax.tree.leaves(all_three), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    for number in "123":
        samples = selected(problem, number).samples
        assert np.all(np.sum(samples > 0, axis=1) <= int(number))
    # Without budgets the fastest number is taken.
    budget_j = np.full((2, 4), 1e9, np.float32)
    rich = problem.replace(control=problem.control.replace(energy_budget_j=budget_j))
    found = evaluate(rich, selected(rich)).latency_s
    each = [evaluate(rich, selected(rich, number)).latency_s for number in "123"]
    assert found == pytest.approx(min(each), rel=1e-5)
    # A device without room for the model is left out as long as another has some.
    memory = np.array(problem.compute.memory_bytes)
    memory[:, 0] = 1.0
    small = with_memory(rich, memory)
    decision = selected(small)
    assert np.all(decision.samples[:, 0] == 0)
    assert not violations(small, decision)["memory"]


@pytest.mark.parametrize(
    ("key", "value"), [("accumulation", "some"), ("clients", "4"), ("split", "odd")]
)
def test_a_wrong_rule_of_clients_is_an_error(problem, key, value):
    with pytest.raises(InputError, match=rf"policy\.{key}"):
        selected_fl(problem, **{key: value})


def test_one_compilation_for_all_networks_of_a_shape():
    @jax.jit
    def compiled(problem):
        return evaluate(problem, client_policies.splitfed(problem, **EQUAL)).latency_s

    problems = random_problems(6, 2, 3, 4)
    with compiles(compiled, 1):
        for index in range(6):
            compiled(with_ends(pick(problems, index)))


def test_a_cut_of_half_is_the_default_and_memory_clips_a_cut(problem):
    half, number = unpipelined(problem, **EQUAL), unpipelined(problem, cut="2", **EQUAL)
    for one, other in zip(jax.tree.leaves(half), jax.tree.leaves(number), strict=True):
        np.testing.assert_array_equal(one, other)
    memory = np.array(problem.compute.memory_bytes)
    memory[0, 0] = 1.0
    tight = with_memory(problem, memory)
    assert int(unpipelined(tight, cut="3", **EQUAL).client_blocks) == 0
    assert int(unpipelined(problem, cut="4", **EQUAL).client_blocks) == 4


@pytest.mark.parametrize(
    "options",
    [
        EQUAL,
        pytest.param({"shares": "equal"}, marks=pytest.mark.slow),
        pytest.param({}, marks=pytest.mark.slow),
    ],
)
def test_the_best_cut_is_the_fastest_of_all(problems, options):
    for problem in problems[:4]:
        cuts = [unpipelined(problem, cut=str(cut), **options) for cut in range(5)]
        latencies_s = [float(evaluate(problem, decision).latency_s) for decision in cuts]
        best = unpipelined(problem, cut="best", **options)
        assert float(evaluate(problem, best).latency_s) == pytest.approx(min(latencies_s), rel=1e-5)


@pytest.mark.parametrize("cut", ["5", "-1", "two", ""])
def test_a_wrong_cut_is_an_error(problem, cut):
    with pytest.raises(InputError, match=r"policy\.cut"):
        splitfed(problem, cut=cut)


@pytest.mark.parametrize(
    "policy", [vanilla_fl, control_unit_fl, pytest.param(hierarchical_fl, marks=pytest.mark.slow)]
)
def test_accumulation_saves_the_activations_of_all_pieces_but_one(problem, policy):
    work = problem.workload
    decisions = [policy(problem, accumulation=pieces, **EQUAL) for pieces in (1, 2)]
    costs = [evaluate(problem, decision) for decision in decisions]
    samples = np.asarray(decisions[0].samples).max(axis=1)
    held = [
        (
            cost.memory_bytes
            if cost.control_unit_memory_bytes is None
            else cost.control_unit_memory_bytes[:, None]
        ).max(axis=1)
        for cost in costs
    ]
    piece_bytes = work.blocks * float(work.block_kept_bytes) + float(work.block_working_bytes)
    saved = (samples - -(-samples // 2)) * piece_bytes
    np.testing.assert_allclose(held[0] - held[1], saved, rtol=1e-3)
    assert costs[1].compute_latency_s > costs[0].compute_latency_s
    np.testing.assert_allclose(costs[0].divergence, costs[1].divergence)


def test_memory_of_control_units_is_checked_where_it_is_known(problem):
    decision = control_unit_fl(problem, **EQUAL)
    assert not violations(problem, decision)["memory"]  # none on file, no limit
    needed = evaluate(problem, decision).control_unit_memory_bytes
    for factor, is_broken in ((1.0, False), (0.9, True)):
        limit_bytes = np.float32(factor) * needed
        compute = problem.compute.replace(control_unit_memory_bytes=limit_bytes)
        assert bool(violations(problem.replace(compute=compute), decision)["memory"]) == is_broken
