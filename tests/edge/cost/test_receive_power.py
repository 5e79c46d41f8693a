"""Receive power: power times the time on air at every node that receives, and its cost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compiled import (
    control_unit_floor_j,
    decide,
    evaluate,
    is_feasible,
    replica_links,
    static_pipeline,
)
from support.random_problems import pick, plain_problems, with_ends
from support.solver_checks import assert_as_good_as_exhaustive

from collapipe_jax.edge.cost.client_round import client_model_bits
from collapipe_jax.edge.policies.dssra import dssra
from collapipe_jax.edge.solver.allocate import allocate

CLUSTERS, DEVICES, BLOCKS = 2, 3, 5


@pytest.fixture(scope="module")
def problem():
    return with_ends(pick(plain_problems(1, CLUSTERS, DEVICES, BLOCKS), 0))


def with_power(problem, power_w):
    power_w = jnp.asarray(power_w, jnp.float32)
    return problem.replace(compute=problem.compute.replace(receive_power_w=power_w))


def silent(problem):
    return with_power(problem, 0.0)


def test_a_node_receives_while_others_send_to_it(problem):
    """Of one sender with a watt a cluster receives for as long as it sends."""
    decision = static_pipeline(problem, 6)
    problem = problem.replace(radio=problem.radio.replace(amplifier_efficiency=jnp.ones(())))
    power_w = np.asarray(decision.d2d_power_w)
    quiet = evaluate(silent(problem), decision)
    cost = evaluate(with_power(problem, 0.5), decision)
    received_s = (cost.energy_j - quiet.energy_j) / 0.5
    assert cost.latency_s == quiet.latency_s
    steps = float(problem.workload.local_steps) * np.asarray(decision.micro_batches)
    overhead_s = float(problem.compute.link_overhead_s)
    hops_s = cost.flows.forward_s[:, 1 : 2 * DEVICES + 2 : 2].sum(axis=1)
    hops_s += cost.flows.backward_s[:, 1 : 2 * DEVICES + 2 : 2].sum(axis=1)
    down_s = cost.flows.backward_s[:, 0]
    on_air_s = steps * (hops_s + down_s - (2 * DEVICES + 3) * overhead_s)
    parts = cost.parts
    expected_s = on_air_s + parts.distribute_s + parts.collect_s + parts.download_s
    np.testing.assert_allclose(received_s.sum(axis=1), expected_s, rtol=1e-4)
    assert np.all(received_s > 0)
    assert np.all(power_w > 0)
    control = problem.control
    drift = np.sum(control.energy_queue / control.energy_budget_j * 0.5 * received_s)
    assert float(cost.objective - quiet.objective) == pytest.approx(float(drift), rel=1e-3)


@pytest.mark.parametrize("broadcast", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["vanilla_fl", "splitfed", "control_unit_fl", "hierarchical_fl"])
def test_clients_receive_what_comes_down(problem, name, broadcast):
    decision = decide(name, problem, shares="equal", split="even").replace(broadcast=broadcast)
    quiet = evaluate(silent(problem), decision)
    cost = evaluate(with_power(problem, 0.5), decision)
    received_s = (cost.energy_j - quiet.energy_j) / 0.5
    times = cost.clients
    if name in ("vanilla_fl", "control_unit_fl"):
        at = slice(1, None) if name == "vanilla_fl" else slice(1)
        np.testing.assert_allclose(received_s[:, at], times.download_s, rtol=2e-4)
        assert np.sum(received_s) == pytest.approx(float(np.sum(times.download_s)), rel=2e-4)
    elif name == "splitfed":
        assert np.all(received_s[:, 1:] > times.download_s)
        np.testing.assert_array_equal(received_s[:, 0], 0)
    else:
        links = replica_links(problem, decision)
        bits = float(client_model_bits(problem.workload, decision))
        own_s = bits * links.down_bit_s
        heard_s = np.broadcast_to(own_s.max(axis=1, keepdims=True), own_s.shape)
        np.testing.assert_allclose(received_s[:, 1:], heard_s if broadcast else own_s, rtol=2e-4)
        collected_s = bits * links.up_bit_s.sum(axis=1)
        assert np.all(received_s[:, 0] > collected_s)


def test_a_broken_round_has_no_number_that_is_none(problem):
    decision = static_pipeline(problem, 3)
    decision = decision.replace(d2d_power_w=decision.d2d_power_w.at[1, 2].set(0.0))
    cost = evaluate(with_power(problem, 0.4), decision)
    assert not np.isnan(cost.energy_j).any()
    assert np.isinf(cost.energy_j[1]).all()
    assert np.isfinite(cost.energy_j[0]).all()


@pytest.mark.parametrize("power_w", [0.0, 0.4])
@pytest.mark.parametrize("name", ["vanilla_fl", "splitfed", "hierarchical_fl"])
def test_a_broken_round_of_clients_has_no_number_that_is_none(problem, name, power_w):
    decision = decide(name, problem, shares="equal", split="even").replace(broadcast=False)
    radio = problem.radio
    gains = radio.d2e_gain.at[1].set(0.0), radio.d2d_gain.at[1].set(0.0)
    dead = problem.replace(radio=radio.replace(d2e_gain=gains[0], d2d_gain=gains[1]))
    cost = evaluate(with_power(dead, power_w), decision)
    assert not np.isnan(cost.energy_j).any()
    assert np.isinf(cost.energy_j[1]).all()
    assert np.isfinite(cost.energy_j[0]).all()


@pytest.mark.slow
def test_dssra_shortens_messages_to_those_who_can_ill_afford_to_receive(problem):
    control = problem.control
    dear = problem.replace(control=control.replace(energy_queue=10.0 * control.energy_queue))

    def decided(seen):
        found = dssra(seen)
        return found, evaluate(with_power(dear, 5.0), found.decision)

    (found, cost), (_, unaware) = (jax.jit(decided)(with_power(dear, w)) for w in (5.0, 0.0))
    assert float(found.objective) == pytest.approx(float(cost.objective), rel=1e-4)
    assert float(found.lower_bound) <= float(found.objective) * (1 + 1e-5)
    assert is_feasible(dear, found.decision)
    assert float(cost.objective) < 0.99 * float(unaware.objective)
    assert float(cost.energy_j.sum()) < float(unaware.energy_j.sum())


@pytest.mark.slow
def test_dssra_finds_what_the_exhaustive_search_finds():
    assert_as_good_as_exhaustive(lambda problem: with_power(problem, 1.0))


@pytest.mark.slow
def test_floors_of_control_units_hold_with_receive_power(problem):
    powered = with_power(problem, 0.3)
    least = allocate(powered, static_pipeline(powered, 6), 200).decision
    cost = evaluate(powered, least)
    floor_j = control_unit_floor_j(powered)
    assert np.all(floor_j > control_unit_floor_j(silent(problem)))
    assert np.all(cost.energy_j[:, 0] >= floor_j * (1 - 1e-5))


@pytest.mark.slow
def test_greedy_takes_receiving_off_its_caps(problem):
    control = problem.control
    static = evaluate(silent(problem), static_pipeline(problem, 6))
    budget_j = 3.0 * static.energy_j
    powered = with_power(problem, 0.02).replace(control=control.replace(energy_budget_j=budget_j))
    cost = evaluate(powered, decide("greedy", powered, micro_batches=6))
    assert np.isfinite(cost.latency_s)
    assert np.mean(np.asarray(cost.energy_j) <= 1.05 * np.asarray(budget_j)) > 0.8
