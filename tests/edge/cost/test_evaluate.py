"""The cost of a decision, number by number against tests/support/reference_cost.py."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.against_reference import (
    BLOCKS,
    CLUSTERS,
    DEVICES,
    assert_equal_to_reference,
    base_case,
    two_hop_case,
)
from support.compilations import compiles
from support.compiled import evaluate
from support.random_networks import random_decision, random_network, secure_section
from support.reference_cost import reference_cost
from support.structs import as_decision, as_problem

from collapipe_jax.edge.cost.latency import flow_time_s

LAWS = (
    {},
    {},
    {"duplex": "half"},
    {"retransmissions": "reliable"},
    {"retransmissions": "counted"},
    {"duplex": "half", "retransmissions": "counted"},
    {"retransmissions": "reliable"},
    {"duplex": "half", "retransmissions": "reliable"},
)
"""Laws of the radio in turn: networks with the same ones have one shape, and one program."""


def draw(seed):
    """Networks of two shapes, with devices skipped and clusters sitting out in turn."""
    rng = np.random.default_rng(seed)
    clusters, devices, blocks = [(CLUSTERS, DEVICES, BLOCKS), (4, 2, 5)][seed % 2]
    network = random_network(rng, clusters, devices, blocks)
    network["radio"] |= LAWS[seed % 8]
    sitting_out = [(), (1,), (0, 2), ()][seed // 8]
    decision = random_decision(rng, network, sitting_out, skipped=seed // 3 % devices)
    if seed % 5 == 4:  # hardly a micro-batch arrives: the tangent of the divergence
        network["radio"]["outage_threshold"] *= 40
    if seed % 3 == 1:
        network["radio"]["amplifier_efficiency"] = 0.35
    if seed % 5 == 3:
        network["radio"]["harq_attempts"] = 1
    if seed % 3 == 2:
        network["compute"]["receive_power_w"] = 0.6
    if seed % 8 in (5, 6):
        network["secure_aggregation"] = secure_section()
    if seed in (2, 9, 11, 16, 29):
        network["workload"]["update_ratio"] = 0.29
    if seed % 4 == 2:
        network["compute"]["idle_power_w"] = 0.37
        network["compute"]["memory_bytes"][-1, -1] = 0  # away
    return network, decision


def seeds(*quick):
    """All seeds; those are slow whose laws others have too."""
    slow = pytest.mark.slow
    return [seed if seed % 8 in quick else pytest.param(seed, marks=slow) for seed in range(32)]


@pytest.mark.parametrize("seed", seeds(0, 5, 6))
@pytest.mark.usefixtures("x64")
def test_equal_to_the_reference_in_double_precision(seed):
    assert_equal_to_reference(*draw(seed))


@pytest.mark.parametrize("seed", seeds(0, 6)[::2])
def test_equal_to_the_reference_in_single_precision(seed):
    assert_equal_to_reference(*draw(seed), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_equal_to_the_reference_with_the_ergodic_rate():
    network, decision = draw(0)
    plain = reference_cost(network, decision)
    network["radio"]["rate_law"] = "ergodic"
    assert assert_equal_to_reference(network, decision)["latency_s"] > plain["latency_s"]


def test_the_random_cases_reach_every_branch():
    """Micro-batches differ, ceilings bind and do not, losses range over the tangent."""
    losses, counts, absent = [], [], []
    for seed in range(32):
        network, decision = draw(seed)
        cost = reference_cost(network, decision)
        losses += list(cost["loss_probability"])
        counts.append(len(set(decision["micro_batches"].tolist())))
        absent += list(cost["absent"])
    assert any(0 < loss < 1e-2 for loss in losses)
    assert any(0.1 < loss < 0.99 for loss in losses)
    assert any(loss == 1 for loss in losses)
    assert max(counts) > 2
    assert 0 < sum(absent) < len(absent)


@pytest.mark.usefixtures("x64")
def test_a_batch_of_rounds_costs_as_much_as_each():
    cases = [draw(seed) for seed in (0, 8, 16, 24)]
    pairs = [(as_problem(network), as_decision(decision)) for network, decision in cases]
    batch = jax.tree.map(lambda *leaf: np.stack(leaf), *pairs)
    costs = jax.device_get(jax.jit(jax.vmap(evaluate))(*batch))
    for index, (network, decision) in enumerate(cases):
        expected = reference_cost(network, decision)
        np.testing.assert_allclose(costs.objective[index], expected["objective"], 1e-9)
        np.testing.assert_allclose(costs.energy_j[index], expected["energy_j"], 1e-9)


@pytest.mark.usefixtures("x64")
def test_the_gradient_is_that_of_the_reference_and_finite_where_nothing_is_sent():
    network, decision = base_case()
    decision = copy.deepcopy(decision)
    decision["segments"][2] = 0
    decision["d2d_share"][2] = 0
    continuous = ("d2d_share", "d2d_power_w", "d2e_share", "d2e_power_w")
    problem, struct = as_problem(network), as_decision(decision)

    @jax.jit
    @jax.grad
    def gradient(values):
        return evaluate(problem, struct.replace(**values)).objective

    slopes = gradient({name: getattr(struct, name) for name in continuous})
    rng = np.random.default_rng(5)
    for name in continuous:
        assert np.isfinite(slopes[name]).all(), name
        direction = rng.normal(size=decision[name].shape) * decision[name]
        ends = []
        for sign in (1, -1):
            moved = copy.deepcopy(decision)
            moved[name] = decision[name] + sign * 1e-5 * direction
            ends.append(reference_cost(network, moved)["objective"])
        slope = float(np.sum(slopes[name] * direction))
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5), name


@pytest.mark.usefixtures("x64")
def test_parts_add_up_and_shares_of_the_server_stay_unused():
    network, decision = two_hop_case()
    cost = evaluate(as_problem(network), as_decision(decision))
    np.testing.assert_allclose(sum(cost.parts), cost.cluster_latency_s, 1e-12)
    decision["segments"][2] = 0
    fewer = evaluate(as_problem(network), as_decision(decision))
    decoder_s, fewer_s = cost.flows.forward_s[:, -1], fewer.flows.forward_s[:, -1]
    np.testing.assert_allclose(fewer_s[:2], decoder_s[:2], 1e-12)
    assert decoder_s[0] > 0


@pytest.mark.usefixtures("x64")
def test_flows_are_the_stages_of_a_local_step_in_order():
    network, decision = two_hop_case()
    decision["segments"][2] = 0
    cost = evaluate(as_problem(network), as_decision(decision))
    forward_s, backward_s = (np.asarray(flow) for flow in cost.flows)
    assert forward_s.shape == (CLUSTERS, 2 * DEVICES + 4)
    assert backward_s.shape == (CLUSTERS, 2 * DEVICES + 3)
    assert not forward_s[2].any()
    assert not backward_s[2].any()
    # Cluster 1 goes 0 -> 2 -> 4 -> 0; node i computes at place 2 i, and its hop follows.
    assert np.flatnonzero(forward_s[1]).tolist() == [0, 1, 4, 5, 8, 9, 10, 11]
    assert np.flatnonzero(backward_s[1]).tolist() == [0, 1, 2, 5, 6, 9, 10]
    ratio, steps = network["workload"]["backward_ratio"], network["workload"]["local_steps"]
    np.testing.assert_allclose(
        backward_s[:, 2::2], ratio * forward_s[:, 2 * DEVICES :: -2][:, : DEVICES + 1], 1e-12
    )
    counts = jnp.asarray(decision["micro_batches"])
    flows = jnp.asarray(forward_s), jnp.asarray(backward_s)
    step_s = sum(flow_time_s(flow.sum(axis=1), flow.max(axis=1), counts) for flow in flows)
    np.testing.assert_allclose(cost.parts.iterations_s, steps * step_s, 1e-12)


def test_another_decision_is_not_compiled_again():
    network, decision = base_case()
    evaluate(as_problem(network), as_decision(decision))
    with compiles(evaluate, 0):
        for seed in range(3):
            decision = random_decision(np.random.default_rng(seed), network, skipped=seed)
            evaluate(as_problem(network), as_decision(decision))
