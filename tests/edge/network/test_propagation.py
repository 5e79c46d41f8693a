"""Uniform positions, floored distances, path loss in closed form, shadowing by its moments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest
from support.compiled import in_numpy
from support.tiny_system import PROPAGATION

from collapipe_jax.edge.network import propagation
from collapipe_jax.edge.network.propagation import (
    PATH_LOSS_LAWS,
    Shadowing,
    TopologyParams,
    sample_topology,
)

d2e_distance_m = in_numpy(propagation.d2e_distance_m)
large_scale_gain = in_numpy(propagation.large_scale_gain)
node_distance_m = in_numpy(propagation.node_distance_m)
sample_shadowing = in_numpy(propagation.sample_shadowing)
symmetric = in_numpy(propagation.symmetric)

CELL = TopologyParams(
    clusters=3,
    devices=4,
    cell_radius_m=400.0,
    cluster_radius_m=40.0,
    d2e_min_distance_m=35.0,
    d2d_min_distance_m=3.0,
)


@jax.jit
def topologies(keys, params):
    return jax.vmap(lambda key: sample_topology(key, params))(keys)


def positions(realisations, params=CELL):
    keys = jax.random.split(jax.random.key(0), realisations)
    return np.asarray(topologies(keys, params))


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
    np.testing.assert_allclose(d2e_distance_m(position_m, CELL), [[35, 100], [100.8018, 300]], 1e-5)
    got = np.asarray(node_distance_m(position_m, CELL))
    flat = position_m.reshape(4, 2)
    for a in range(4):
        for b in range(4):
            expected = max(np.hypot(*(flat[a] - flat[b])), 3.0)
            np.testing.assert_allclose(got[a, b], expected, 1e-5)
    np.testing.assert_array_equal(got, got.T)


def test_distances_have_finite_slopes_where_nodes_meet():
    here = np.zeros((2, 2, 2), np.float32)
    slope = jax.jit(jax.grad(lambda p: jnp.sum(node_distance_m(p, CELL))))(here)
    assert np.all(np.isfinite(slope))


def test_a_tour_walks_to_the_nearest_device_left():
    drawn, toured = positions(1000)[:50], positions(1000, CELL.replace(order="tour"))[:50]
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
    position_m = np.float32(POSITION_M)

    def one(key):
        shadowing = sample_shadowing(key, position_m, TOPOLOGY, params)
        return large_scale_gain(position_m, shadowing, TOPOLOGY, params)

    return jax.vmap(one)(keys)


def draw(params, realisations=4000):
    keys = jax.random.split(jax.random.key(1), realisations)
    return jax.tree.map(np.asarray, sampled(keys, params))


def test_without_shadowing_a_gain_is_its_path_loss():
    still = draw(PROPAGATION.replace(d2e_shadowing_db=0.0, d2d_shadowing_db=0.0))
    for n, i in np.ndindex(2, 3):
        d_km = np.hypot(*POSITION_M[n, i]) / 1000
        loss_db = 128.1 + 37.6 * np.log10(d_km)
        np.testing.assert_allclose(still.d2e[0, n, i], 10 ** (-loss_db / 10), 1e-4)
        for m, j in np.ndindex(2, 3):
            d_km = max(np.hypot(*(POSITION_M[n, i] - POSITION_M[m, j])), 3.0) / 1000
            loss_db = max(148 + 40 * np.log10(d_km), 98.47 + 20 * np.log10(d_km))
            np.testing.assert_allclose(still.node[0, n, i, m, j], 10 ** (-loss_db / 10), 1e-4)


@pytest.mark.parametrize("law", PATH_LOSS_LAWS)
def test_no_law_gains_more_than_free_space_however_near(law):
    """On a desk, links of 0.1 m to 3 m; sight and shadowing are switched off or the best."""
    near = TOPOLOGY.replace(d2e_min_distance_m=0.1, d2d_min_distance_m=0.1)
    position_m = np.float32(
        [[[0.0, 0.05], [0.3, 0.0], [0.0, 3.0]], [[1.0, 0.0], [100.0, 0.0], [0, 9.0]]]
    )
    params = PROPAGATION.replace(d2e_path_loss=law, d2d_path_loss=law)
    still = Shadowing(*(2 * (np.zeros((2, 3)), np.zeros((6, 6)))))
    got = large_scale_gain(position_m, still, near, params)
    flat = np.asarray(position_m).reshape(6, 2)
    between_m = np.maximum(np.linalg.norm(flat[:, None] - flat[None], axis=-1), 0.1)
    centre_m = np.maximum(np.linalg.norm(flat, axis=-1), 0.1)
    for gain, distance_m in ((got.node, between_m), (got.d2e, centre_m)):
        most = (299792458 / (4 * np.pi * 2e9 * distance_m.ravel())) ** 2
        assert np.all(np.asarray(gain).ravel() <= most * 1.002)


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


WITH_SIGHT = PROPAGATION.replace(
    d2e_path_loss="uma_2ghz",
    d2d_path_loss="tr36843_outdoor",
    d2e_shadowing_db=0.0,
    d2d_shadowing_db=0.0,
)


def test_links_are_in_sight_with_their_chance_independently_and_in_both_directions():
    gain = draw(WITH_SIGHT)
    node = gain.node.reshape(-1, 6, 6)
    np.testing.assert_allclose(node, node.swapaxes(1, 2), rtol=1e-5)
    links = np.triu_indices(6, 1)
    flat = POSITION_M.reshape(6, 2)
    between_m = np.linalg.norm(flat[:, None] - flat[None], axis=-1)[links]
    from_mast_m = np.linalg.norm(flat, axis=-1)
    for got, law, d_m in (
        (node[:, *links], PATH_LOSS_LAWS["tr36843_outdoor"], between_m),
        (gain.d2e.reshape(-1, 6), PATH_LOSS_LAWS["uma_2ghz"], from_mast_m),
    ):
        loss_db, d_m = -10 * np.log10(got), jnp.array(d_m, jnp.float32)
        free_db = 38.47 + 20 * np.log10(d_m)
        in_sight, out_of_sight = (
            np.maximum(one(d_m), free_db) for one in (law.in_sight, law.out_of_sight)
        )
        seen = loss_db < (in_sight + out_of_sight) / 2
        expected = np.where(seen, in_sight, out_of_sight)
        np.testing.assert_allclose(loss_db, expected, atol=1e-3)
        seen = seen[:, in_sight < out_of_sight]  # both are free space up to 8 m
        chance = np.asarray(law.sight_probability(d_m))[in_sight < out_of_sight]
        np.testing.assert_allclose(seen.mean(axis=0), chance, atol=0.035)
        varied = seen[:, seen.std(axis=0) > 0]
        np.testing.assert_allclose(np.corrcoef(varied.T), np.eye(varied.shape[1]), atol=0.07)


def test_a_law_with_sight_leaves_the_shadowing_of_a_key():
    key, position_m = jax.random.key(5), np.float32(POSITION_M)
    with_sight = PROPAGATION.replace(d2d_path_loss="tr36843_outdoor")
    plain = sample_shadowing(key, position_m, TOPOLOGY, PROPAGATION)
    other = sample_shadowing(key, position_m, TOPOLOGY, with_sight)
    assert plain.d2e_sight is plain.node_sight is other.d2e_sight is None
    np.testing.assert_array_equal(plain.node_db, other.node_db)
    np.testing.assert_array_equal(plain.d2e_db, other.d2e_db)


def test_symmetric_mirrors_the_upper_half_with_trailing_axes():
    matrix = np.random.default_rng(0).normal(size=(4, 4, 2)).astype(np.float32)
    got = np.asarray(symmetric(matrix))
    np.testing.assert_array_equal(got, got.swapaxes(0, 1))
    np.testing.assert_array_equal(got[np.triu_indices(4)], matrix[np.triu_indices(4)])
