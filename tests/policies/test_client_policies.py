import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.random_problems import pick, plain_problems, random_problems, with_ends

from collapipe_jax.cost.client_round import client_memory_bytes
from collapipe_jax.cost.evaluate import evaluate
from collapipe_jax.cost.feasibility import violations
from collapipe_jax.policies.client_policies import split_batch, splitfed, vanilla_fl

split = jax.jit(split_batch)


@given(st.integers(1, 40), st.lists(st.booleans(), min_size=5, max_size=5))
def test_a_batch_is_split_evenly_over_who_is_there(batch, available):
    row = np.asarray(split(batch, jnp.array([available])))[0]
    there = np.array(available)
    assert np.all(row[~there] == 0)
    assert row.sum() == (batch if there.any() else 0)
    held = row[there]
    assert not there.any() or held.max() - held.min() <= 1
    assert np.all(np.diff(held) <= 0)  # the first get the remainder


@pytest.mark.parametrize("policy", [vanilla_fl, splitfed])
def test_nothing_is_violated_where_memory_abounds(policy):
    problems = plain_problems(8, 3, 4, 6)
    for index in range(8):
        problem = with_ends(pick(problems, index))
        decision = policy(problem)
        broken = violations(problem, decision)
        assert not any(bool(value) for value in broken.values()), broken
        assert float(jnp.sum(decision.d2e_share)) == pytest.approx(1.0)
        assert int(decision.client_blocks) == (6 if decision.whole_model else 3)


def test_vanilla_fl_ignores_memory_and_is_reported_so():
    problem = with_ends(pick(random_problems(1, 2, 3, 4), 0))
    small = problem.replace(compute=problem.compute.replace(memory_bytes=jnp.ones((2, 3))))
    broken = violations(small, vanilla_fl(small))
    assert [name for name, value in broken.items() if value] == ["memory"]


@pytest.mark.parametrize("room_for", [0, 1, 2])
def test_splitfed_takes_as_many_blocks_as_fit_the_smallest_device(room_for):
    problem = with_ends(pick(plain_problems(1, 2, 3, 6), 0))
    held = splitfed(problem).replace(client_blocks=jnp.int32(room_for))
    needed = client_memory_bytes(problem.workload, held)[1, 2]
    memory = problem.compute.memory_bytes.at[1, 2].set(needed)
    tight = problem.replace(compute=problem.compute.replace(memory_bytes=memory))
    decision = splitfed(tight)
    assert int(decision.client_blocks) == room_for
    assert not violations(tight, decision)["memory"]


def test_the_fewest_samples_leave_devices_out():
    problem = with_ends(pick(plain_problems(1, 2, 3, 4), 0))
    problem = problem.replace(workload=problem.workload.replace(batch=jnp.int32(2)))
    decision = vanilla_fl(problem)
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


def test_one_compilation_for_all_networks_of_a_shape():
    compiled = jax.jit(lambda problem: evaluate(problem, splitfed(problem)).latency_s)
    problems = random_problems(6, 2, 3, 4)
    for index in range(6):
        compiled(with_ends(pick(problems, index)))
    assert compiled._cache_size() == 1
