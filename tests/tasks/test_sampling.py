import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collapipe_jax.errors import InputError
from collapipe_jax.tasks.sampling import permutation_of_epoch, sample_round

CLUSTERS = (np.array([4, 8, 15, 16, 23]), np.array([0, 1]), np.arange(100, 137))


def stream(seed, clusters, rounds, steps, batch):
    """What each cluster reads over the rounds, one after the other, [N, rounds * H * B]."""
    drawn = [sample_round(seed, clusters, t, steps, batch) for t in range(rounds)]
    return np.concatenate(drawn).transpose(1, 0, 2).reshape(len(clusters), -1)


def test_shape_and_type():
    indices = sample_round(0, CLUSTERS, 3, 4, 6)
    assert indices.shape == (4, 3, 6)
    assert indices.dtype == np.int32


@given(
    st.integers(0, 2**64 - 1),
    st.lists(st.integers(1, 12), min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(1, 5),
)
def test_every_pass_uses_each_sample_once(seed, sizes, steps, batch):
    clusters = [np.arange(size) + 100 * n for n, size in enumerate(sizes)]
    rounds = -(-3 * max(sizes) // (steps * batch))  # three passes of the largest
    drawn = stream(seed, clusters, rounds, steps, batch)
    for row, indices in zip(drawn, clusters, strict=True):
        passes = len(row) // len(indices)
        assert passes >= 3
        table = row[: passes * len(indices)].reshape(passes, -1)
        assert np.array_equal(np.sort(table, axis=1), np.tile(indices, (passes, 1)))


def test_the_stream_does_not_depend_on_how_it_is_cut():
    whole = stream(7, CLUSTERS, 1, 1, 60)
    assert np.array_equal(stream(7, CLUSTERS, 5, 3, 4), whole)
    assert np.array_equal(stream(7, CLUSTERS, 30, 1, 2), whole)


def test_a_round_far_ahead_needs_no_history():
    step = sample_round(1, CLUSTERS, 10**9, 2, 8)
    for n, indices in enumerate(CLUSTERS):
        assert set(step[:, n].ravel()) <= set(indices)


def test_passes_clusters_and_seeds_differ():
    base = permutation_of_epoch(0, 0, 0, 50)
    assert np.array_equal(base, permutation_of_epoch(0, 0, 0, 50))
    for seed, cluster, epoch in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        assert not np.array_equal(base, permutation_of_epoch(seed, cluster, epoch, 50))


def test_orders_are_uniform():
    counts = np.zeros((4, 4))
    for epoch in range(2000):
        counts[np.arange(4), permutation_of_epoch(3, 1, epoch, 4)] += 1
    assert counts == pytest.approx(500, abs=100)  # five standard deviations


def test_a_cluster_keeps_its_stream_when_others_change():
    alone = sample_round(2, CLUSTERS[:1], 1, 2, 3)
    assert np.array_equal(sample_round(2, CLUSTERS, 1, 2, 3)[:, :1], alone)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, CLUSTERS, 0, 1, 1), r"seed = -1"),
        ((2**64, CLUSTERS, 0, 1, 1), r"seed"),
        ((0, CLUSTERS, -1, 1, 1), "round_index = -1"),
        ((0, CLUSTERS, 0, 0, 1), r"training\.local_steps = 0"),
        ((0, CLUSTERS, 0, 1, 0), r"training\.batch = 0"),
        ((0, (*CLUSTERS, np.array([], int)), 0, 1, 1), "cluster = 3: the cluster has no samples"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        sample_round(*arguments)
