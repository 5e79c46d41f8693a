"""The cost of a decision, number by number against tests/support/reference_cost.py."""

import copy
from functools import cache
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.reference_cost import (
    NUMBERS,
    as_decision,
    as_problem,
    random_decision,
    random_network,
    reference_cost,
    reference_violations,
)

from collapipe_jax.cost.evaluate import evaluate
from collapipe_jax.cost.feasibility import violations
from collapipe_jax.cost.timeline import flow_time_s

CLUSTERS, DEVICES, BLOCKS = 3, 4, 7
COMPARED = (*NUMBERS, "absent")

evaluated = jax.jit(evaluate)
judged = jax.jit(violations)


def assert_equal_to_reference(network, decision, rtol=1e-9):
    cost = evaluated(as_problem(network), as_decision(decision))
    expected = reference_cost(network, decision)
    for name in COMPARED:
        got = np.asarray(getattr(cost, name))
        assert np.shape(got) == np.shape(expected[name]), name
        np.testing.assert_allclose(got, expected[name], rtol, err_msg=name)
    return expected


def verdict(network, decision):
    broken = judged(as_problem(network), as_decision(decision))
    return {name for name, is_broken in broken.items() if is_broken}


def flat(cost):
    """A reference cost as one vector."""
    return np.concatenate([np.ravel(cost[name]).astype(float) for name in COMPARED])


def draw(seed):
    """Networks of two shapes, with devices skipped and clusters sitting out in turn."""
    rng = np.random.default_rng(seed)
    clusters, devices, blocks = [(CLUSTERS, DEVICES, BLOCKS), (4, 2, 5)][seed % 2]
    network = random_network(rng, clusters, devices, blocks)
    sitting_out = [(), (1,), (0, 2), ()][seed // 2 % 4]
    decision = random_decision(rng, network, sitting_out, skipped=seed // 3 % devices)
    if seed % 5 == 4:  # hardly a micro-batch arrives: the tangent of the divergence
        network["radio"]["outage_threshold"] *= 40
    if seed % 5 == 3:
        network["radio"]["harq_attempts"] = 1
    return network, decision


@pytest.mark.parametrize("seed", range(32))
@pytest.mark.usefixtures("x64")
def test_equal_to_the_reference_in_double_precision(seed):
    assert_equal_to_reference(*draw(seed))


@pytest.mark.parametrize("seed", range(0, 32, 2))
def test_equal_to_the_reference_in_single_precision(seed):
    assert_equal_to_reference(*draw(seed), rtol=1e-4)


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


# --- broken messages, clusters that sit out ---------------------------------------------------


def no_share(network, decision):
    decision["d2d_share"][1, 2] = 0


def no_share_at_the_control_unit(network, decision):
    decision["d2d_share"][1, 0] = 0


def no_power(network, decision):
    decision["d2d_power_w"][1, 4] = 0


def no_gain_forward(network, decision):
    network["radio"]["d2d_gain"][1, 2, 4] = 0


def no_gain_backward(network, decision):
    network["radio"]["d2d_gain"][1, 4, 2] = 0


def no_gain_to_collect(network, decision):
    network["radio"]["d2d_gain"][1, 2, 0] = 0


def no_gain_to_distribute(network, decision):
    network["radio"]["d2d_gain"][1, 0, 4] = 0


def no_d2e_share(network, decision):
    decision["d2e_share"][1] = 0


def no_d2e_power(network, decision):
    decision["d2e_power_w"][1] = 0


def no_d2e_gain(network, decision):
    network["radio"]["d2e_gain"][1, 0] = 0


BREAKS = (
    no_share,
    no_share_at_the_control_unit,
    no_power,
    no_gain_forward,
    no_gain_backward,
    no_gain_to_collect,
    no_gain_to_distribute,
    no_d2e_share,
    no_d2e_power,
    no_d2e_gain,
)


def two_hop_case():
    """Cluster 1 goes 0 -> 2 -> 4 -> 0; the others use every device."""
    rng = np.random.default_rng(99)
    network = random_network(rng, CLUSTERS, DEVICES, BLOCKS)
    decision = random_decision(rng, network)
    decision["segments"][1] = [0, 4, 0, 3]
    decision["d2d_share"][1] = [0.23, 0, 0.37, 0, 0.31]
    return network, decision


@pytest.mark.parametrize("break_it", BREAKS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("empty_queues", [False, True])
@pytest.mark.usefixtures("x64")
def test_a_broken_message_breaks_its_cluster_alone(break_it, empty_queues):
    network, decision = two_hop_case()
    break_it(network, decision)
    if empty_queues:  # zero times infinity must not become a number, nor NaN
        network["control"]["energy_queue"] *= 0
        network["control"]["divergence_queue"] = 0.0
        network["control"]["v"] = 0.0
    cost = assert_equal_to_reference(network, decision)
    np.testing.assert_array_equal(np.isinf(cost["cluster_latency_s"]), [False, True, False])
    np.testing.assert_array_equal(np.isinf(cost["energy_j"]).all(axis=1), [False, True, False])
    assert np.isinf([cost["latency_s"], cost["divergence"], cost["objective"]]).all()


@pytest.mark.usefixtures("x64")
def test_a_silent_base_station_breaks_every_cluster():
    network, decision = two_hop_case()
    network["radio"]["bs_power_w"] = 0.0
    assert np.isinf(assert_equal_to_reference(network, decision)["cluster_latency_s"]).all()


@pytest.mark.usefixtures("x64")
def test_idle_nodes_need_no_share_no_gain_and_make_no_interference():
    network, decision = two_hop_case()
    before = flat(reference_cost(network, decision))
    decision["d2d_power_w"][1, [1, 3]] = 1e3
    network["radio"]["d2d_gain"][1, [1, 3]] = 0
    network["radio"]["d2d_gain"][1, :, [1, 3]] = 0
    after = flat(assert_equal_to_reference(network, decision))
    np.testing.assert_array_equal(before, after)


@pytest.mark.usefixtures("x64")
def test_a_cluster_that_sits_out_costs_nothing_and_weighs_nothing():
    network, decision = two_hop_case()
    decision["segments"][1] = 0
    decision["d2e_share"][1] = decision["d2e_power_w"][1] = 0
    decision["d2d_share"][1] = 0
    decision["d2d_power_w"][1] = 1e3
    cost = assert_equal_to_reference(network, decision)
    assert cost["absent"].tolist() == [False, True, False]
    assert cost["cluster_latency_s"][1] == 0
    assert not cost["energy_j"][1].any()
    lost = evaluated(as_problem(network), as_decision(decision)).loss_probability
    assert lost[1] == 0  # though a loss would be infinite for want of a share
    assert lost[0] > 0
    network["learning"]["cluster_weight"] *= [2.0, 7.0, 2.0]  # only those present count
    assert reference_cost(network, decision)["divergence"] == pytest.approx(cost["divergence"])
    assert_equal_to_reference(network, decision)


@pytest.mark.usefixtures("x64")
def test_a_round_without_clusters_is_free():
    network, decision = two_hop_case()
    decision["segments"][:] = 0
    cost = assert_equal_to_reference(network, decision)
    assert cost["absent"].all()
    assert cost["objective"] == cost["latency_s"] == cost["divergence"] == 0


# --- every input counts, in its own place -----------------------------------------------------

VERDICT_ONLY = {
    "workload.micro_batch_choices",
    "radio.d2e_power_max_w",
    "radio.d2d_power_max_w",
    "compute.memory_bytes",
}
INTEGERS = {"workload.batch": 48, "workload.local_steps": 5, "radio.harq_attempts": 2}


@cache
def base_case():
    rng = np.random.default_rng(2004)
    network = random_network(rng, CLUSTERS, DEVICES, BLOCKS)
    decision = random_decision(rng, network)
    decision["micro_batches"] = np.array([6, 2, 12])
    decision["segments"][0] = [2, 0, 4, 1]
    decision["d2d_share"][0] = [0.21, 0.33, 0, 0.15, 0.27]
    network["compute"]["memory_bytes"] *= 3
    return network, decision


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
        moved[index] = INTEGERS.get(leaf, value[index] * 1.37)
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
        cost = evaluated(as_problem(net), as_decision(decision))
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
    before = evaluated(as_problem(network), as_decision(decision)).objective
    for leaf, (name, value) in tight.items():
        section, key = leaf.split(".")
        changed = copy.deepcopy(network)
        changed[section][key] = value
        assert verdict(changed, decision) == {name} == reference_violations(changed, decision)
        assert evaluated(as_problem(changed), as_decision(decision)).objective == before


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


# --- under the transformations it is used with ------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_a_batch_of_rounds_costs_as_much_as_each():
    cases = [draw(seed) for seed in (0, 2, 4, 6)]
    pairs = [(as_problem(network), as_decision(decision)) for network, decision in cases]
    batch = jax.tree.map(lambda *leaf: jnp.stack(leaf), *pairs)
    costs = jax.jit(jax.vmap(evaluate))(*batch)
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
    cost = evaluated(as_problem(network), as_decision(decision))
    np.testing.assert_allclose(sum(cost.parts), cost.cluster_latency_s, 1e-12)
    decision["segments"][2] = 0
    fewer = evaluated(as_problem(network), as_decision(decision))
    decoder_s, fewer_s = cost.flows.forward_s[:, -1], fewer.flows.forward_s[:, -1]
    np.testing.assert_allclose(fewer_s[:2], decoder_s[:2], 1e-12)
    assert decoder_s[0] > 0


@pytest.mark.usefixtures("x64")
def test_flows_are_the_stages_of_a_local_step_in_order():
    network, decision = two_hop_case()
    decision["segments"][2] = 0
    cost = evaluated(as_problem(network), as_decision(decision))
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


def test_one_compilation_for_all_decisions():
    network, _ = base_case()
    once = jax.jit(lambda *arguments: evaluate(*arguments))
    for seed in range(3):
        decision = random_decision(np.random.default_rng(seed), network, skipped=seed)
        once(as_problem(network), as_decision(decision))
    assert once._cache_size() == 1
