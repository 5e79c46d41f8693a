"""Idle energy: power times latency at every node that is there, and its cost in (P2)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compiled import decide, evaluate, static_pipeline, violations
from support.random_problems import pick, plain_problems, with_ends

CLUSTERS, DEVICES, BLOCKS = 2, 3, 5


@pytest.fixture(scope="module")
def problem():
    """One network; the last device of the first cluster is away."""
    plain = with_ends(pick(plain_problems(1, CLUSTERS, DEVICES, BLOCKS), 0))
    memory_bytes = plain.compute.memory_bytes.at[0, -1].set(0.0)
    return plain.replace(compute=plain.compute.replace(memory_bytes=memory_bytes))


def with_idle(problem, power_w):
    power_w = jnp.asarray(power_w, jnp.float32)
    return problem.replace(compute=problem.compute.replace(idle_power_w=power_w))


@pytest.mark.parametrize("name", ["static_pipeline", "vanilla_fl", "splitfed", "hierarchical_fl"])
def test_every_available_node_draws_idle_power_for_the_round(problem, name):
    decision = decide(name, problem, shares="equal", split="even")
    plain = evaluate(problem, decision)
    idle = evaluate(with_idle(problem, 0.4), decision)
    more_j = np.full((CLUSTERS, DEVICES + 1), 0.4 * float(plain.latency_s))
    more_j[0, -1] = 0.0
    np.testing.assert_allclose(idle.energy_j - plain.energy_j, more_j, rtol=1e-4)
    control = problem.control
    drift = float(np.sum(control.energy_queue / control.energy_budget_j * more_j))
    assert float(idle.objective - plain.objective) == pytest.approx(drift, rel=1e-3)
    assert float(idle.latency_s) == float(plain.latency_s)


@pytest.mark.parametrize("power_w", [0.0, 0.4])
def test_a_broken_round_has_no_number_that_is_none(problem, power_w):
    decision = static_pipeline(problem, 3)
    decision = decision.replace(d2e_power_w=decision.d2e_power_w.at[1].set(0.0))
    cost = evaluate(with_idle(problem, power_w), decision)
    assert not np.isnan(cost.energy_j).any()
    assert np.isinf(cost.energy_j[1]).all()
    assert np.isinf(cost.energy_j[0, :-1]).all() == (power_w > 0)
    assert np.isfinite(cost.energy_j[0, -1])  # away
    assert np.isinf(cost.objective)


@pytest.mark.slow
def test_dssra_hurries_where_idle_nodes_are_expensive(problem):
    queue = 10.0 * problem.control.energy_queue
    problem = problem.replace(control=problem.control.replace(energy_queue=queue))
    decided = {power_w: decide("dssra", with_idle(problem, power_w)) for power_w in (0.0, 5.0)}
    cost = {power_w: evaluate(with_idle(problem, 5.0), own) for power_w, own in decided.items()}
    assert float(cost[5.0].latency_s) < 0.99 * float(cost[0.0].latency_s)
    assert float(cost[5.0].objective) < float(cost[0.0].objective)


@pytest.mark.slow
def test_greedy_keeps_caps_with_idle_energy(problem):
    control = problem.control
    reference_s = evaluate(problem, static_pipeline(problem, 3)).latency_s
    problem = with_idle(problem, 0.4).replace(
        control=control.replace(
            reference_latency_s=reference_s,
            energy_budget_j=3.0 * control.energy_budget_j + 0.4 * reference_s,
        )
    )
    decision = decide("greedy", problem)
    cost = evaluate(problem, decision)
    assert not any(jax.tree.leaves(violations(problem, decision)))
    assert float(cost.latency_s) <= float(reference_s)
    assert np.all(cost.energy_j <= 1.002 * problem.control.energy_budget_j)
