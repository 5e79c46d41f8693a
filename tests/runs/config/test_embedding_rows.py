"""Rows that a round reads: closed forms against counting."""

import itertools

import numpy as np
import pytest

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.split_model import SplitModel
from collapipe_jax.learning.tasks.sampling import sample_round
from collapipe_jax.runs.config.embedding_rows import (
    RowCounts,
    count_rows,
    heaps_law,
    mean_rows,
    sample_points,
    samples_with_row,
)

ROWS = 9
TEXTS = np.array([[0, 1, 1], [1, 2, 3], [4, 4, 4], [0, 5, 9], [6, 1, -1], [2, 7, 0]])
"""Six texts, with a row twice, and numbers of no row."""


def read(texts):
    return len({token for token in np.ravel(texts) if 0 <= token < ROWS})


def test_samples_of_a_row_are_counted_once():
    assert samples_with_row(TEXTS, ROWS).tolist() == [3, 3, 2, 1, 1, 1, 1, 1, 0]


@pytest.mark.parametrize("draws", range(1, 7))
def test_the_mean_is_that_of_all_draws(draws):
    """Every set of so many texts is as likely as any other."""
    counts = RowCounts(np.array([6]), samples_with_row(TEXTS, ROWS)[None])
    every = [read(TEXTS[list(chosen)]) for chosen in itertools.combinations(range(6), draws)]
    found = [
        mean_rows(counts, steps, draws // steps, draws // steps)
        for steps in (1, 2)
        if draws % steps == 0
    ]
    np.testing.assert_allclose(found, np.mean(every), rtol=1e-12)


def test_of_several_clusters_the_mean_and_what_any_reads():
    clusters = [TEXTS[:2], TEXTS[2:]]
    readers = np.stack([samples_with_row(texts, ROWS) for texts in clusters])
    counts, own, union = RowCounts(np.array([2, 4]), readers), [], []
    for one in range(2):
        own.append(read(clusters[0][one]))
    others = [read(text) for text in clusters[1]]
    for first, second in itertools.product(*clusters):
        union.append(read([first, second]))
    expected = (np.mean(own) + np.mean(others)) / 2
    assert mean_rows(counts, 1, 1, 1) == pytest.approx(expected)
    assert mean_rows(counts, 1, 1, 2) == pytest.approx(np.mean(union))
    between = mean_rows(counts, 1, 1, 1.5)
    assert expected < between < np.mean(union)


def test_a_round_of_more_than_all_samples_reads_all_rows():
    counts = RowCounts(np.array([6]), samples_with_row(TEXTS, ROWS)[None])
    assert mean_rows(counts, 3, 4, 4) == 8


def test_rounds_that_are_drawn_read_as_many_in_the_mean():
    rng = np.random.default_rng(0)
    texts = rng.zipf(1.4, (240, 6)) % 500
    indices = [np.arange(0, 120), np.arange(120, 240)]
    readers = np.stack([samples_with_row(texts[own], 500) for own in indices])
    counts, found = RowCounts(np.array([120, 120]), readers), []
    for index in range(600):
        drawn = texts[sample_round(3, indices, index, 2, 5)]
        each = [len(np.unique(drawn[:, n])) for n in range(2)]
        found.append((np.mean(each), len(np.unique(drawn)), len(np.unique(drawn[:, 0, :3]))))
    mean, error = np.mean(found, 0), np.std(found, 0) / np.sqrt(len(found))
    expected = [mean_rows(counts, 2, 5, samples) for samples in (5, 10)]
    expected.append(mean_rows(RowCounts(counts.samples[:1], readers[:1]), 2, 5, 3))
    assert np.all(np.abs(mean - expected) < 4 * error)


class _TwoTables(SplitModel):
    unsmoothed = init = embed = losses = None

    def rows_read(self, batch):
        return {"word": batch, "tag": batch}


def test_a_model_with_two_tables_of_tokens_is_refused():
    class OfTwo:
        model = _TwoTables()

        def draw(self, rows, seed):
            return TEXTS[rows]

    with pytest.raises(InputError, match=r"payload\.embedding_rows"):
        count_rows(OfTwo(), [np.arange(3)], ROWS, 0)


def test_heaps_law_is_below_tokens_and_table():
    tokens = np.array([0.0, 100.0, 1_000_020.0, 1e12])
    found = heaps_law(tokens, 44.0, 0.49, 10**6)
    # The prediction for Reuters-RCV1 of Manning, Raghavan and Schütze (2008, section 5.1.1).
    np.testing.assert_allclose(found, [0, 100, 38_323, 10**6], rtol=1e-4)


@pytest.mark.parametrize(("batch", "clusters"), [(32, 4), (1, 3), (8, 1)])
def test_points_have_one_sample_a_mini_batch_and_all(batch, clusters):
    points = sample_points(batch, clusters)
    assert np.all(np.diff(points) >= 0)
    assert {0.0, 1.0, float(batch), float(batch * clusters)} <= set(points.tolist())
    assert len(points) == 11
