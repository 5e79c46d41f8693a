"""Gateways and broadcast of parameters, beside the reference that is written with loops."""

import copy

import numpy as np
import pytest
from support.against_reference import CLUSTERS, DEVICES, assert_equal_to_reference, base_case, flat
from support.compiled import evaluate
from support.random_networks import rows_section, secure_section, signalling_section
from support.reference_cost import reference_cost, reference_violations
from support.reference_links import senders
from support.structs import as_decision, as_problem

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.edge.cost.feasibility import violations

LAWS = [{}, {"duplex": "half"}]
# Reliable links have tests of their own, and their rates do not depend on the gateway.
LAWS += [pytest.param({"retransmissions": "reliable"}, marks=pytest.mark.slow)]
names_of_broken = quick_jit(violations)


def routed(gateway, broadcast=0, laws=None, **sections):
    """A case whose clusters have gateways, with shares and powers for all that send."""
    network, decision = copy.deepcopy(base_case())
    network["radio"].update(laws or {})
    network["compute"]["receive_power_w"] = 0.6
    network.update(sections)
    decision["routes"] = {"gateway": np.array(gateway), "broadcast": np.array(broadcast)}
    rng = np.random.default_rng(1)
    for n in range(CLUSTERS):
        active = np.isin(np.arange(DEVICES + 1), senders(decision, n))
        power_w = network["radio"]["d2d_power_max_w"][n] * rng.uniform(0.2, 1.0, DEVICES + 1)
        decision["d2d_power_w"][n] = np.where(active, power_w, 0.0)
        decision["d2d_share"][n] = np.where(active, rng.uniform(0.05, 0.2, DEVICES + 1), 0.0)
    return network, decision


@pytest.mark.parametrize("broadcast", [0, 1])
@pytest.mark.parametrize("gateway", [(0, 0, 0), (4, 1, 2), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("laws", LAWS, ids=str)
@pytest.mark.usefixtures("x64")
def test_costs_equal_the_reference(gateway, broadcast, laws):
    """Device 2 of the first cluster holds no blocks, 4 is the last of every chain."""
    assert_equal_to_reference(*routed(gateway, broadcast, laws))


SECTIONS = {
    "secure_aggregation": secure_section(),
    "signalling": signalling_section(),
    "embedding_rows": rows_section(),
}


@pytest.mark.parametrize(
    "names", [tuple(SECTIONS), pytest.param(("embedding_rows",), marks=pytest.mark.slow)], ids=str
)
@pytest.mark.usefixtures("x64")
def test_terms_of_a_round_go_over_the_gateway(names):
    network, decision = routed((2, 3, 4), 1, **{name: SECTIONS[name] for name in names})
    with_terms = assert_equal_to_reference(network, decision)
    for name in names:
        del network[name]
    assert not np.allclose(flat(reference_cost(network, decision)), flat(with_terms))


@pytest.mark.usefixtures("x64")
def test_control_units_as_gateways_cost_as_without_routes():
    network, decision = routed((0, 0, 0))
    with_routes = evaluate(as_problem(network), as_decision(decision))
    del decision["routes"]
    without = evaluate(as_problem(network), as_decision(decision))
    for name in ("latency_s", "energy_j", "divergence", "objective", "cluster_latency_s"):
        np.testing.assert_array_equal(getattr(with_routes, name), getattr(without, name))


@pytest.mark.usefixtures("x64")
def test_a_broadcast_is_never_longer_for_the_worst_link():
    """It takes as long as that link's parameters would on the whole band."""
    network, decision = routed((0, 1, 2))
    own = evaluate(as_problem(network), as_decision(decision)).parts.download_s
    decision["routes"]["broadcast"] = np.array(1)
    together = evaluate(as_problem(network), as_decision(decision)).parts.download_s
    np.testing.assert_allclose(together, together[0], rtol=1e-12)
    assert together[0] < np.max(own)
    on_whole_band = np.asarray(own) * decision["d2e_share"]
    np.testing.assert_allclose(together[0], np.max(on_whole_band), rtol=1e-12)


@pytest.mark.parametrize("gateway", [(4, 1, 2), (2, 3, 4)], ids=str)
@pytest.mark.usefixtures("x64")
def test_broken_limits_equal_the_reference(gateway):
    network, decision = routed(gateway)

    def broken():
        found = names_of_broken(as_problem(network), as_decision(decision))
        return {name for name, flag in found.items() if flag}

    # A last device that is the gateway has no hop, and so no share.
    assert broken() == reference_violations(network, decision) == {"d2d_share"}
    for n in range(CLUSTERS):
        last = max(np.flatnonzero(decision["segments"][n])) + 1
        if last == gateway[n]:
            decision["d2d_share"][n, last] = 0.0
        if decision["segments"][n][gateway[n] - 1] == 0:
            decision["d2d_share"][n, gateway[n]] = 0.0
    assert broken() == reference_violations(network, decision) == set()
    network["compute"]["memory_bytes"][1][gateway[1] - 1] = 0.0
    assert broken() == reference_violations(network, decision) == {"gateway", "memory"}
