"""Gateways that DSSRA decides, beside its published answer and beside brute force."""

import itertools

import jax
import numpy as np
import pytest
from support.compilations import compiles
from support.random_problems import pick, random_problems

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.edge.cost.decision import Routes
from collapipe_jax.edge.cost.feasibility import is_feasible
from collapipe_jax.edge.policies.dssra import SearchConfig, dssra, dssra_wide
from collapipe_jax.edge.policies.registry import make_policy
from collapipe_jax.edge.solver.gateways import likeliest_routes

CLUSTERS, DEVICES, BLOCKS = 2, 3, 5
NETWORKS = 24
LIGHT = SearchConfig(
    allocation_steps=(6, 6, 6, 12), candidates=3, cluster_candidates=4, cluster_steps=5
)


def ugly(index, rng, network):
    """Fades, absent devices, clusters that nobody can run, or that have no block to hold."""
    network["workload"]["server_blocks"] = BLOCKS if index % 4 == 3 else 0
    if index % 3 == 1:
        for name in ("d2e_gain", "d2d_gain", "cross_gain"):
            network["radio"][name] *= 10.0 ** -rng.uniform(0, 4, network["radio"][name].shape)
    if index % 3 == 2:
        network["compute"]["memory_bytes"][rng.uniform(size=(CLUSTERS, DEVICES)) < 0.4] = 0


@pytest.fixture(scope="module")
def networks():
    return random_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS, ugly, seed=77)


@quick_jit
@jax.vmap
def with_routes(problem, routes):
    """The answer of DSSRA with given gateways, and whether it is feasible."""
    found = dssra(problem.replace(routes=routes), config=LIGHT)
    return found, is_feasible(problem, found.decision)


@pytest.mark.slow
def test_the_routes_of_control_units_are_those_of_the_published_method(networks):
    gateway, broadcast = np.zeros((NETWORKS, CLUSTERS), np.int32), np.zeros(NETWORKS, np.float32)
    published = with_routes(networks, Routes(gateway=gateway, broadcast=broadcast))[0]
    alone = quick_jit(jax.vmap(lambda problem: dssra(problem, config=LIGHT)))(networks)
    np.testing.assert_allclose(alone.objective, published.objective, rtol=1e-3)


@pytest.mark.slow
def test_gateways_are_as_good_as_the_best_of_all_by_brute_force(networks):
    """Of a light search, which may miss a network that fades."""
    found = quick_jit(jax.vmap(lambda problem: dssra_wide(problem, config=LIGHT)))(networks)
    every = np.array(list(itertools.product(range(DEVICES + 1), repeat=CLUSTERS)), np.int32)
    few = 9
    pairs = [(network, gateway) for network in range(few) for gateway in every]
    objectives = []
    for start in range(0, len(pairs), NETWORKS):
        rows, gateways = zip(*pairs[start : start + NETWORKS], strict=True)
        routes = Routes(gateway=np.array(gateways), broadcast=np.ones(NETWORKS, np.float32))
        solution, feasible = jax.device_get(with_routes(pick(networks, np.array(rows)), routes))
        finite = feasible & np.isfinite(solution.objective)
        objectives.append(np.where(finite, solution.objective, np.inf))
    best = np.concatenate(objectives).reshape(few, -1).min(axis=1)
    ratio = found.objective[:few] / best
    assert np.median(ratio) < 1.001
    assert np.sum(ratio > 1.01) <= 1


@pytest.mark.slow
def test_a_lone_network_is_not_compiled_again(networks):
    decide = quick_jit(make_policy("dssra_wide", 4))
    key = jax.random.key(0)
    decide(key, pick(networks, 0))
    with compiles(decide, 0):
        decision = decide(key, pick(networks, 1))
    assert decision.routes.gateway.shape == (CLUSTERS,)


@pytest.mark.parametrize(
    "name",
    [
        "static_pipeline",
        pytest.param("titanic_pipelined", marks=pytest.mark.slow),
        pytest.param("alternating", marks=pytest.mark.slow),
    ],
)
def test_a_rule_gives_other_pipelines_gateways(networks, name):
    @quick_jit
    @jax.vmap
    def decide(problem):
        decision = make_policy(name, 4, routes="gateways")(jax.random.key(0), problem)
        return decision, likeliest_routes(problem), is_feasible(problem, decision)

    decision, routes, feasible = decide(networks)
    assert np.all(feasible)
    np.testing.assert_array_equal(decision.routes.gateway, routes.gateway)
    assert np.all(np.asarray(decision.routes.broadcast) == 1)


def test_the_likeliest_gateway_has_the_shortest_ways():
    """Only one node of a cluster has a link to the base station, and it is there."""
    problem = pick(random_problems(1, CLUSTERS, DEVICES, BLOCKS, seed=3), 0)
    gain = np.full((CLUSTERS, DEVICES + 1), 1e-17)
    gain[0, 2], gain[1, 3] = 1e-9, 1e-9
    near = quick_jit(likeliest_routes)
    radio = problem.radio.replace(d2e_gain=np.asarray(gain, np.float32))
    problem = problem.replace(radio=radio)
    assert near(problem).gateway.tolist() == [2, 3]
    memory_bytes = np.array(problem.compute.memory_bytes)
    memory_bytes[1, 2] = 0.0
    gone = problem.replace(compute=problem.compute.replace(memory_bytes=memory_bytes))
    first, second = near(gone).gateway.tolist()
    assert first == 2
    assert second != 3
