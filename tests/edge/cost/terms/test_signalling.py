"""Reports and grants in the cost of a round."""

import jax
import numpy as np
import pytest
from support.against_reference import base_case
from support.compiled import (
    by_sender,
    client_links,
    control_unit_floor_j,
    decide,
    evaluate,
    least_latency_s,
    replica_links,
)
from support.random_networks import signalling_section
from support.random_problems import with_ends
from support.structs import as_problem

from collapipe_jax.edge.cost.problem import Signalling

SECTION = signalling_section()


def signalled(problem):
    numbers = {name: np.asarray(each) for name, each in SECTION.items()}
    return problem.replace(signalling=Signalling(**numbers))


@pytest.mark.parametrize(
    "name",
    [
        *("vanilla_fl", "splitfed", "hierarchical_fl"),
        pytest.param("control_unit_fl", marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("x64")
def test_clients_report_for_all_nodes_that_they_speak_for(name):
    plain = with_ends(as_problem(base_case()[0]))
    decision = decide(name, plain, shares="equal", split="even")
    plain, decision = jax.device_get((plain, decision))
    before, after = evaluate(plain, decision), evaluate(signalled(plain), decision)
    trains, links = decision.samples > 0, client_links(plain, decision)
    nodes, inside_s = 1, 0.0
    if name == "hierarchical_fl":
        replicas = replica_links(plain, decision)
        nodes = 1 + trains.sum(axis=1, keepdims=True)
        inside_s = SECTION["report_bits"] * replicas.up_bit_s
        inside_s = np.sum(trains * (inside_s + SECTION["grant_bits"] * replicas.down_bit_s), 1)
        inside_s = inside_s[:, None]
    added_s = nodes * SECTION["report_bits"] * links.uplink_bit_s
    added_s = added_s + nodes * SECTION["grant_bits"] * links.downlink_bit_s + inside_s
    slower_s = sum(after.clients) - sum(before.clients)
    np.testing.assert_allclose(slower_s, np.where(trains, added_s, 0.0), rtol=1e-9)
    power_w = decision.d2e_power_w / plain.radio.amplifier_efficiency
    sent_j = nodes * SECTION["report_bits"] * links.uplink_bit_s * power_w
    more_j = by_sender(after.energy_j - before.energy_j, decision)
    if name == "hierarchical_fl":
        down_s = np.sum(trains * SECTION["grant_bits"] * replicas.down_bit_s, axis=1)
        drawn_w = plain.radio.d2d_power_max_w[:, :1] / plain.radio.amplifier_efficiency
        sent_j = sent_j + drawn_w * down_s[:, None]
    sends = decision.d2e_share > 0
    np.testing.assert_allclose(more_j, np.where(sends, sent_j, 0.0), rtol=1e-7)


@pytest.mark.usefixtures("x64")
def test_floors_foresee_signals():
    plain = as_problem(base_case()[0])
    problem = signalled(plain)
    assert np.all(control_unit_floor_j(problem) > control_unit_floor_j(plain))
    assert least_latency_s(problem) > least_latency_s(plain)
