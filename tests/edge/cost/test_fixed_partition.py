"""The first stage of a round: idle nodes hold harmless numbers, batches are many networks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.random_problems import random_rounds, to_batch_last

from collapipe_jax.edge.cost.decision import Allocation
from collapipe_jax.edge.cost.evaluate import round_terms
from collapipe_jax.edge.cost.fixed_partition import fix_decision

pytestmark = pytest.mark.usefixtures("x64", "batch_axis_last")
CLUSTERS, DEVICES, BLOCKS, BATCH = 3, 4, 6, 12


def draw():
    """Networks with idle devices, in which cluster 1 sits out of every other one."""
    return random_rounds(
        BATCH, CLUSTERS, DEVICES, BLOCKS, lambda index: (1,) if index % 2 else (), seed=4
    )


def fixed_of(problem, decision):
    return fix_decision(problem, decision)


def allocation_of(fixed):
    ones = jnp.ones(fixed.active.shape)
    return Allocation(0.2 * ones, 0.1 * ones, 0.3 * ones[0], 0.2 * ones[0])


fix = jax.jit(fixed_of)


def test_a_batch_of_networks_is_fixed_like_each():
    rounds = draw()
    together = fix(*to_batch_last(rounds))
    each = jax.jit(jax.vmap(fixed_of, out_axes=-1))(*rounds)
    for got, wanted in zip(jax.tree.leaves(together), jax.tree.leaves(each), strict=True):
        np.testing.assert_allclose(np.broadcast_to(got, wanted.shape), wanted, rtol=1e-12)


def test_idle_nodes_compute_and_send_nothing_and_keep_every_term_finite():
    problem, decision = to_batch_last(draw())
    # What an idle node never uses may be dead.
    computes = decision.segments > 0
    in_use = jnp.concatenate([jnp.ones_like(computes[:, :1]), computes], axis=1)
    alive = in_use[:, :, None] & in_use[:, None]
    gain = jnp.where(alive, problem.radio.d2d_gain, 0.0)
    problem = problem.replace(radio=problem.radio.replace(d2d_gain=gain))
    fixed = fix(problem, decision)
    idle = ~np.asarray(fixed.active)
    assert idle.any()
    for nothing in (
        fixed.hop_bits,
        fixed.hop_overhead_s,
        fixed.constant_j,
        fixed.compute.forward_s,
    ):
        assert np.all(np.asarray(nothing)[idle] == 0)
        assert np.all(np.asarray(nothing)[~idle] > 0)
    assert np.all(np.asarray(fixed.move_bits)[:, idle[1:]] == 0)
    assert np.all(np.asarray(fixed.hop_gain)[:, idle] == 1)
    assert np.all(np.asarray(fixed.move_gain)[:, idle[1:]] == 1)
    sits_out = idle[0]
    assert sits_out.any()
    for nothing in (
        fixed.uplink_bits,
        fixed.downlink_bits,
        fixed.upload_bits,
        fixed.download_bits,
        fixed.downlink_hazard,
    ):
        assert np.all(np.asarray(nothing)[sits_out] == 0)
        assert np.all(np.asarray(nothing)[~sits_out] > 0)
    terms = jax.jit(round_terms)(fixed, allocation_of(fixed))
    for part in (*terms.parts, terms.cluster_latency_s, terms.links.hazard, terms.cluster_cost):
        assert np.all(np.isfinite(part))
        assert np.all(np.asarray(part)[sits_out] == 0)
    for energy_j in terms.message_j:
        assert np.all(np.isfinite(energy_j))


def test_no_cluster_interferes_with_itself():
    fixed = fix(*to_batch_last(draw()))
    for n in range(CLUSTERS):
        assert np.all(fixed.cross_gain[:, n, :, n] == 0)
        others = np.delete(np.asarray(fixed.cross_gain[:, n]), n, axis=2)
        assert np.all(others > 0)
    turned = np.moveaxis(np.asarray(fixed.cross_gain), (0, 1), (2, 3))
    np.testing.assert_array_equal(fixed.cross_gain_to, turned)
