"""DSSRA on hundreds of networks at once, the ugly ones included."""

import jax
import numpy as np
import pytest
from random_problems import pick, random_problems

from collapipe_jax.cost.round import price
from collapipe_jax.scheduling.baselines import static_pipeline
from collapipe_jax.scheduling.dssra import dssra
from collapipe_jax.scheduling.feasibility import can_run, is_feasible

CLUSTERS, DEVICES, BLOCKS = 3, 3, 5
NETWORKS = 240
KINDS = ("plain", "fades", "away", "nobody", "no queues", "huge queues", "v = 0", "one device")
traces = []


def ugly(index, rng, network):
    kind = KINDS[index % len(KINDS)]
    memory, control = network["compute"]["memory_bytes"], network["control"]
    radio = network["radio"]
    if kind == "fades":
        for name in ("d2e_gain", "d2d_gain", "cross_gain"):
            radio[name] *= 10.0 ** -rng.uniform(0, 4, radio[name].shape)
    if kind == "away":
        memory[rng.uniform(size=memory.shape) < 0.5] = 0
    if kind == "nobody":
        memory[rng.permutation(CLUSTERS)[: rng.integers(1, CLUSTERS + 1)]] = 0
    if kind == "no queues":
        control["energy_queue"] *= 0
        control["divergence_queue"] = 0.0
    if kind == "huge queues":
        control["energy_queue"] *= 1e6
        control["divergence_queue"] = 1e6
    if kind == "v = 0":
        control["v"] = 0.0
    if kind == "one device":
        memory *= 0
        memory[np.arange(CLUSTERS), rng.integers(0, DEVICES, CLUSTERS)] = 1e12


def solve(problem):
    traces.append(1)
    decision = dssra(problem)
    return decision, price(problem, decision), price(problem, static_pipeline(problem, 8))


@pytest.fixture(scope="module")
def solve_all():
    return jax.jit(jax.vmap(solve))


@pytest.fixture(scope="module")
def solved(solve_all):
    problem = random_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS, ugly)
    return problem, *solve_all(problem)


def of_kind(values, kind):
    return np.asarray(values)[KINDS.index(kind) :: len(KINDS)]


def test_feasible_everywhere(solved):
    problem, decision, _, _ = solved
    assert np.all(jax.jit(jax.vmap(is_feasible))(problem, decision))


def test_finite_everywhere(solved):
    _, decision, cost, _ = solved
    for tree in (decision, cost._replace(stages=0, parts=0)):
        for leaf in jax.tree.leaves(tree):
            assert np.all(np.isfinite(leaf))


def test_never_worse_than_the_static_pipeline(solved):
    _, _, cost, static = solved
    found, fixed = np.asarray(cost.objective), np.asarray(static.objective)
    assert np.all(found <= fixed * (1 + 1e-5))
    assert np.median(of_kind(found, "plain") / of_kind(fixed, "plain")) < 0.9


def test_clusters_sit_out_only_when_they_must(solved):
    problem, _, cost, _ = solved
    runs = np.asarray(jax.vmap(can_run)(problem))
    np.testing.assert_array_equal(~np.asarray(cost.absent), runs)
    assert np.any(~runs.any(axis=1))  # networks in which nobody can run are among them
    nobody = ~runs.any(axis=1)
    assert np.all(np.asarray(cost.objective)[nobody] == 0)
    assert np.all(np.asarray(cost.energy_j)[~runs] == 0)


def test_one_device_takes_all(solved):
    problem, decision, _, _ = solved
    there = of_kind(problem.compute.memory_bytes, "one device") > 0
    np.testing.assert_array_equal(of_kind(decision.segments, "one device"), BLOCKS * there)


def test_without_queues_power_is_free_and_latency_is_all(solved):
    problem, _, cost, static = solved
    assert np.all(
        of_kind(cost.latency_s, "no queues") <= of_kind(static.latency_s, "no queues") * (1 + 1e-5)
    )
    worth = of_kind(problem.control.v / problem.control.reference_latency_s, "no queues")
    np.testing.assert_allclose(
        of_kind(cost.objective, "no queues"), worth * of_kind(cost.latency_s, "no queues"), 1e-5
    )


def test_one_compilation_for_all_networks_and_queues(solve_all, solved):
    before = len(traces)
    other = random_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS, ugly, seed=1)
    _, cost, static = solve_all(other)
    assert len(traces) == before
    assert np.all(np.asarray(cost.objective) <= np.asarray(static.objective) * (1 + 1e-5))


def test_a_cluster_alone_is_decided_as_beside_clusters_that_cannot_run(solve_all):
    """A single network of a single cluster, against a batch of three with two away."""

    def two_away(index, rng, network):
        network["compute"]["memory_bytes"] *= 1e3
        network["compute"]["memory_bytes"][1:] = 0

    problem = random_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS, two_away, seed=2)
    _, cost, _ = solve_all(problem)
    decide = jax.jit(lambda one: solve(one)[:2])
    for index in range(4):
        decision, own = decide(first_cluster(pick(problem, index)))
        assert decision.segments.shape == (1, DEVICES)
        assert float(own.objective) == pytest.approx(float(cost.objective[index]), rel=2e-3)


def first_cluster(problem):
    """The first cluster as a network of its own, with its part of the edge server."""
    radio, compute, control = problem.radio, problem.compute, problem.control
    gains = {name: getattr(radio, name)[:1] for name in ("d2e_gain", "d2d_gain")}
    limits = {name: getattr(radio, name)[:1] for name in ("d2e_power_max_w", "d2d_power_max_w")}
    nodes = ("flops_per_s", "joules_per_flop", "memory_bytes")
    return problem.replace(
        radio=radio.replace(cross_gain=radio.cross_gain[:1, :, :1], **gains, **limits),
        compute=compute.replace(
            es_flops_per_s=compute.es_flops_per_s / CLUSTERS,
            **{name: getattr(compute, name)[:1] for name in nodes},
        ),
        control=control.replace(
            energy_budget_j=control.energy_budget_j[:1], energy_queue=control.energy_queue[:1]
        ),
        learning=problem.learning.replace(cluster_weight=problem.learning.cluster_weight[:1]),
    )
