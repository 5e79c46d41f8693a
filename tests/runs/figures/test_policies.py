"""Policies side by side, against what they are drawn from."""

import numpy as np
import pytest
from scipy import stats
from support.made_up_comparisons import (
    CLUSTERS,
    EIGHT,
    break_all,
    break_first,
    compared,
    row_artists,
)

from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.figures import comparison
from collapipe_jax.runs.results.realisations import only_runnable
from collapipe_jax.runs.studies.comparison import summarise


def test_rows_show_every_network_its_median_and_its_mean(tmp_path):
    result = compared(tmp_path)
    axes = comparison.draw_policies(result).axes[1]
    assert axes.get_xlabel() == "Compute latency [s]"
    for row, (name, values) in enumerate(result.policies.items()):
        means = values["compute_latency_s"].mean(axis=1)
        marked, (median_span, mean_span) = row_artists(axes, row)
        np.testing.assert_allclose(np.sort(marked["."]), np.sort(means))
        np.testing.assert_allclose(marked["D"], [np.median(means)])
        np.testing.assert_allclose(marked["o"], [means.mean()])
        np.testing.assert_allclose(median_span, np.sort(means)[[0, -1]])
        expected = stats.t.interval(0.95, 7, means.mean(), stats.sem(means))
        np.testing.assert_allclose(mean_span, np.clip(expected, *axes.get_xlim()))
        assert axes.get_yticklabels()[row].get_text() == name.replace("_", " ")


def test_means_of_the_figure_are_those_of_the_summary(tmp_path):
    def ready(drawn, values):
        for own in values.values():
            networks = len(drawn["divergence_target"])
            for field in ("participation", "active_devices", "micro_batches", "loss_probability"):
                own[field] = np.ones_like(own["latency_s"])
            own["absence_ratio"] = np.zeros_like(own["latency_s"])
            own["mean_energy_j"] = np.ones_like(drawn["energy_budget_j"])
            own["absent_rounds"] = np.zeros((networks, CLUSTERS))
            own["violated.memory"] = np.zeros(networks)

    result = compared(tmp_path, change=ready)
    summary = summarise(result)
    axes = comparison.draw_policies(result).axes[2]
    for row, told in enumerate(summary["policies"].values()):
        marked, _ = row_artists(axes, row)
        np.testing.assert_allclose(marked["o"], [told["energy_j"]["mean"]])
        np.testing.assert_allclose(marked["D"], [told["energy_j"]["median"]])
    drawn = comparison.draw_reduction(result)
    for axes, metric in zip(drawn.axes, comparison.TITLES, strict=True):
        for row, told in enumerate(summary["reduction_percent"][metric].values()):
            marked, _ = row_artists(axes, row)
            np.testing.assert_allclose(marked["o"], [told["mean"]])


def test_networks_that_cannot_run_are_left_out(tmp_path):
    def change(drawn, values):
        drawn["can_run"][3] = False
        for own in values.values():
            own["compute_latency_s"][3] = 1e9

    result = compared(tmp_path / "some", change=change)
    assert len(only_runnable(result).networks["divergence_target"]) == 7
    marked, _ = row_artists(comparison.draw_policies(result).axes[1], 0)
    assert len(marked["."]) == 7
    assert max(marked["."]) < 100

    def none(drawn, values):
        drawn["can_run"][:] = False

    with pytest.raises(InputError, match="no network"):
        comparison.draw_policies(compared(tmp_path / "none", change=none))


def test_infinite_networks_are_counted_and_have_no_mean(tmp_path):
    axes = comparison.draw_policies(compared(tmp_path, change=break_first)).axes[0]
    assert [text.get_text() for text in axes.texts] == ["∞ 1/8"] * 7
    marked, _ = row_artists(axes, 0)
    assert len(marked["."]) == 7
    assert "o" not in marked
    assert "D" in marked
    marked, _ = row_artists(axes, 7)
    assert len(marked["."]) == 8
    assert "o" in marked


def test_shares_of_parts_weigh_networks_alike():
    parts_s = np.array([[[1, 0, 1, 0, 2], [3, 0, 1, 0, 0]], [[0, 500, 0, 500, 0]] * 2], float)
    np.testing.assert_allclose(comparison.part_shares(parts_s), [0.25, 0.25, 0.125, 0.25, 0.125])
    parts_s[1, 0, 0] = np.inf
    np.testing.assert_allclose(comparison.part_shares(parts_s), [0.5, 0, 0.25, 0, 0.25])
    parts_s[0] = np.inf
    assert np.isnan(comparison.part_shares(parts_s)).all()


def test_bars_stack_the_shares(tmp_path):
    result = compared(tmp_path)
    axes = comparison.draw_policies(result).axes[4]
    bars = np.array([[bar.get_x(), bar.get_width(), bar.get_y()] for bar in axes.patches])
    bars = bars.reshape(8, 5, 3)
    for row, values in enumerate(result.policies.values()):
        shares = 100 * comparison.part_shares(values["parts_s"])
        np.testing.assert_allclose(bars[row, :, 1], shares)
        np.testing.assert_allclose(bars[row, 1:, 0], np.cumsum(shares)[:-1])
    np.testing.assert_allclose(bars[:, :, 1].sum(axis=1), 100)
    colors = [patch.get_facecolor() for patch in axes.patches[:5]]
    assert len(set(colors)) == 5


def test_an_all_infinite_policy_has_words_in_place_of_bars(tmp_path):
    axes = comparison.draw_policies(compared(tmp_path, change=break_all, names=EIGHT[:2])).axes[4]
    assert [text.get_text() for text in axes.texts] == ["no finite latency"] * 2
    assert not axes.patches
