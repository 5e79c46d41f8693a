"""Messages that never arrive, nodes that idle and clusters that sit out."""

import numpy as np
import pytest
from support.against_reference import assert_equal_to_reference, flat, two_hop_case
from support.compiled import evaluate
from support.reference_cost import reference_cost
from support.structs import as_decision, as_problem


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
    lost = evaluate(as_problem(network), as_decision(decision)).loss_probability
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
