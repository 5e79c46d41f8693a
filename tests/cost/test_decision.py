import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collapipe_jax.cost.decision import active_nodes, next_active, participates

follow = jax.jit(lambda segments: next_active(active_nodes(segments)))


@given(st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=2, max_size=2))
def test_hops_visit_the_active_devices_in_order_and_come_home(segments):
    segments = np.array(segments, np.int32)
    active = np.asarray(active_nodes(segments))
    following = np.asarray(follow(segments))
    assert np.all((following >= 0) & (following <= 5))
    for n, row in enumerate(segments):
        chain = [k + 1 for k in range(5) if row[k]]
        assert np.flatnonzero(active[n]).tolist() == ([0, *chain] if chain else [])
        assert bool(participates(row)) == bool(chain)
        route, node = [], following[n, 0]
        while node != 0 and chain:
            route.append(node)
            node = following[n, node]
        assert route == chain


def test_a_batch_axis_may_stand_in_front():
    segments = jnp.array([[[0, 2, 1], [0, 0, 0]], [[3, 0, 0], [1, 1, 1]]])
    assert next_active(active_nodes(segments)).shape == (2, 2, 4)
    assert participates(segments).tolist() == [[True, False], [True, True]]
    np.testing.assert_array_equal(next_active(active_nodes(segments))[0, 0], [2, 2, 3, 0])
