"""Gateways that DSSRA decides, beside its published answer and beside brute force."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compilations import compiles
from support.compiled import evaluate
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
def both(problem):
    wide, published = dssra_wide(problem, config=LIGHT), dssra(problem, config=LIGHT)
    cost = evaluate(problem, wide.decision)
    return wide, published, cost, is_feasible(problem, wide.decision)


@pytest.fixture(scope="module")
def found(networks):
    return jax.device_get(both(networks))


def test_decisions_are_feasible_and_cost_what_they_say(found):
    wide, _, cost, feasible = found
    assert np.all(feasible)
    np.testing.assert_allclose(wide.objective, cost.objective, rtol=1e-5)
    finite = np.isfinite(wide.objective)
    assert np.mean(finite) > 0.9
    assert np.all((wide.lower_bound <= wide.objective * (1 + 1e-5))[finite])


def test_no_answer_is_worse_than_the_published_one_and_many_are_better(found):
    wide, published, *_ = found
    finite = np.isfinite(published.objective)
    ratio = wide.objective[finite] / published.objective[finite]
    assert np.all(ratio <= 1 + 1e-5)
    assert np.median(ratio) < 0.95
    gateways = wide.decision.routes.gateway
    assert 0.1 < np.mean(gateways == 0) < 0.9


@quick_jit
@jax.vmap
def with_each_gateway(problem):
    """Objective of the best decision for every choice of gateways, by broadcast."""
    nodes = range(DEVICES + 1)
    every = jnp.array(list(itertools.product(nodes, repeat=CLUSTERS)))

    def decide(gateway):
        routed = problem.replace(routes=Routes(gateway=gateway, broadcast=jnp.ones(())))
        found = dssra(routed, config=LIGHT)
        return found.objective, is_feasible(problem, found.decision)

    return jax.lax.map(decide, every)


def test_gateways_are_as_good_as_the_best_of_all_by_brute_force(networks, found):
    """Of a light search, which may miss a network that fades."""
    few = jax.tree.map(lambda leaf: leaf[:9], networks)
    objective, feasible = with_each_gateway(few)
    best = np.min(np.where(feasible & np.isfinite(objective), objective, np.inf), axis=1)
    ratio = found[0].objective[:9] / best
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


def test_other_networks_are_not_compiled_again(networks, found):
    with compiles(both, 0):
        turned, *_ = both(jax.tree.map(lambda leaf: leaf[::-1], networks))
    for one, other in zip(jax.tree.leaves(turned), jax.tree.leaves(found[0]), strict=True):
        np.testing.assert_array_equal(one[::-1], other)


@pytest.mark.parametrize(
    "name",
    [
        "static_pipeline",
        "titanic_pipelined",
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
    radio = problem.radio.replace(d2e_gain=jnp.asarray(gain, problem.radio.d2e_gain.dtype))
    problem = problem.replace(radio=radio)
    assert likeliest_routes(problem).gateway.tolist() == [2, 3]
    memory_bytes = problem.compute.memory_bytes.at[1, 2].set(0.0)
    gone = problem.replace(compute=problem.compute.replace(memory_bytes=memory_bytes))
    assert likeliest_routes(gone).gateway.tolist()[0] == 2
    assert likeliest_routes(gone).gateway.tolist()[1] != 3
