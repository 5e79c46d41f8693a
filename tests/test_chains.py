"""Neighbours along a chain of active nodes."""

import numpy as np

from collapipe_jax.scheduling.chains import at_next_active, from_previous_active


def test_next_and_previous_active_nodes_against_a_loop():
    rng = np.random.default_rng(5)
    active = rng.uniform(size=(5, 2, 30)) < 0.6
    active[0] = active[1:].any(axis=0)
    values = rng.normal(size=active.shape).astype(np.float32)
    following = np.asarray(at_next_active(values, active))
    previous = np.asarray(from_previous_active(values, active))
    for case in np.ndindex(active.shape[1:]):
        column, on = values[:, *case], active[:, *case]
        chain = np.flatnonzero(on)
        for node in range(5):
            after = [k for k in range(node + 1, 5) if on[k]]
            assert following[node, *case] == column[after[0] if after else 0]
        wanted = np.zeros(5)
        wanted[chain] = column[np.roll(chain, 1)]
        np.testing.assert_array_equal(previous[:, *case], wanted)
