"""Blocks at the edge server: the cost with the reference, and as a shorter encoder has it."""

import jax.numpy as jnp
import numpy as np
import pytest
from support.against_reference import COMPARED, assert_equal_to_reference
from support.compilations import compiles
from support.compiled import (
    control_unit_floor_j,
    evaluate,
    least_latency_s,
    violations,
)
from support.random_networks import random_decision, random_network, secure_section
from support.random_problems import with_ends
from support.reference_cost import reference_violations
from support.structs import as_decision, as_problem

from collapipe_jax.edge.cost.decision import ClientDecision, Routes
from collapipe_jax.edge.cost.static_pipeline import with_equal_allocation
from collapipe_jax.edge.queues import device_budget_floor_j

BLOCKS = 7


def case(server_blocks, seed=5):
    """A network whose edge server holds blocks, and a decision for the others."""
    rng = np.random.default_rng(seed)
    network = random_network(rng, 3, 4, BLOCKS - server_blocks)
    decision = random_decision(rng, network, skipped=1)
    network["compute"]["memory_bytes"] *= 3
    network["workload"] |= {"blocks": BLOCKS, "server_blocks": server_blocks}
    return network, decision


@pytest.mark.parametrize("secure", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.usefixtures("x64")
def test_equal_to_the_reference_at_every_depth_by_one_program(secure):
    with compiles(evaluate, 1):
        for server_blocks in (0, 1, 4):
            network, decision = case(server_blocks)
            if secure:
                network["secure_aggregation"] = secure_section()
            assert_equal_to_reference(network, decision)
    assert not reference_violations(network, decision)
    assert not any(violations(as_problem(network), as_decision(decision)).values())
    decision["segments"][1, np.argmax(decision["segments"][1])] += 1
    assert reference_violations(network, decision) == {"segments"}
    broken = violations(as_problem(network), as_decision(decision))
    assert [name for name, is_broken in broken.items() if is_broken] == ["segments"]


def shortened(network):
    """An encoder of the clusters' blocks alone, before a decoder with the work of the others."""
    work = dict(network["workload"])
    both = work.pop("server_blocks") * (1 + work["backward_ratio"])
    work["blocks"] -= network["workload"]["server_blocks"]
    work["decoder_flops"] += both * work["block_flops"]
    return {**network, "workload": work}


@pytest.mark.usefixtures("x64")
def test_the_rest_of_the_network_sees_a_shorter_encoder():
    network, decision = case(3)
    network["compute"]["block_overhead_s"] = 0.0
    cut, short = as_problem(network), as_problem(shortened(network))
    found, expected = (evaluate(problem, as_decision(decision)) for problem in (cut, short))
    for name in COMPARED:
        if name != "server_memory_bytes":  # the server holds the blocks that others do not see
            got, wanted = getattr(found, name), getattr(expected, name)
            np.testing.assert_allclose(got, wanted, 1e-12, err_msg=name)
    assert found.server_memory_bytes > expected.server_memory_bytes
    for floor in (control_unit_floor_j, device_budget_floor_j, least_latency_s):
        np.testing.assert_allclose(floor(cut), floor(short), 1e-12)


def test_a_document_without_the_number_has_the_same_cost_bit_for_bit():
    network, decision = case(0)
    with_zero = as_problem(network)
    without = with_zero.replace(workload=with_zero.workload.replace(server_blocks=0))
    costs = [evaluate(problem, as_decision(decision)) for problem in (with_zero, without)]
    for name in COMPARED:
        np.testing.assert_array_equal(*(getattr(cost, name) for cost in costs), name)


def test_a_block_at_a_fast_server_shortens_the_round_and_saves_energy():
    """While the server's stage is not the longest, all of (13), (14) and (16) falls."""
    network, decision = case(0)
    network["compute"]["es_flops_per_s"] *= 1e3
    network["compute"]["block_overhead_s"] = 0.0
    before = evaluate(as_problem(network), as_decision(decision))
    decision["segments"] = decision["segments"] - (
        np.arange(4) == decision["segments"].argmax(axis=1)[:, None]
    )
    network["workload"]["server_blocks"] = 1
    after = evaluate(as_problem(network), as_decision(decision))
    assert jnp.all(after.cluster_latency_s < before.cluster_latency_s)
    assert after.energy_j.sum() < before.energy_j.sum()
    np.testing.assert_array_equal(after.loss_probability, before.loss_probability)


def without_blocks(routes=None, **changes):
    """A network whose edge server holds all blocks, with random shares and powers."""
    rng = np.random.default_rng(8)
    network = random_network(rng, 3, 4, BLOCKS)
    network["workload"] |= {
        "server_blocks": BLOCKS,
        "micro_batch_choices": np.array([1]),
        **changes,
    }
    problem = with_ends(as_problem(network))
    decision = with_equal_allocation(
        problem.replace(routes=routes), jnp.zeros((3, 4), jnp.int32), jnp.array([1, 1, 1])
    )
    share = jnp.asarray(rng.dirichlet(np.ones(3)))
    return problem, decision.replace(d2e_share=share)


def assert_same_cost(cost, expected):
    for name in ("latency_s", "cluster_latency_s", "compute_latency_s", "divergence", "objective"):
        np.testing.assert_allclose(getattr(cost, name), getattr(expected, name), 1e-9, err_msg=name)
    np.testing.assert_allclose(cost.energy_j, expected.energy_j, 1e-9)


@pytest.mark.usefixtures("x64")
def test_without_blocks_control_units_are_clients_of_a_split_model():
    problem, decision = without_blocks()
    assert not any(violations(problem, decision).values())
    batch = int(problem.workload.batch)
    clients = ClientDecision(
        samples=jnp.full((3, 1), batch),
        client_blocks=jnp.int32(0),
        d2e_share=decision.d2e_share[:, None],
        d2e_power_w=decision.d2e_power_w[:, None],
        whole_model=False,
        tier="control_units",
    )
    cost, expected = evaluate(problem, decision), evaluate(problem, clients)
    assert_same_cost(cost, expected)
    assert not np.any(cost.absent)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("broadcast", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_without_blocks_a_gateway_is_one_whose_block_costs_nothing(broadcast):
    gateway = jnp.array([2, 3, 4])
    routes = Routes(gateway=gateway, broadcast=jnp.array(broadcast))
    problem, decision = without_blocks(routes, block_flops=0.0, block_param_bits=0.0)
    assert not any(violations(problem, decision).values())
    assert np.all(np.asarray(decision.d2d_share > 0) == (np.arange(5) == 0))
    # A block takes a pass, which has an overhead, of a node or of the edge server.
    problem = problem.replace(compute=problem.compute.replace(block_overhead_s=jnp.zeros(())))
    work = problem.workload.replace(server_blocks=problem.workload.server_blocks - 1)
    one = problem.replace(workload=work, routes=routes)
    held = jnp.asarray(np.arange(4) == np.asarray(gateway)[:, None] - 1, jnp.int32)
    block = with_equal_allocation(one, held, decision.micro_batches)
    expected = evaluate(one, block.replace(d2e_share=decision.d2e_share))
    assert_same_cost(evaluate(problem, decision), expected)
