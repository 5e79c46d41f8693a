"""Partitions of all clusters from candidates of each, against every combination there is."""

import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compiled import in_numpy
from support.random_problems import random_problems, to_batch_last

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.edge.cost.objective import UnitCosts
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.solver import joint_search
from collapipe_jax.edge.solver.allocate import allocate_batch
from collapipe_jax.edge.solver.candidates import at_falling_powers, starting_candidates
from collapipe_jax.edge.solver.joint_search import SearchConfig, optimise, propose_partitions
from collapipe_jax.edge.solver.smooth_objective import Coupling, coupled_latency_cost

pytestmark = pytest.mark.usefixtures("batch_axis_last")
CLUSTERS, DEVICES, BLOCKS, BATCH = 2, 3, 5, 16


@pytest.mark.parametrize("clusters", [2, 3])
def test_the_best_combinations_are_those_of_all(clusters):
    """Latency is the largest of the clusters', other costs add up."""
    rng = np.random.default_rng(clusters)
    kept, batch, count = 5, 30, 4
    latency_s = rng.uniform(1, 10, (clusters, kept, batch))
    others = rng.uniform(0, 10, (clusters, kept, batch))
    latency_s[1, 2, 0] = others[0, 1, 1] = np.inf
    runs = np.ones((clusters, 1, batch), bool)
    runs[1, :, 3] = False  # sits out in one problem
    coupling = Coupling(
        interference_w=None,
        interference_cost_per_w=None,
        latency_cost_per_s=jnp.asarray(rng.uniform(0.1, 0.4, (clusters, 1, batch))),
        round_s=jnp.full((1, batch), 4.0),
        bandwidth_cost=None,
    )
    costs = UnitCosts(jnp.full((1, batch), 1.3), None, None)
    own = others + np.asarray(coupled_latency_cost(coupling, costs, jnp.asarray(latency_s)))
    chain = SimpleNamespace(members=jnp.asarray(runs)[None])
    fixed = SimpleNamespace(costs=costs, chain=chain)
    refined = SimpleNamespace(cluster_latency_s=jnp.asarray(latency_s), objective=jnp.asarray(own))
    are_own = np.broadcast_to(np.arange(kept)[:, None] == kept - 1, own.shape) | ~runs

    @quick_jit
    def choices():
        return joint_search._best_choices(fixed, coupling, refined, jnp.asarray(are_own), count)

    found = np.asarray(choices())
    assert found.shape == (clusters, count, batch)
    for case in range(batch):

        def terms(choice, case=case):
            used = [(n, j) for n, j in enumerate(choice) if runs[n, 0, case]]
            slowest = max(latency_s[n, j, case] for n, j in used)
            return slowest, sum(others[n, j, case] for n, j in used)

        def is_incumbent(choice, case=case):
            return all(are_own[n, j, case] for n, j in enumerate(choice))

        every = itertools.product(range(kept), repeat=clusters)
        pareto, least = [], np.inf  # none is as fast and cheaper otherwise
        for (slowest, rest), incumbent in sorted(
            (terms(each), is_incumbent(each)) for each in every
        ):
            if rest < least and np.isfinite(slowest):
                least = rest
                if not incumbent:
                    pareto.append(1.3 * slowest + rest)
        combinations = found[:, :, case].T
        got = [np.dot([1.3, 1.0], terms(choice)) for choice in combinations]
        wanted = sorted(pareto)[:count]
        alone = np.argmin(np.where(runs[..., case], own[..., case], 0.0), axis=1)
        if is_incumbent(alone) or np.array_equal(alone, combinations[0]):
            np.testing.assert_allclose(got[: len(wanted)], wanted, rtol=1e-5)
        else:
            np.testing.assert_allclose(got[: len(wanted[:-1])], wanted[:-1], rtol=1e-5)
            np.testing.assert_array_equal(combinations[-1], alone)


def test_copies_of_the_own_partition_count_once():
    objective = jnp.array([[3.0, 2.0, 1.0, 4.0], [jnp.nan, 5.0, 6.0, 7.0]])[..., None]
    are_own = jnp.array([[True, False, True, True], [True, True, False, True]])[..., None]
    got = joint_search._own_once(objective, are_own)[..., 0]
    np.testing.assert_array_equal(got, [[np.inf, 2, 1, np.inf], [np.inf, 5, 6, np.inf]])


@pytest.fixture(scope="module")
def problem():
    def roomy(_, __, network):
        network["compute"]["memory_bytes"] *= 3.0

    return random_problems(BATCH, CLUSTERS, DEVICES, BLOCKS, roomy, seed=9)


CONFIG = SearchConfig(candidates=4, cluster_candidates=6, cluster_steps=10)


# In NumPy: numbers of weak types would be compiled for apart.
@in_numpy
def start(problem):
    static = jax.vmap(lambda one: static_pipeline(one, 6), -1, -1)(problem)
    return static, starting_candidates(problem, at_falling_powers(static, CONFIG.candidates))


optimised = in_numpy(optimise)
proposals = in_numpy(propose_partitions, static_argnums=2)


def searched(problem):
    static, candidates = start(problem)
    first = optimised(problem, candidates, 40)
    proposed = proposals(problem, first, CONFIG)
    return static, first, proposed, optimised(problem, proposed, 40)


@pytest.fixture(scope="module")
def found(problem, batch_axis_last):
    return searched(to_batch_last(problem))


@pytest.mark.slow
def test_the_incumbent_stays_and_others_are_proposed_that_pay(found):
    static, first, proposed, second = found
    assert proposed.segments.shape == (DEVICES, CLUSTERS, CONFIG.candidates, BATCH)
    np.testing.assert_array_equal(proposed.segments[..., 0, :], first.candidate.segments)
    np.testing.assert_array_equal(
        proposed.logs.d2d_power[..., 0, :], first.candidate.logs.d2d_power
    )
    np.testing.assert_array_equal(np.sum(proposed.segments, axis=0), BLOCKS)
    differs = np.any(
        np.asarray(proposed.segments) != np.asarray(proposed.segments)[..., :1, :], axis=(0, 1)
    ) | np.any(
        np.asarray(proposed.micro_batches) != np.asarray(proposed.micro_batches)[..., :1, :], axis=0
    )
    assert np.mean(differs[1:]) > 0.8
    before, after = jax.device_get((first.evaluation.objective, second.evaluation.objective))
    assert np.all(after <= before * (1 + 1e-5))
    assert np.median(after / before) < 0.95
    np.testing.assert_array_equal(first.candidate.segments, np.swapaxes(static.segments, 0, 1))


@pytest.mark.slow
def test_the_best_of_the_starts_is_the_incumbent(problem, found):
    static, incumbent, *_ = found
    allocated = quick_jit(lambda problem, start: allocate_batch(problem, start, 40).objective)
    first = np.asarray(allocated(to_batch_last(problem), static))
    best = np.asarray(incumbent.evaluation.objective)
    assert np.all(best <= first * (1 + 1e-5))
    assert np.any(best < first * (1 - 1e-4))
