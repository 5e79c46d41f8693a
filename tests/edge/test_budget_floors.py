"""Floors of budgets: true lower bounds, and attained."""

import jax
import numpy as np
import pytest
from scipy.optimize import linprog
from support.compiled import (
    control_unit_floor_j,
    evaluate,
    in_numpy,
    least_latency_s,
    static_pipeline,
)
from support.random_networks import random_decision, random_network
from support.random_problems import pick, plain_problems, random_problems
from support.structs import as_decision

from collapipe_jax.edge import queues
from collapipe_jax.edge.cost import feasibility
from collapipe_jax.edge.queues import device_budget_floor_j

block_energy_j = in_numpy(queues.block_energy_j)
usable_blocks = in_numpy(feasibility.usable_blocks)
CLUSTERS, DEVICES, BLOCKS = 3, 4, 7


def test_no_decision_spends_less_at_a_control_unit():
    problem = plain_problems(16, CLUSTERS, DEVICES, BLOCKS)
    idle_power_w = np.where(np.arange(16) % 2, 0.3, 0.0)
    problem = problem.replace(compute=problem.compute.replace(idle_power_w=idle_power_w))
    decisions = []
    for index in range(16 * 24):
        rng = np.random.default_rng([11, index])
        network = random_network(rng, CLUSTERS, DEVICES, BLOCKS)
        decision = random_decision(rng, network, skipped=index % DEVICES)
        for name in ("d2d_power_w", "d2e_power_w"):  # down to hardly any power
            decision[name] *= 10.0 ** -rng.uniform(0, 8, decision[name].shape)
        decisions.append(as_decision(decision))
    decisions = jax.tree.map(lambda *x: np.stack(x).reshape(16, 24, *x[0].shape), *decisions)
    cost = jax.jit(jax.vmap(jax.vmap(evaluate, in_axes=(None, 0))))(problem, decisions)
    floor = np.asarray(jax.jit(jax.vmap(control_unit_floor_j))(problem))[:, None]
    spent = np.asarray(cost.energy_j)[..., 0]
    assert np.all(spent >= floor * (1 - 1e-4))
    assert (spent / floor).min() < 10  # the bound is not loose
    least_s = np.asarray(jax.jit(jax.vmap(least_latency_s))(problem))[:, None]
    assert np.all(np.asarray(cost.latency_s) >= least_s)
    devices_j = np.asarray(cost.energy_j)[..., 1:].min(axis=(2, 3))
    assert np.all(devices_j >= idle_power_w[:, None] * least_s * (1 - 1e-6))


def test_the_shortest_round_is_approached_where_all_but_d2e_links_is_fast():
    problem = jax.device_get(pick(plain_problems(1, 1, DEVICES, BLOCKS), 0))
    radio, compute = problem.radio, problem.compute
    problem = problem.replace(
        radio=radio.replace(
            d2d_bandwidth_hz=1e5 * radio.d2d_bandwidth_hz, d2d_gain=1e5 * radio.d2d_gain
        ),
        compute=compute.replace(
            flops_per_s=1e6 * compute.flops_per_s,
            es_flops_per_s=1e6 * compute.es_flops_per_s,
            block_overhead_s=np.zeros(()),
            link_overhead_s=np.zeros(()),
        ),
    )
    latency_s = evaluate(problem, static_pipeline(problem, 12)).latency_s
    assert float(latency_s) == pytest.approx(float(least_latency_s(problem)), rel=0.02)


def test_idle_energy_of_the_shortest_round_is_part_of_every_floor():
    problem = pick(plain_problems(1, CLUSTERS, DEVICES, BLOCKS), 0)
    compute = problem.compute
    idle = problem.replace(compute=compute.replace(idle_power_w=jax.device_put(np.float32(0.3))))
    least_j = 0.3 * float(least_latency_s(problem))
    for floor in (control_unit_floor_j, device_budget_floor_j):
        more_j = np.asarray(floor(idle)) - np.asarray(floor(problem))
        np.testing.assert_allclose(more_j, least_j, rtol=1e-4)


def test_the_control_unit_floor_is_reached_at_vanishing_power():
    """All blocks on the device with the best link, alone in the network."""
    problem = jax.device_get(pick(plain_problems(1, 1, DEVICES, BLOCKS), 0))
    best = int(np.argmax(problem.radio.d2d_gain[0, 0, 1:]))
    used = np.isin(np.arange(DEVICES + 1), [0, best + 1])[None]
    decision = static_pipeline(problem, 3).replace(
        segments=BLOCKS * used[:, 1:],
        d2d_share=used / 2,
        d2d_power_w=used * 1e-7,
        d2e_power_w=np.full(1, 1e-6),
    )
    for efficiency in (1.0, 0.35):
        radio = problem.radio.replace(amplifier_efficiency=np.float32(efficiency))
        problem = problem.replace(radio=radio)
        spent = float(evaluate(problem, decision).energy_j[0, 0])
        assert spent == pytest.approx(float(control_unit_floor_j(problem)[0]), rel=0.01)


def test_block_energy_is_what_a_block_adds():
    problem = jax.device_get(pick(plain_problems(1, 1, DEVICES, BLOCKS), 0))
    decision = static_pipeline(problem, 3)
    decision = decision.replace(d2d_power_w=np.full((1, DEVICES + 1), 1e-10))
    spent = np.asarray(evaluate(problem, decision).energy_j)[0, 1:]
    expected = np.asarray(decision.segments * block_energy_j(problem))[0]
    np.testing.assert_allclose(spent, expected, rtol=0.02)


def test_device_floor_is_the_optimum_of_a_linear_program():
    def scarce(index, rng, network):
        memory = network["compute"]["memory_bytes"]
        memory *= rng.uniform(0.2, 1.5, memory.shape)
        memory[rng.uniform(size=memory.shape) < 0.15] = 0

    problems = random_problems(24, CLUSTERS, DEVICES, BLOCKS, scarce, seed=2)
    checked = 0
    for index in range(24):
        problem = pick(problems, index)
        floor = device_budget_floor_j(problem)
        energy = np.asarray(block_energy_j(problem), float)
        most = np.max(problem.workload.micro_batch_choices)
        capacity = np.asarray(usable_blocks(problem, most), float)
        for n in range(CLUSTERS):
            # Least x with energy_k b_k <= x, sum b = L, 0 <= b <= capacity.
            limits = np.hstack([np.diag(energy[n]), -np.ones((DEVICES, 1))])
            program = linprog(
                [0.0] * DEVICES + [1.0],
                A_ub=limits,
                b_ub=np.zeros(DEVICES),
                A_eq=[[1.0] * DEVICES + [0.0]],
                b_eq=[BLOCKS],
                bounds=[(0, c) for c in capacity[n]] + [(0, None)],
            )
            assert (program.status == 0) == (capacity[n].sum() >= BLOCKS)
            if program.status == 0:
                assert floor[n] == pytest.approx(program.fun, rel=1e-6)
                checked += 1
            else:
                assert floor[n] == 0
    assert 12 < checked < 72
