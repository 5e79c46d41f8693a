"""Every number of a network and of a decision counts in its own place, and nowhere else."""

import copy
from itertools import pairwise

import jax
import numpy as np
import pytest
from support.against_reference import (
    BLOCKS,
    CLUSTERS,
    COMPARED,
    assert_equal_to_reference,
    base_case,
    flat,
    two_hop_case,
)
from support.compiled import evaluate
from support.reference_cost import reference_cost, reference_violations
from support.structs import as_decision, as_problem

from collapipe_jax.edge.cost.feasibility import violations

judged = jax.jit(violations)


def verdict(network, decision):
    broken = judged(as_problem(network), as_decision(decision))
    return {name for name, is_broken in broken.items() if is_broken}


VERDICT_ONLY = {
    "workload.micro_batch_choices",
    "radio.d2e_power_max_w",
    "radio.d2d_power_max_w",
    "compute.memory_bytes",
}
OTHERS = {
    "workload.batch": 48,
    "workload.local_steps": 5,
    "radio.harq_attempts": 2,
    "compute.idle_power_w": 0.37,
    "compute.receive_power_w": 0.37,
}
"""New values of integers, and of what is 0."""


def leaves():
    network, _ = base_case()
    return [
        f"{section}.{key}"
        for section in ("workload", "radio", "compute", "learning", "control")
        for key in network[section]
        if f"{section}.{key}" != "workload.blocks"  # a static size, see below
    ]


def changed_networks(leaf):
    """The base network with one number of one leaf changed, for every number of the leaf."""
    network, _ = base_case()
    section, key = leaf.split(".")
    value = np.asarray(network[section][key])
    for index in np.ndindex(value.shape):
        changed = copy.deepcopy(network)
        moved = value.copy()
        moved[index] = OTHERS.get(leaf, value[index] * 1.37)
        changed[section][key] = moved if value.shape else moved[()]
        yield index, changed


@pytest.mark.parametrize("leaf", [leaf for leaf in leaves() if leaf not in VERDICT_ONLY])
@pytest.mark.usefixtures("x64")
def test_every_number_of_a_network_counts_where_the_reference_says(leaf):
    network, decision = base_case()
    before = flat(reference_cost(network, decision))
    counted = 0
    for _, changed in changed_networks(leaf):
        after = flat(assert_equal_to_reference(changed, decision))
        counted += not np.allclose(before, after, rtol=1e-7, atol=0)
    assert counted > 0


@pytest.mark.parametrize(
    ("leaf", "uncounted"),
    [
        # only control units reach the base station
        ("radio.d2e_gain", lambda n, i: i != 0),
        # nobody sends to itself; node 2 of cluster 0 is idle
        ("radio.d2d_gain", None),
        ("radio.cross_gain", lambda n, i, m, j: n == m or (n, i) == (0, 2) or (m, j) == (0, 2)),
        ("compute.flops_per_s", lambda n, i: (n, i) == (0, 2)),
        ("compute.energy_coefficient", lambda n, i: (n, i) == (0, 2)),
        ("control.energy_queue", lambda n, i: (n, i) == (0, 2)),
        ("control.energy_budget_j", lambda n, i: (n, i) == (0, 2)),
        ("learning.cluster_weight", lambda n: False),
    ],
)
@pytest.mark.usefixtures("x64")
def test_which_numbers_of_an_array_count(leaf, uncounted):
    network, decision = base_case()

    def total(net):
        cost = evaluate(as_problem(net), as_decision(decision))
        return np.concatenate([np.ravel(getattr(cost, name)) for name in COMPARED])

    if uncounted is None:
        route = {0: [0, 1, 3, 4, 0], 1: [0, 1, 2, 3, 4, 0], 2: [0, 1, 2, 3, 4, 0]}
        used = set()
        for n, nodes in route.items():
            for i, j in pairwise(nodes):
                used |= {(n, i, j), (n, j, i), (n, i, 0), (n, 0, i)}
        used -= {(n, 0, 0) for n in route}

        def uncounted(n, i, j):
            return (n, i, j) not in used

    before = total(network)
    for index, changed in changed_networks(leaf):
        same = np.array_equal(before, total(changed))
        assert same == uncounted(*index), index


@pytest.mark.parametrize("field", ["d2d_share", "d2d_power_w", "d2e_share", "d2e_power_w"])
@pytest.mark.usefixtures("x64")
def test_every_number_of_a_decision_counts_where_the_reference_says(field):
    network, decision = base_case()
    before = flat(reference_cost(network, decision))
    for index in np.ndindex(decision[field].shape):
        changed = copy.deepcopy(decision)
        changed[field][index] *= 0.71
        after = flat(assert_equal_to_reference(network, changed))
        idle = index == (0, 2)
        assert np.array_equal(before, after) == idle, index


@pytest.mark.usefixtures("x64")
def test_segments_and_micro_batches_count():
    network, decision = base_case()
    seen = {tuple(flat(reference_cost(network, decision)))}
    changes = []
    for n in range(CLUSTERS):
        moved = copy.deepcopy(decision)
        moved["segments"][n] = np.roll(decision["segments"][n], 1)
        moved["d2d_share"][n, 1:] = np.roll(decision["d2d_share"][n, 1:], 1)
        changes.append(moved)
        for count in (2, 3, 6, 12):
            moved = copy.deepcopy(decision)
            if count != decision["micro_batches"][n]:
                moved["micro_batches"][n] = count
                changes.append(moved)
    for changed in changes:
        seen.add(tuple(flat(assert_equal_to_reference(network, changed))))
    assert len(seen) == 1 + len(changes)


@pytest.mark.usefixtures("x64")
def test_the_number_of_blocks_counts():
    network, decision = base_case()
    before = flat(reference_cost(network, decision))
    longer = copy.deepcopy(network)
    longer["workload"]["blocks"] = BLOCKS + 2  # D2E moves the whole encoder
    assert not np.array_equal(before, flat(assert_equal_to_reference(longer, decision)))
    assert verdict(longer, decision) == {"segments"} == reference_violations(longer, decision)


def test_verdict_leaves_count_in_the_verdict_alone():
    network, decision = base_case()
    assert verdict(network, decision) == set() == reference_violations(network, decision)
    tight = {
        "workload.micro_batch_choices": ("micro_batches", np.array([2, 3, 6, 8])),
        "radio.d2e_power_max_w": ("d2e_power", decision["d2e_power_w"] * [2, 0.9, 2]),
        "radio.d2d_power_max_w": ("d2d_power", decision["d2d_power_w"] * 0.9),
        "compute.memory_bytes": (
            "memory",
            reference_cost(network, decision)["memory_bytes"] * [[1], [1], [0.9]],
        ),
    }
    assert set(tight) == VERDICT_ONLY
    before = evaluate(as_problem(network), as_decision(decision)).objective
    for leaf, (name, value) in tight.items():
        section, key = leaf.split(".")
        changed = copy.deepcopy(network)
        changed[section][key] = value
        assert verdict(changed, decision) == {name} == reference_violations(changed, decision)
        assert evaluate(as_problem(changed), as_decision(decision)).objective == before


SWAPS = {
    "sender and receiver of a D2D gain": ("radio", "d2d_gain", lambda g: g.swapaxes(1, 2)),
    "sender and receiver of a cross gain": (
        "radio",
        "cross_gain",
        lambda g: g.transpose(2, 3, 0, 1),
    ),
    "clusters of a cross gain": ("radio", "cross_gain", lambda g: g.transpose(2, 1, 0, 3)),
    "nodes of a cross gain": ("radio", "cross_gain", lambda g: g.transpose(0, 3, 2, 1)),
    "nodes of the D2E gain": ("radio", "d2e_gain", lambda g: g[:, ::-1]),
    "clusters of the D2E gain": ("radio", "d2e_gain", lambda g: g[::-1]),
    "nodes' speed": ("compute", "flops_per_s", lambda g: g[:, ::-1]),
    "nodes' energy": ("compute", "energy_coefficient", lambda g: g[:, ::-1]),
    "nodes' budget": ("control", "energy_budget_j", lambda g: g[:, ::-1]),
    "nodes' queue": ("control", "energy_queue", lambda g: g[:, ::-1]),
    "clusters' queue": ("control", "energy_queue", lambda g: g[::-1]),
    "clusters' weight": ("learning", "cluster_weight", lambda g: g[::-1]),
}


@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.usefixtures("x64")
def test_no_two_indices_may_be_swapped(swap):
    section, key, exchange = SWAPS[swap]
    network, decision = base_case()
    swapped = copy.deepcopy(network)
    swapped[section][key] = exchange(network[section][key])
    before, after = reference_cost(network, decision), assert_equal_to_reference(swapped, decision)
    assert not np.isclose(before["objective"], after["objective"], rtol=1e-6)


@pytest.mark.usefixtures("x64")
def test_a_d2d_gain_counts_in_one_direction():
    """The two directions of every hop, apart, by hand."""
    network, decision = two_hop_case()
    energy = reference_cost(network, decision)["energy_j"][1]
    for sender, receiver in [(0, 2), (2, 4), (4, 0), (2, 0), (4, 2), (0, 4)]:
        changed = copy.deepcopy(network)
        changed["radio"]["d2d_gain"][1, sender, receiver] *= 0.4
        after = assert_equal_to_reference(changed, decision)["energy_j"][1]
        # A weaker link costs the node that sends over it, and no other.
        assert np.flatnonzero(after != energy).tolist() == [sender]
