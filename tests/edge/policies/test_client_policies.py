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
    selected_fl,
    splitfed,
    vanilla_fl,
    violations,
)
from support.random_problems import pick, plain_problems, random_problems, with_ends

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.client_round import client_memory_bytes
from collapipe_jax.edge.policies.client_shares import even_parts, min_max_parts

split = jax.jit(even_parts)
unpipelined = functools.partial(splitfed, client_micro_batches=1)


@given(st.integers(1, 40), st.lists(st.booleans(), min_size=5, max_size=5))
def test_a_batch_is_split_evenly_over_who_is_there(batch, available):
    row = np.asarray(split(batch, jnp.array([available])))[0]
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
            for own in (vanilla_fl, control_unit_fl, splitfed)
        ),
        hierarchical_fl,
    ],
)
def test_nothing_is_violated_where_memory_abounds(policy):
    problems = plain_problems(8, 3, 4, 6)
    for index in range(8):
        problem = with_ends(pick(problems, index))
        decision = policy(problem)
        broken = violations(problem, decision)
        assert not any(bool(value) for value in broken.values()), broken
        assert float(jnp.sum(decision.d2e_share)) <= 1.0 + 1e-6
        assert int(decision.client_blocks) == (6 if decision.whole_model else 3)


def test_vanilla_fl_ignores_memory_and_is_reported_so():
    problem = with_ends(pick(random_problems(1, 2, 3, 4), 0))
    small = problem.replace(compute=problem.compute.replace(memory_bytes=jnp.ones((2, 3))))
    broken = violations(small, vanilla_fl(small))
    assert [name for name, value in broken.items() if value] == ["memory"]


@pytest.mark.parametrize("room_for", [0, 1, 2])
def test_splitfed_takes_as_many_blocks_as_fit_the_smallest_device(room_for):
    problem = with_ends(pick(plain_problems(1, 2, 3, 6), 0))
    held = unpipelined(problem).replace(client_blocks=jnp.int32(room_for))
    needed = client_memory_bytes(problem.workload, held)[1, 2]
    memory = problem.compute.memory_bytes.at[1, 2].set(needed)
    tight = problem.replace(compute=problem.compute.replace(memory_bytes=memory))
    decision = unpipelined(tight)
    assert int(decision.client_blocks) == room_for
    assert not violations(tight, decision)["memory"]


def test_the_fewest_samples_leave_devices_out():
    problem = with_ends(pick(plain_problems(1, 2, 3, 4), 0))
    problem = problem.replace(workload=problem.workload.replace(batch=jnp.int32(2)))
    decision = vanilla_fl(problem, shares="equal", split="even")
    assert decision.samples.tolist() == [[1, 1, 0], [1, 1, 0]]
    np.testing.assert_allclose(decision.d2e_share[:, :2], 0.25)
    assert np.all(decision.d2e_share[:, 2] == 0)
    assert np.all(decision.d2e_power_w[:, 2] == 0)
    assert np.all(np.isfinite(evaluate(problem, decision).energy_j))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda d: d.replace(samples=d.samples.at[0, 0].add(1)), "samples"),
        (lambda d: d.replace(d2e_share=2.0 * d.d2e_share), "d2e_share"),
        (lambda d: d.replace(d2e_power_w=2.0 * d.d2e_power_w), "d2e_power"),
    ],
)
def test_each_violation_is_reported_by_its_name(change, name):
    problem = with_ends(pick(plain_problems(1, 2, 3, 4), 0))
    broken = violations(problem, change(vanilla_fl(problem)))
    assert [key for key, value in broken.items() if value] == [name]


@pytest.mark.parametrize("policy", [vanilla_fl, control_unit_fl])
def test_the_best_pieces_are_the_fewest_that_fit(policy):
    problem = with_ends(pick(plain_problems(1, 2, 3, 4), 0))
    whole = client_memory_bytes(problem.workload, policy(problem, split="even"))
    single = policy(problem, split="even", accumulation=int(problem.workload.batch))
    least = client_memory_bytes(problem.workload, single)
    room = jnp.max(0.6 * least + 0.4 * whole)
    compute = problem.compute.replace(
        memory_bytes=jnp.full((2, 3), room), control_unit_memory_bytes=jnp.full(2, room)
    )
    tight = problem.replace(compute=compute)
    decision = policy(tight, split="even")
    assert not violations(tight, decision)["memory"]
    pieces = np.asarray(decision.accumulation)
    assert pieces.max() > 1
    for fewer in np.unique(pieces[pieces > 1]) - 1:
        held = client_memory_bytes(
            tight.workload, decision.replace(accumulation=jnp.asarray(int(fewer)))
        )
        assert np.all(np.asarray(held)[pieces == fewer + 1] > room)


def test_the_best_parts_are_those_of_all_splits():
    """Of a batch of 7 over 3 clients every split, with times that grow by steps."""
    rng = np.random.default_rng(3)
    splits = np.array([s for s in np.ndindex(8, 8, 8) if sum(s) == 7])
    for _ in range(20):
        start_s, sample_s = rng.uniform(0, 3, (1, 3)), rng.uniform(0.1, 3, (1, 3))

        def latency_s(parts, start_s=start_s, sample_s=sample_s):
            return jnp.where(parts > 0, start_s + sample_s * parts + 0.3 * jnp.sqrt(parts), 0.0)

        parts = min_max_parts(latency_s, jnp.asarray(7), jnp.ones((1, 3), bool))
        assert int(parts.sum()) == 7
        best = min(float(latency_s(jnp.asarray(s[None])).max()) for s in splits)
        np.testing.assert_allclose(latency_s(parts).max(), best, rtol=1e-5)


def test_equal_clients_get_even_parts_and_nobody_is_slower_for_it():
    everybody = jnp.ones((1, 3), bool)
    for batch in (1, 2, 7, 100_000):
        alike = min_max_parts(lambda parts: 1.0 + parts, jnp.asarray(batch), everybody)
        np.testing.assert_array_equal(alike, even_parts(batch, everybody))
    problems = plain_problems(4, 2, 3, 4)
    for index in range(4):
        problem = with_ends(pick(problems, index))
        for policy in (vanilla_fl, hierarchical_fl, unpipelined):
            even, best = (policy(problem, split=split) for split in ("even", "min_max"))
            assert int(best.samples.sum()) == int(even.samples.sum())
            slower = evaluate(problem, best).latency_s / evaluate(problem, even).latency_s
            assert slower <= 1.0001


def test_selected_clients_keep_limits_where_they_can_and_all_are_everybody():
    problem = with_ends(pick(plain_problems(1, 2, 3, 4), 0))
    everybody, all_three = vanilla_fl(problem), selected_fl(problem, clients="3")
    for one, other in zip(jax.tree.leaves(everybody), jax.tree.leaves(all_three), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    by_number = [selected_fl(problem, clients=str(number)) for number in (1, 2, 3)]
    for number, decision in enumerate(by_number, 1):
        assert np.all(np.sum(decision.samples > 0, axis=1) <= number)
    # Without budgets the fastest number is taken.
    rich = problem.control.replace(energy_budget_j=jnp.full((2, 4), 1e9))
    rich = problem.replace(control=rich)
    found = float(evaluate(rich, selected_fl(rich)).latency_s)
    each = [float(evaluate(rich, selected_fl(rich, clients=str(n))).latency_s) for n in (1, 2, 3)]
    assert found == pytest.approx(min(each), rel=1e-5)
    # A device without room for the model is left out as long as another has some.
    memory = problem.compute.memory_bytes.at[:, 0].set(1.0)
    small = rich.replace(compute=problem.compute.replace(memory_bytes=memory))
    decision = selected_fl(small)
    assert np.all(decision.samples[:, 0] == 0)
    assert not violations(small, decision)["memory"]


@pytest.mark.parametrize(
    ("key", "value"), [("accumulation", "some"), ("clients", "4"), ("split", "odd")]
)
def test_a_wrong_rule_of_clients_is_an_error(key, value):
    problem = with_ends(pick(plain_problems(1, 2, 3, 4), 0))
    with pytest.raises(InputError, match=rf"policy\.{key}"):
        selected_fl(problem, **{key: value})


def test_one_compilation_for_all_networks_of_a_shape():
    compiled = jax.jit(lambda problem: evaluate(problem, splitfed(problem)).latency_s)
    problems = random_problems(6, 2, 3, 4)
    with compiles(compiled, 1):
        for index in range(6):
            compiled(with_ends(pick(problems, index)))


def test_a_cut_of_half_is_the_default_and_memory_clips_a_cut():
    problem = with_ends(pick(plain_problems(1, 2, 3, 6), 0))
    half, number = unpipelined(problem), unpipelined(problem, cut="3")
    for one, other in zip(jax.tree.leaves(half), jax.tree.leaves(number), strict=True):
        np.testing.assert_array_equal(one, other)
    memory = problem.compute.memory_bytes.at[0, 0].set(1.0)
    tight = problem.replace(compute=problem.compute.replace(memory_bytes=memory))
    assert int(unpipelined(tight, cut="5").client_blocks) == 0
    assert int(unpipelined(problem, cut="6").client_blocks) == 6


@pytest.mark.parametrize("shares", ["equal", pytest.param("min_max", marks=pytest.mark.slow)])
def test_the_best_cut_is_the_fastest_of_all(shares):
    problems = plain_problems(4, 2, 3, 4)
    for index in range(4):
        problem = with_ends(pick(problems, index))
        cuts = [unpipelined(problem, str(cut), shares=shares) for cut in range(5)]
        latencies_s = [float(evaluate(problem, decision).latency_s) for decision in cuts]
        best = unpipelined(problem, "best", shares=shares)
        assert float(evaluate(problem, best).latency_s) == pytest.approx(min(latencies_s), rel=1e-5)


@pytest.mark.parametrize("cut", ["7", "-1", "two", ""])
def test_a_wrong_cut_is_an_error(cut):
    problem = with_ends(pick(plain_problems(1, 2, 3, 6), 0))
    with pytest.raises(InputError, match=r"policy\.cut"):
        splitfed(problem, cut=cut)


@pytest.mark.parametrize("policy", [vanilla_fl, control_unit_fl, hierarchical_fl])
def test_accumulation_saves_the_activations_of_all_pieces_but_one(policy):
    problem = with_ends(pick(plain_problems(1, 2, 3, 4), 0))
    work = problem.workload
    decisions = [policy(problem, split="even", accumulation=pieces) for pieces in (1, 2)]
    costs = [evaluate(problem, decision) for decision in decisions]
    samples = decisions[0].samples.max(axis=1)
    held = [
        (
            cost.memory_bytes
            if cost.control_unit_memory_bytes is None
            else cost.control_unit_memory_bytes[:, None]
        ).max(axis=1)
        for cost in costs
    ]
    saved = (samples - -(-samples // 2)) * (
        work.blocks * work.block_kept_bytes + work.block_working_bytes
    )
    np.testing.assert_allclose(held[0] - held[1], saved, rtol=1e-3)
    assert costs[1].compute_latency_s > costs[0].compute_latency_s
    np.testing.assert_allclose(costs[0].divergence, costs[1].divergence)


def test_memory_of_control_units_is_checked_where_it_is_known():
    problem = with_ends(pick(random_problems(1, 2, 3, 4), 0))
    decision = control_unit_fl(problem)
    assert not violations(problem, decision)["memory"]  # none on file, no limit
    needed = evaluate(problem, decision).control_unit_memory_bytes
    for factor, is_broken in ((1.0, False), (0.9, True)):
        compute = problem.compute.replace(control_unit_memory_bytes=factor * needed)
        assert bool(violations(problem.replace(compute=compute), decision)["memory"]) == is_broken
