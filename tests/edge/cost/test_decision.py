import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collapipe_jax.core.quantity import quantities
from collapipe_jax.edge.cost.chain import Chain
from collapipe_jax.edge.cost.decision import (
    Allocation,
    Decision,
    active_nodes,
    decision_allocation,
    make_decision,
    participates,
)


@given(st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=2, max_size=2))
def test_devices_with_blocks_are_active_and_so_is_their_control_unit(segments):
    segments = jnp.array(segments, jnp.int32)
    active = np.asarray(active_nodes(segments))
    for n, row in enumerate(segments):
        chain = (np.flatnonzero(row) + 1).tolist()
        assert np.flatnonzero(active[n]).tolist() == ([0, *chain] if chain else [])
        assert bool(participates(row)) == bool(chain)


def test_a_batch_axis_may_stand_in_front():
    segments = jnp.array([[[0, 2, 1], [0, 0, 0]], [[3, 0, 0], [1, 1, 1]]])
    assert active_nodes(segments).shape == (2, 2, 4)
    assert participates(segments).tolist() == [[True, False], [True, True]]


def test_a_decision_survives_its_allocation_and_idle_nodes_get_nothing():
    rng = np.random.default_rng(0)
    segments = jnp.array([[2, 0, 1], [0, 0, 0]], jnp.int32)
    active = active_nodes(segments)
    decision = Decision(
        segments=segments,
        micro_batches=jnp.array([4, 2], jnp.int32),
        d2d_share=np.where(active, rng.uniform(size=(2, 4)), 0.0),
        d2d_power_w=np.where(active, rng.uniform(size=(2, 4)), 0.0),
        d2e_share=np.array([0.7, 0.0]),
        d2e_power_w=np.array([0.2, 0.0]),
    )
    allocation = decision_allocation(decision)
    assert allocation.d2d_share.shape == (4, 2)
    idle_too = Allocation(*(jnp.where(leaf == 0, 9.0, leaf) for leaf in allocation))
    for given_allocation in (allocation, idle_too):
        made = make_decision(
            segments.T, decision.micro_batches, given_allocation, Chain(active.T).used
        )
        for name in quantities(Decision):
            value = getattr(decision, name)
            np.testing.assert_allclose(getattr(made, name), value, 1e-6, err_msg=name)
        assert made.segments.dtype == made.micro_batches.dtype == np.int32
