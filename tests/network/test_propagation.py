"""Uniform positions, floored distances, path loss in closed form, shadowing by its moments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest
from support.tiny_system import PROPAGATION

from collapipe_jax.network.propagation import (
    PATH_LOSS_LAWS,
    TopologyParams,
    d2e_distance_m,
    large_scale_gain,
    node_distance_m,
    sample_shadowing,
    sample_topology,
    symmetric,
)

CELL = TopologyParams(
    clusters=3,
    devices=4,
    cell_radius_m=400.0,
    cluster_radius_m=40.0,
    d2e_min_distance_m=35.0,
    d2d_min_distance_m=3.0,
)


def positions(realisations, params=CELL):
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
    position_m = positions(1000)
    assert position_m.shape == (1000, 3, 5, 2)
    assert_uniform(position_m[:, :, 0], 35, 400)
    assert_uniform(position_m[:, :, 1:] - position_m[:, :, :1], 3, 40)


def test_clusters_and_devices_stand_independently():
    position_m = positions(1000)
    offset = position_m[:, :, 1:] - position_m[:, :, :1]
    for a, b in ((position_m[:, 0, 0], position_m[:, 1, 0]), (offset[:, 0, 0], offset[:, 0, 1])):
        assert abs(np.corrcoef(a[:, 0], b[:, 0])[0, 1]) < 0.1
    assert len(np.unique(position_m[..., 0])) > 0.999 * position_m[..., 0].size


def test_distances_are_euclidean_above_their_floors():
    position_m = np.array([[[3.0, 4.0], [60.0, 80.0]], [[60.0, 81.0], [0.0, -300.0]]])
    np.testing.assert_allclose(
        d2e_distance_m(jnp.array(position_m), CELL), [[35, 100], [100.8018, 300]], 1e-5
    )
    got = np.asarray(node_distance_m(jnp.array(position_m), CELL))
    flat = position_m.reshape(4, 2)
    for a in range(4):
        for b in range(4):
            expected = max(np.hypot(*(flat[a] - flat[b])), 3.0)
            np.testing.assert_allclose(got[a, b], expected, 1e-5)
    np.testing.assert_array_equal(got, got.T)


def test_distances_have_finite_slopes_where_nodes_meet():
    here = jnp.zeros((2, 2, 2))
    slope = jax.grad(lambda p: jnp.sum(node_distance_m(p, CELL)))(here)
    assert np.all(np.isfinite(slope))


def test_a_tour_walks_to_the_nearest_device_left():
    drawn, toured = positions(50), positions(50, CELL.replace(order="tour"))
    np.testing.assert_array_equal(drawn[:, :, 0], toured[:, :, 0])
    for before, after in zip(drawn.reshape(-1, 5, 2), toured.reshape(-1, 5, 2), strict=True):
        here, left = before[0], list(before[1:])
        for found in after[1:]:
            nearest = min(range(len(left)), key=lambda i: np.linalg.norm(left[i] - here))
            here = left.pop(nearest)
            np.testing.assert_allclose(found, here, atol=1e-3)


TOPOLOGY = TopologyParams(
    clusters=2,
    devices=2,
    cell_radius_m=400.0,
    cluster_radius_m=40.0,
    d2e_min_distance_m=35.0,
    d2d_min_distance_m=3.0,
)
# Two nodes 20 m apart, a third 140 m away, a fourth beside the first, ... all over 35 m out.
POSITION_M = np.array(
    [[[100.0, 0.0], [120.0, 0.0], [100.0, 140.0]], [[-200.0, 50.0], [-200.0, 55.0], [0.0, -300.0]]]
)


@jax.jit
def sampled(keys, params):
    position_m = jnp.array(POSITION_M)

    def one(key):
        shadowing = sample_shadowing(key, position_m, TOPOLOGY, params)
        return large_scale_gain(position_m, shadowing, TOPOLOGY, params)

    return jax.vmap(one)(keys)


def draw(params, realisations=4000):
    keys = jax.random.split(jax.random.key(1), realisations)
    return jax.tree.map(np.asarray, sampled(keys, params))


@pytest.mark.parametrize(
    ("name", "distance_m", "expected_db"),
    [
        ("macro_2ghz", 1000, 128.1),
        ("macro_2ghz", 100, 90.5),
        ("d2d_outdoor", 1000, 148),
        ("d2d_outdoor", 10, 68),
        # 41 + 20 log10(2 / 5) + 22.7 log10 d_m
        ("winner_b1_sight", 50, 41 + 20 * np.log10(0.4) + 22.7 * np.log10(50)),
        # (4 pi d f / c)^2 at 2 GHz
        ("free_space_2ghz", 100, 20 * np.log10(4 * np.pi * 100 * 2e9 / 299792458)),
    ],
)
def test_path_loss_laws(name, distance_m, expected_db):
    got = PATH_LOSS_LAWS[name](jnp.float32(distance_m))
    assert got == pytest.approx(expected_db, abs=0.01)


def test_without_shadowing_a_gain_is_its_path_loss():
    still = draw(PROPAGATION.replace(d2e_shadowing_db=0.0, d2d_shadowing_db=0.0))
    for n, i in np.ndindex(2, 3):
        d_km = np.hypot(*POSITION_M[n, i]) / 1000
        loss_db = 128.1 + 37.6 * np.log10(d_km)
        np.testing.assert_allclose(still.d2e[0, n, i], 10 ** (-loss_db / 10), 1e-4)
        for m, j in np.ndindex(2, 3):
            d_km = max(np.hypot(*(POSITION_M[n, i] - POSITION_M[m, j])), 3.0) / 1000
            loss_db = 148 + 40 * np.log10(d_km)
            np.testing.assert_allclose(still.node[0, n, i, m, j], 10 ** (-loss_db / 10), 1e-4)


def test_shadowing_has_its_deviation_and_its_correlation_over_distance():
    gain = draw(PROPAGATION)
    still = draw(PROPAGATION.replace(d2e_shadowing_db=0.0, d2d_shadowing_db=0.0))
    shadow_db = 10 * np.log10(gain.d2e / still.d2e).reshape(-1, 6)
    np.testing.assert_allclose(shadow_db.mean(axis=0), 0, atol=0.5)
    np.testing.assert_allclose(shadow_db.std(axis=0), 8, rtol=0.05)
    flat = POSITION_M.reshape(6, 2)
    distance_m = np.linalg.norm(flat[:, None] - flat[None], axis=-1)
    np.testing.assert_allclose(np.corrcoef(shadow_db.T), np.exp(-distance_m / 50), atol=0.06)


def test_shadowing_between_nodes_is_reciprocal_and_independent():
    gain = draw(PROPAGATION)
    still = draw(PROPAGATION.replace(d2e_shadowing_db=0.0, d2d_shadowing_db=0.0))
    node = gain.node.reshape(-1, 6, 6)
    np.testing.assert_allclose(node, node.swapaxes(1, 2), rtol=1e-5)
    shadow_db = 10 * np.log10(node / still.node.reshape(-1, 6, 6))
    links = shadow_db[:, *np.triu_indices(6, 1)]
    np.testing.assert_allclose(links.std(axis=0), 4, rtol=0.05)
    np.testing.assert_allclose(np.corrcoef(links.T), np.eye(15), atol=0.07)


def test_symmetric_mirrors_the_upper_half_with_trailing_axes():
    matrix = np.random.default_rng(0).normal(size=(4, 4, 2)).astype(np.float32)
    got = np.asarray(symmetric(jnp.array(matrix)))
    np.testing.assert_array_equal(got, got.swapaxes(0, 1))
    np.testing.assert_array_equal(got[np.triu_indices(4)], matrix[np.triu_indices(4)])
