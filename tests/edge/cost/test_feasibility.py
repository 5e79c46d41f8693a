"""Every violation alone, by the reference and by name."""

import copy

import numpy as np
import pytest
from support.compiled import in_numpy, is_feasible
from support.compiled import violations as judged
from support.random_networks import random_decision, random_network
from support.random_problems import ENDS, with_ends
from support.reference_cost import reference_cost, reference_violations
from support.structs import as_decision, as_problem

from collapipe_jax.edge.cost import feasibility

can_run = in_numpy(feasibility.can_run)


def base_case():
    """Cluster 0 leaves devices 1 and 3 idle, cluster 1 sits out because it must."""
    rng = np.random.default_rng(17)
    network = random_network(rng, 3, 4, 7)
    decision = random_decision(rng, network)
    decision["segments"][0] = [0, 4, 0, 3]
    decision["d2d_share"][0] = [0.3, 0, 0.4, 0, 0.3]
    decision["segments"][1] = 0
    decision["d2d_share"][1] = 0
    network["compute"]["memory_bytes"] *= 3
    network["compute"]["memory_bytes"][1] = 1e6
    return network, decision


def assert_broken(network, decision, expected):
    broken = judged(as_problem(network), as_decision(decision))
    assert {name for name, is_broken in broken.items() if is_broken} == expected
    assert reference_violations(network, decision) == expected


def test_nothing_broken():
    network, decision = base_case()
    assert_broken(network, decision, set())
    assert is_feasible(as_problem(network), as_decision(decision))
    assert np.asarray(can_run(as_problem(network))).tolist() == [True, False, True]


def set_at(field, index, value):
    def change(network, decision):
        decision[field][index] = value

    return change


def scale(field, index, factor):
    def change(network, decision):
        decision[field][index] *= factor

    return change


def to_bound(field, limit, index, factor):
    def change(network, decision):
        decision[field][index] = network["radio"][limit][index] * factor

    return change


def memory_at(factor):
    def change(network, decision):
        used = reference_cost(network, decision)["memory_bytes"]
        network["compute"]["memory_bytes"][0, 1] = used[0, 1] * factor

    return change


def could_run_after_all(network, decision):
    network["compute"]["memory_bytes"][1] = 1e12


CASES = {
    "a block too few": (set_at("segments", (0, 3), 2), {"segments"}),
    "a block too many": (set_at("segments", (0, 3), 4), {"segments"}),
    "sits out though it could run": (could_run_after_all, {"segments"}),
    "unlisted micro-batches": (set_at("micro_batches", 2, 4), {"micro_batches"}),
    "of a cluster that sits out": (set_at("micro_batches", 1, 4), set()),
    "shares over one": (scale("d2d_share", 2, 1.001), {"d2d_share"}),
    "shares within tolerance": (scale("d2d_share", 2, 1.00005), set()),
    "shares under one": (scale("d2d_share", 2, 0.5), set()),
    "share of an idle node": (
        set_at("d2d_share", 0, [0.3, 0.01, 0.3, 0, 0.3]),
        {"d2d_share"},
    ),
    "share of a node of an absent cluster": (set_at("d2d_share", (1, 0), 0.5), {"d2d_share"}),
    "power over its bound": (
        to_bound("d2d_power_w", "d2d_power_max_w", (0, 2), 1.001),
        {"d2d_power"},
    ),
    "power at its bound": (to_bound("d2d_power_w", "d2d_power_max_w", (0, 2), 1.00005), set()),
    "power of an idle node": (to_bound("d2d_power_w", "d2d_power_max_w", (0, 1), 9), set()),
    "no power": (set_at("d2d_power_w", (0, 2), -0.0), {"d2d_power"}),
    "no D2E power": (set_at("d2e_power_w", 2, 0.0), {"d2e_power"}),
    "no share": (set_at("d2d_share", (0, 2), 0.0), {"d2d_share"}),
    "no D2E share": (set_at("d2e_share", 2, 0.0), {"d2e_share"}),
    "power of a control unit": (
        to_bound("d2d_power_w", "d2d_power_max_w", (2, 0), 1.001),
        {"d2d_power"},
    ),
    "D2E shares over one": (scale("d2e_share", slice(None), 1.001), {"d2e_share"}),
    "the absent cluster's D2E share counts": (set_at("d2e_share", 1, 0.9), {"d2e_share"}),
    "D2E power": (to_bound("d2e_power_w", "d2e_power_max_w", 2, 1.001), {"d2e_power"}),
    "D2E power of the absent": (to_bound("d2e_power_w", "d2e_power_max_w", 1, 9), set()),
    "memory": (memory_at(0.999), {"memory"}),
    "memory to the byte": (memory_at(1.0), set()),
    "memory within tolerance": (memory_at(0.99995), set()),
}


@pytest.mark.parametrize("case", CASES)
def test_each_violation_alone(case):
    change, expected = CASES[case]
    network, decision = copy.deepcopy(base_case())
    change(network, decision)
    assert_broken(network, decision, expected)
    assert bool(is_feasible(as_problem(network), as_decision(decision))) == (not expected)


def test_several_at_once_are_all_named():
    network, decision = base_case()
    for name in ("unlisted micro-batches", "D2E power", "memory", "a block too many"):
        CASES[name][0](network, decision)
    memory_at(0.9)(network, decision)
    assert_broken(network, decision, {"micro_batches", "d2e_power", "memory", "segments"})


def test_negative_numbers_are_violations():
    network, decision = base_case()
    decision["segments"][0] = [0, 9, 0, -2]
    decision["d2d_share"][2, 1] = -0.1
    decision["d2d_power_w"][2, 0] = -1.0
    broken = judged(as_problem(network), as_decision(decision))
    for name in ("segments", "d2d_share", "d2d_power"):
        assert broken[name], name


@pytest.mark.parametrize("count", [2, 3, 6, 12])
def test_any_number_of_micro_batches_may_make_a_cluster_run(count):
    """Working memory shrinks with the micro-batch: only the finest split fits here."""
    network, _ = base_case()
    work = network["workload"]
    work["micro_batch_choices"] = [count, 2, 2, 2]
    per_block = work["block_static_bytes"] + work["batch"] * work["block_kept_bytes"]
    work["block_working_bytes"] = per_block
    memory = per_block * (np.array([2, 2, 2, 1]) + work["batch"] / 6 * 1.001)
    network["compute"]["memory_bytes"][1] = memory
    assert bool(can_run(as_problem(network))[1]) == (count >= 6)


@pytest.mark.parametrize(
    ("cluster", "room", "expected"), [(0, 0.9, True), (0, 1, False), (1, 0, False)]
)
def test_control_units_need_memory_for_their_embedding(cluster, room, expected):
    """Those of clusters that take part; cluster 1 sits out."""
    network, decision = base_case()
    own_bytes = np.full(3, 2 * ENDS["embedding_static_bytes"])
    own_bytes[cluster] *= room / 2
    network["compute"]["control_unit_memory_bytes"] = own_bytes
    problem = as_problem(network)
    assert not judged(problem, as_decision(decision))["memory"]  # no sizes of the embedding
    assert judged(with_ends(problem), as_decision(decision))["memory"] == expected
