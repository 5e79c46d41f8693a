import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.tasks.sampling import (
    permutation_of_epoch,
    sample_round,
    sample_round_by_length,
    split_dirichlet,
    split_iid,
    split_natural,
    split_samples,
)


def assert_partition(parts, count, minimum):
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(count))
    for part in parts:
        assert len(part) >= minimum
        assert np.all(np.diff(part) > 0)


@given(st.integers(0, 10), st.integers(1, 8), st.integers(1, 4), st.integers(0, 60))
def test_iid_partitions_evenly(seed, clusters, minimum, extra):
    count = clusters * minimum + extra
    parts = split_iid(seed, count, clusters)
    assert_partition(parts, count, minimum)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@given(
    st.integers(0, 10),
    st.integers(1, 8),
    st.integers(1, 4),
    st.lists(st.integers(-2, 5), max_size=80),
    st.sampled_from([0.001, 0.05, 1.0, 100.0, 1e9]),
)
def test_dirichlet_partitions_and_leaves_no_cluster_short(seed, clusters, minimum, labels, alpha):
    labels = np.array(labels + [0] * clusters * minimum)
    parts = split_dirichlet(seed, labels, clusters, alpha, minimum)
    assert_partition(parts, len(labels), minimum)


def label_shares(parts, labels):
    """Share of each label held by each cluster, [N, labels]."""
    counts = np.array([np.bincount(labels[p], minlength=labels.max() + 1) for p in parts])
    return counts / counts.sum(axis=0)


def test_concentration_sets_the_skew():
    labels = np.repeat(np.arange(6), 500)
    skew = {
        alpha: np.mean(
            [label_shares(split_dirichlet(s, labels, 4, alpha), labels).max(0) for s in range(20)]
        )
        for alpha in (0.01, 1.0, 1e6)
    }
    assert skew[0.01] > 0.9  # each label almost whole in one cluster
    assert skew[0.01] > skew[1.0] > skew[1e6]
    assert skew[1e6] == pytest.approx(0.25, abs=0.005)


def test_shares_have_the_mean_and_variance_of_the_dirichlet_law():
    # share of one cluster: mean 1/N, variance (1/N)(1 - 1/N) / (N alpha + 1)
    labels = np.repeat(np.arange(1000), 100)
    shares = label_shares(split_dirichlet(0, labels, 4, 0.5), labels)
    assert shares.mean(axis=1) == pytest.approx(0.25, abs=0.03)
    assert shares.var(axis=1) == pytest.approx(0.25 * 0.75 / 3, rel=0.15)


def test_samples_of_a_label_are_dealt_at_random():
    # by index order the first cluster would hold the first samples
    parts = split_dirichlet(0, np.zeros(1000, int), 2, 1e6)
    assert 400 < np.median(parts[0]) < 600


def test_seeds_matter_and_repeat():
    labels = np.arange(200) % 5
    one, again, other = (split_dirichlet(seed, labels, 3, 0.5) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@given(
    st.integers(0, 10),
    st.integers(1, 3),
    st.lists(st.integers(1, 30), min_size=3, max_size=6),
)
def test_natural_keeps_groups_whole_and_within_grahams_bound(seed, clusters, sizes):
    groups = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    parts = split_natural(seed, groups, clusters)
    assert_partition(parts, len(groups), 1)
    assert sum(len(np.unique(groups[part])) for part in parts) == len(sizes)
    layouts = itertools.product(range(clusters), repeat=len(sizes))
    best = min(max(np.bincount(owners, weights=sizes)) for owners in layouts)
    assert max(len(part) for part in parts) <= best * (4 / 3 - 1 / (3 * clusters)) + 1e-9


def test_natural_puts_the_largest_group_first():
    # sizes 6 5 4 3 2 on two clusters: 6 | 5, 6 | 5 4, 6 3 | 5 4, then 2 on either
    groups = np.repeat([4, 2, 7, 1, 9], [6, 5, 4, 3, 2])
    for seed in range(5):
        parts = [set(groups[part].tolist()) - {9} for part in split_natural(seed, groups, 2)]
        assert sorted(map(sorted, parts)) == [[1, 4], [2, 7]]


def test_natural_breaks_ties_by_seed():
    groups = np.repeat(np.arange(6), 10)
    splits = {tuple(tuple(p) for p in split_natural(seed, groups, 3)) for seed in range(20)}
    assert len(splits) > 10
    assert all(len(part) == 20 for split in splits for part in split)
    # the larger of two groups goes to either cluster
    owners = {len(split_natural(seed, np.array([0, 0, 1]), 2)[0]) for seed in range(20)}
    assert owners == {1, 2}


def test_natural_refuses_what_whole_groups_cannot_serve():
    with pytest.raises(InputError, match=r"network\.clusters = 3: 2 groups cannot go whole"):
        split_natural(0, np.array([0, 0, 1, 1]), 3)
    with pytest.raises(InputError, match="leave a cluster with 1 samples, fewer than 2"):
        split_natural(0, np.array([0, 0, 0, 1]), 2, 2)


def test_schemes_by_name():
    labels = np.arange(100) % 5
    for scheme, expected in (
        ("iid", split_iid(3, 100, 4)),
        ("dirichlet", split_dirichlet(3, labels, 4, 0.1, 2)),
        ("natural", split_natural(3, labels, 4, 2)),
    ):
        parts = split_samples(3, scheme, labels, 4, 0.1, 2)
        assert all(np.array_equal(a, b) for a, b in zip(parts, expected, strict=True))
    message = r"task\.split = 'even': .* Use one of iid, dirichlet, natural"
    with pytest.raises(InputError, match=message):
        split_samples(3, "even", labels, 4, 0.1)


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "natural"])
@pytest.mark.parametrize(
    ("count", "clusters", "minimum", "message"),
    [
        (5, 6, 1, r"network\.clusters = 6: 5 samples cannot give each cluster 1"),
        (5, 2, 3, "5 samples cannot give each cluster 3"),
    ],
)
def test_impossible_splits(scheme, count, clusters, minimum, message):
    with pytest.raises(InputError, match=message):
        split_samples(0, scheme, np.zeros(count, int), clusters, 1.0, minimum)


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


def test_samples_by_length_are_those_of_the_stream_sorted():
    """Windows of whole passes: every sample once, and rounds of similar length everywhere."""
    sizes, steps, batch = (48, 60), 2, 4
    clusters = [np.arange(size) + 100 * n for n, size in enumerate(sizes)]
    lengths = np.random.default_rng(5).integers(1, 40, 200)
    rounds = 6  # of 8 samples each, one pass of the smaller cluster
    drawn = np.stack(
        [sample_round_by_length(3, clusters, lengths, t, steps, batch) for t in range(2 * rounds)]
    )
    assert drawn.shape == (2 * rounds, steps, 2, batch)
    assert drawn.dtype == np.int32
    plain = stream(3, clusters, 2 * rounds, steps, batch)
    for window in range(2):
        own = drawn[window * rounds : (window + 1) * rounds]
        for n in range(2):
            part = plain[n, window * rounds * 8 : (window + 1) * rounds * 8]
            np.testing.assert_array_equal(np.sort(own[:, :, n], axis=None), np.sort(part))
        spans = lengths[own]  # [rounds, H, N, B]
        means = spans.mean(axis=(1, 3))
        np.testing.assert_array_equal(np.argsort(means[:, 0]), np.argsort(means[:, 1]))
        ordered = spans[np.argsort(means[:, 0])]
        assert np.all(ordered[1:].min(axis=(1, 3)) >= ordered[:-1].max(axis=(1, 3)))
    orders = [lengths[drawn[w * rounds : (w + 1) * rounds]].mean(axis=(1, 2, 3)) for w in (0, 1)]
    assert not np.array_equal(*map(np.argsort, orders))


def test_a_round_by_length_takes_no_sample_twice_from_one_pass():
    clusters, lengths = [np.arange(10), np.arange(100)], np.arange(100)
    for t in range(5):
        first = sample_round_by_length(0, clusters, lengths, t, 1, 5)[:, 0]
        assert len(np.unique(first)) == 5
