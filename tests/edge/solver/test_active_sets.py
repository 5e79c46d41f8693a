"""Sets worth trying, and their links at full power against the channel's own."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.random_allocations import random_coupling, random_logs
from support.random_networks import signalling_section
from support.random_problems import random_problems, to_batch_last

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.edge.cost.decision import Allocation
from collapipe_jax.edge.cost.evaluate import round_terms
from collapipe_jax.edge.cost.fixed_partition import fix_partition
from collapipe_jax.edge.cost.link_quality import link_sinrs
from collapipe_jax.edge.cost.problem import Signalling
from collapipe_jax.edge.solver.active_sets import (
    LEVELS,
    active_sets,
    candidate_sets,
    cost_at,
    linear_costs,
    node_costs,
    rank_sets,
    step_costs,
)

pytestmark = pytest.mark.usefixtures("double")
CLUSTERS, DEVICES, BLOCKS, BATCH = 2, 3, 5, 12
NODES = DEVICES + 1


def test_all_subsets_of_few_devices():
    sets = np.asarray(candidate_sets(jnp.zeros((2, 4, 3, 5))))
    assert sets.shape == (4, 3, 15, 5)
    for n, case in np.ndindex(3, 5):
        assert len({tuple(row) for row in sets[:, n, :, case].T}) == 15
    assert sets.any(axis=0).all()


def test_the_best_devices_first_of_many():
    preference = np.random.default_rng(0).uniform(size=(2, 8, 3, 4))
    sets = np.asarray(candidate_sets(jnp.asarray(preference)))
    assert sets.shape == (8, 3, 16, 4)
    for order, size, n, case in itertools.product(range(2), range(1, 9), range(3), range(4)):
        best = np.argsort(preference[order, :, n, case])[:size]
        assert set(np.flatnonzero(sets[:, n, order * 8 + size - 1, case])) == set(best)


def with_set_axis(tree):
    return jax.tree.map(lambda leaf: leaf[..., None, :], tree)


@pytest.fixture(scope="module")
def some(double):
    """A problem and a coupling for sets, and the sets themselves."""
    rng = np.random.default_rng(1)
    problem = to_batch_last(random_problems(BATCH, CLUSTERS, DEVICES, BLOCKS, seed=3))
    coupling = random_coupling(rng, np.full(BATCH, 20.0), CLUSTERS, DEVICES, BATCH)
    members = candidate_sets(jnp.zeros((1, DEVICES, CLUSTERS, BATCH)))
    return *with_set_axis((problem, coupling)), members


@quick_jit
def sets_of(problem, coupling, members):
    return active_sets(problem, coupling, node_costs(problem, coupling), members)


@quick_jit
def sinrs_at_full_power(problem, coupling, members):
    """SINRs of hops on the whole band, from the round's own stages."""
    fixed = fix_partition(problem, members.astype(float), jnp.full(members.shape[1:], 2.0))
    limit_w = jnp.swapaxes(problem.radio.d2d_power_max_w, 0, 1)
    power_w = jnp.broadcast_to(limit_w, fixed.active.shape)
    one = jnp.ones_like(power_w)
    allocation = Allocation(one, power_w, one[0], one[0])
    return link_sinrs(fixed, allocation, jnp.broadcast_to(coupling.interference_w, one.shape)).hop


def test_links_of_sets_at_full_power_are_those_of_the_round(some):
    found = sets_of(*some)
    wanted = np.asarray(sinrs_at_full_power(*some))
    active = np.broadcast_to(found.chain.active, wanted.shape)
    np.testing.assert_allclose(np.asarray(found.full_sinr)[active], wanted[active], rtol=1e-12)
    np.testing.assert_array_equal(np.asarray(found.full_sinr)[~active], 1.0)
    assert np.all(np.asarray(found.chain.active)[0])


def test_more_power_is_faster_and_loses_less(some):
    found = sets_of(*some)
    active = np.asarray(found.chain.active)
    assert found.bit_s.shape == found.hazard.shape == (len(LEVELS), *active.shape)
    for falling in (found.bit_s, found.hazard):
        falling = np.asarray(falling)
        assert np.all(np.diff(falling, axis=0) >= 0)  # levels go down
        assert np.all(falling[:, ~active] == 0)
        assert np.all(falling[:, active] > 0)


@quick_jit
def ranked(problem, coupling, members, allocation):
    nodes = node_costs(problem, coupling)
    sets = active_sets(problem, coupling, nodes, members)
    runs = jnp.ones((CLUSTERS, 1, BATCH), bool)
    step = step_costs(problem, coupling, allocation, runs, jnp.full((1, BATCH), 3.0))
    return rank_sets(problem, nodes, sets, step), step


def test_ranked_powers_are_of_the_levels_and_fall_as_energy_gets_dear(some):
    problem, coupling, members = some
    nothing = jnp.zeros((NODES, CLUSTERS, 1, BATCH))
    power_w = problem.radio.d2e_power_max_w
    allocation = Allocation(nothing, nothing, jnp.full_like(power_w, 0.5), power_w)
    found, step = ranked(problem, coupling, members, allocation)
    assert np.isin(found.power, LEVELS).all()
    assert np.all(np.isfinite(found.cost))
    control = problem.control
    dear = control.replace(energy_queue=1e3 * control.energy_queue)
    thrifty, _ = ranked(problem.replace(control=dear), coupling, members, allocation)
    assert np.mean(thrifty.power) < np.mean(found.power)
    free = control.replace(energy_queue=0.0 * control.energy_queue)
    silent = coupling._replace(interference_cost_per_w=nothing)
    spending, _ = ranked(problem.replace(control=free), silent, members, allocation)
    active = np.asarray(found.chain.active)
    assert np.all(np.asarray(spending.power)[active] == LEVELS[0])
    # Blocks split at will: rates of the devices add up.
    rate = np.sum(np.asarray(members) / np.asarray(step.block_s), axis=0)
    np.testing.assert_allclose(found.balanced_s, BLOCKS / rate, rtol=1e-12)


def test_segments_cost_what_the_round_says_when_updates_are_short_and_signals_are_long(some):
    """A report takes as long as its bits of a block, which has fewer of them on its way up."""
    problem, count = some[0], 3.0
    bits = {name: jnp.asarray(number) for name, number in signalling_section().items()}
    work = problem.workload.replace(update_ratio=jnp.asarray(0.29))
    problem = problem.replace(workload=work, signalling=Signalling(**bits))
    logs = random_logs(np.random.default_rng(4), CLUSTERS, DEVICES, 1, BATCH, spread=1.0)
    allocation = jax.tree.map(jnp.exp, logs)
    one = np.ones((DEVICES, CLUSTERS, 1, BATCH))
    segments = np.array([2.0, 1.0, 2.0])[:, None, None, None] * one

    @quick_jit
    def both(problem, segments):
        micro_batches = jnp.full((CLUSTERS, 1, BATCH), count)
        with_one = fix_partition(problem, jnp.asarray(one), micro_batches, terms=())
        stage_s = with_one.compute.forward_s[1:]
        waits = problem.workload.local_steps * (count - 1.0) * jnp.ones((1, BATCH))
        terms = round_terms(with_one, allocation)
        linear = linear_costs(problem, with_one, terms, stage_s, waits)
        exact = round_terms(fix_partition(problem, segments, micro_batches), allocation)
        return cost_at(problem, linear, segments), exact

    (latency_s, cost), exact = both(problem, segments)
    np.testing.assert_allclose(latency_s, exact.cluster_latency_s, rtol=1e-9)
    np.testing.assert_allclose(cost, exact.cluster_cost, rtol=1e-9)
