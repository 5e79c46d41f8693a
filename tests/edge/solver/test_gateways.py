"""What clusters start with that change their gateway."""

import jax.numpy as jnp
import numpy as np
import pytest
from support.compiled import in_numpy
from support.random_problems import random_problems, to_batch_last

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.edge.cost.decision import Routes
from collapipe_jax.edge.cost.fixed_partition import fix_decision
from collapipe_jax.edge.cost.static_pipeline import static_pipelines
from collapipe_jax.edge.network.channel import bit_time_s, uplink_sinr
from collapipe_jax.edge.solver import gateways
from collapipe_jax.edge.solver.candidates import candidate_of, with_candidate_axis
from collapipe_jax.edge.solver.joint_search import _coupling_at, optimise
from collapipe_jax.edge.solver.limits import to_allocation
from collapipe_jax.edge.solver.neighbours import neighbour_candidates

pytestmark = pytest.mark.usefixtures("batch_axis_last")
CLUSTERS, DEVICES, BLOCKS, BATCH = 2, 3, 5, 6
uplinks_at = in_numpy(gateways.uplinks_at)


@pytest.fixture(scope="module")
def problem():
    return to_batch_last(random_problems(BATCH, CLUSTERS, DEVICES, BLOCKS, seed=12))


def test_only_clusters_that_change_their_gateway_have_another_uplink(problem):
    rng = np.random.default_rng(0)
    own = gateways.Uplinks(
        share=np.log(rng.uniform(0.05, 0.5, (CLUSTERS, BATCH))).astype(np.float32),
        power=np.log(rng.uniform(0.05, 0.5, (CLUSTERS, BATCH))).astype(np.float32),
    )
    before, after = rng.integers(0, DEVICES + 1, (2, CLUSTERS, BATCH))
    found = uplinks_at(problem, own, before, after)
    moves = before != after
    assert np.any(moves)
    np.testing.assert_array_equal(found.power, np.where(moves, 0.0, own.power))
    np.testing.assert_array_equal(found.share[~moves], own.share[~moves])

    @in_numpy
    def bit_s(gateway):
        radio, share = problem.radio, jnp.exp(own.share)
        gain = jnp.take_along_axis(jnp.swapaxes(radio.d2e_gain, 0, 1), gateway[None], axis=0)[0]
        sinr = uplink_sinr(radio, radio.d2e_power_max_w, gain, share)
        return bit_time_s(radio, share * radio.d2e_bandwidth_hz, sinr)

    share = np.minimum(np.exp(own.share) * np.sqrt(bit_s(after) / bit_s(before)), 1.0)
    np.testing.assert_allclose(np.exp(found.share[moves]), share[moves], rtol=1e-5)


@pytest.mark.slow
def test_other_gateways_are_neighbours_though_they_cost_more_at_first(problem):
    count, others = 8, 3

    @quick_jit
    def look(problem):
        gateway = np.zeros((CLUSTERS, BATCH), np.int32)
        routes = Routes(gateway=gateway, broadcast=np.ones(BATCH, np.float32))
        problem = problem.replace(routes=routes)
        decision = static_pipelines(problem, 4)
        own = candidate_of(fix_decision(problem, decision), decision)
        own, fixed, evaluation = optimise(problem, with_candidate_axis(own), 5)
        coupling = _coupling_at(fixed, to_allocation(fixed, own.logs), evaluation)
        return neighbour_candidates(problem, own, fixed, coupling, count, gateways=True)

    found = look(problem)
    # Others make room for the gateways.
    finite = np.isfinite(found.cost)
    np.testing.assert_array_equal(finite.sum(axis=1), count)
    assert np.all(found.gateway[:, :count] == 0)
    assert np.all(finite[:, : count - others])
    moved = np.sort(found.gateway[:, count:], axis=1)
    assert np.all(moved > 0)
    assert np.all(np.diff(moved, axis=1) > 0)
    for part in (found.cost[:, : count - others], found.cost[:, count:]):
        assert np.all(np.diff(part, axis=1) >= 0)
