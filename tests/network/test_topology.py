"""Positions are uniform over their discs, distances floored and symmetric."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import kstest

from collapipe_jax.network.topology import (
    TopologyParams,
    d2e_distance_m,
    node_distance_m,
    sample_topology,
)

PARAMS = TopologyParams(
    clusters=3,
    devices=4,
    cell_radius_m=400.0,
    cluster_radius_m=40.0,
    d2e_min_distance_m=35.0,
    d2d_min_distance_m=3.0,
)


def draw(realisations, params=PARAMS):
    keys = jax.random.split(jax.random.key(0), realisations)
    return np.asarray(jax.jit(jax.vmap(lambda key: sample_topology(key, params)))(keys))


def assert_uniform(points, inner, outer):
    """Areas and angles of points of a ring are uniform and independent."""
    area = (np.sum(points**2, axis=-1) - inner**2) / (outer**2 - inner**2)
    turn = np.arctan2(points[..., 1], points[..., 0]) / (2 * np.pi) + 0.5
    assert kstest(area.ravel(), "uniform").pvalue > 0.01
    assert kstest(turn.ravel(), "uniform").pvalue > 0.01
    assert abs(np.corrcoef(area.ravel(), turn.ravel())[0, 1]) < 0.05


def test_control_units_fill_the_cell_and_devices_their_cluster():
    position_m = draw(1000)
    assert position_m.shape == (1000, 3, 5, 2)
    assert_uniform(position_m[:, :, 0], 35, 400)
    assert_uniform(position_m[:, :, 1:] - position_m[:, :, :1], 3, 40)


def test_clusters_and_devices_stand_independently():
    position_m = draw(1000)
    offset = position_m[:, :, 1:] - position_m[:, :, :1]
    for a, b in ((position_m[:, 0, 0], position_m[:, 1, 0]), (offset[:, 0, 0], offset[:, 0, 1])):
        assert abs(np.corrcoef(a[:, 0], b[:, 0])[0, 1]) < 0.1
    assert len(np.unique(position_m[..., 0])) > 0.999 * position_m[..., 0].size


def test_distances_are_euclidean_above_their_floors():
    position_m = np.array([[[3.0, 4.0], [60.0, 80.0]], [[60.0, 81.0], [0.0, -300.0]]])
    np.testing.assert_allclose(
        d2e_distance_m(jnp.array(position_m), PARAMS), [[35, 100], [100.8018, 300]], 1e-5
    )
    got = np.asarray(node_distance_m(jnp.array(position_m), PARAMS))
    flat = position_m.reshape(4, 2)
    for a in range(4):
        for b in range(4):
            expected = max(np.hypot(*(flat[a] - flat[b])), 3.0)
            np.testing.assert_allclose(got[a, b], expected, 1e-5)
    np.testing.assert_array_equal(got, got.T)


def test_distances_have_finite_slopes_where_nodes_meet():
    here = jnp.zeros((2, 2, 2))
    slope = jax.grad(lambda p: jnp.sum(node_distance_m(p, PARAMS)))(here)
    assert np.all(np.isfinite(slope))


def test_a_tour_walks_to_the_nearest_device_left():
    drawn, toured = draw(50), draw(50, PARAMS.replace(order="tour"))
    np.testing.assert_array_equal(drawn[:, :, 0], toured[:, :, 0])
    for before, after in zip(drawn.reshape(-1, 5, 2), toured.reshape(-1, 5, 2), strict=True):
        here, left = before[0], list(before[1:])
        for found in after[1:]:
            nearest = min(range(len(left)), key=lambda i: np.linalg.norm(left[i] - here))
            here = left.pop(nearest)
            np.testing.assert_allclose(found, here, atol=1e-3)
