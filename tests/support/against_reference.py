"""Costs of the package against the reference, and the cases on which they are compared."""

from functools import cache

import numpy as np

from support.compiled import evaluate
from support.random_networks import random_decision, random_network
from support.reference_cost import NUMBERS, reference_cost
from support.structs import as_decision, as_problem

CLUSTERS, DEVICES, BLOCKS = 3, 4, 7
COMPARED = (*NUMBERS, "absent")


def assert_equal_to_reference(network, decision, rtol=1e-9):
    cost = evaluate(as_problem(network), as_decision(decision))
    expected = reference_cost(network, decision)
    for name in COMPARED:
        got = np.asarray(getattr(cost, name))
        assert np.shape(got) == np.shape(expected[name]), name
        np.testing.assert_allclose(got, expected[name], rtol, err_msg=name)
    return expected


def flat(cost):
    """A reference cost as one vector."""
    return np.concatenate([np.ravel(cost[name]).astype(float) for name in COMPARED])


def two_hop_case():
    """Cluster 1 goes 0 -> 2 -> 4 -> 0; the others use every device."""
    rng = np.random.default_rng(99)
    network = random_network(rng, CLUSTERS, DEVICES, BLOCKS)
    decision = random_decision(rng, network)
    decision["segments"][1] = [0, 4, 0, 3]
    decision["d2d_share"][1] = [0.23, 0, 0.37, 0, 0.31]
    return network, decision


@cache
def base_case():
    """Every device but the second of cluster 0 is used; not to be changed."""
    rng = np.random.default_rng(2004)
    network = random_network(rng, CLUSTERS, DEVICES, BLOCKS)
    decision = random_decision(rng, network)
    decision["micro_batches"] = np.array([6, 2, 12])
    decision["segments"][0] = [2, 0, 4, 1]
    decision["d2d_share"][0] = [0.21, 0.33, 0, 0.15, 0.27]
    network["compute"]["memory_bytes"] *= 3
    return network, decision
