"""Figures of comparisons, against what they are drawn from."""

import math

import numpy as np
import pytest
from scipy import stats
from support.drawing import rendered
from support.made_up_comparisons import (
    CASES,
    CLUSTERS,
    EIGHT,
    assert_readable,
    break_all,
    break_first,
    compared,
    row_artists,
    rulers,
    write_comparison,
)

from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.errors import InputError
from experiments.compare_summary import summarise
from figures import constraints, memory, policies, reduction, style
from figures.comparison import kept
from figures.estimates import mean_estimate, median_estimate

FIGURES = {
    "policies": policies.draw,
    "memory": memory.draw,
    "constraints": constraints.draw,
    "reduction": reduction.draw,
}


@pytest.mark.parametrize("name", FIGURES)
def test_eight_policies_are_readable(name, tmp_path):
    figure = FIGURES[name](compared(tmp_path))
    assert_readable(figure)
    assert figure.get_figwidth() == style.DOUBLE_WIDTH_IN


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", FIGURES)
def test_hard_comparisons_draw(name, case, tmp_path):
    names = ("dssra", "greedy", "random")
    assert_readable(FIGURES[name](compared(tmp_path, names=names, **CASES[case])))


@pytest.mark.parametrize("count", range(1, 60))
def test_interval_of_a_median_is_the_narrowest_between_ranks_that_holds(count):
    values = np.random.default_rng(count).permutation(np.arange(1.0, count + 1))
    told = median_estimate(values)
    assert told.value == np.median(values)

    def coverage(rank):  # of the interval from the rank-th smallest to the rank-th largest
        return 1 - 2 * sum(math.comb(count, below) for below in range(rank)) / 2**count

    if count < 6:
        assert np.isnan(told.low)
        assert np.isnan(told.high)
        return
    rank = int(told.low)
    assert told.high == count + 1 - rank
    assert coverage(rank) >= 0.95 > coverage(rank + 1)


def test_estimates_of_infinite_values():
    values = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, np.inf])
    assert np.isnan(mean_estimate(values).value)
    told = median_estimate(values)
    assert (told.value, told.low, told.high) == (4.0, 1.0, np.inf)
    assert told.within((0.0, 10.0)).high == 10.0
    assert np.isnan(median_estimate(np.array([1.0, np.inf, np.inf])).value)
    assert np.isnan(median_estimate(np.array([1.0, np.nan, 2.0])).value)


def test_mean_interval_is_students():
    values = np.random.default_rng(0).normal(size=(9, 4))
    told = mean_estimate(values)
    expected = stats.t.interval(0.95, 8, values.mean(axis=0), stats.sem(values, axis=0))
    np.testing.assert_allclose([told.low, told.high], expected)
    single = mean_estimate(values[:1])
    np.testing.assert_array_equal(single.value, values[0])
    assert np.isnan(single.low).all()


def test_rows_show_every_network_its_median_and_its_mean(tmp_path):
    result = compared(tmp_path)
    axes = policies.draw(result).axes[1]
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
            for field in ("active_devices", "micro_batches", "loss_probability"):
                own[field] = np.ones_like(own["latency_s"])
            own["mean_energy_j"] = np.ones_like(drawn["energy_budget_j"])
            own["absent_rounds"] = np.zeros((networks, CLUSTERS))

    result = compared(tmp_path, change=ready)
    summary = summarise(result)
    axes = policies.draw(result).axes[2]
    for row, told in enumerate(summary["policies"].values()):
        marked, _ = row_artists(axes, row)
        np.testing.assert_allclose(marked["o"], [told["energy_j"]["mean"]])
        np.testing.assert_allclose(marked["D"], [told["energy_j"]["median"]])
    drawn = reduction.draw(result)
    for axes, metric in zip(drawn.axes, reduction.TITLES, strict=True):
        for row, told in enumerate(summary["reduction_percent"][metric].values()):
            marked, _ = row_artists(axes, row)
            np.testing.assert_allclose(marked["o"], [told["mean"]])


def test_networks_that_cannot_run_are_left_out(tmp_path):
    def change(drawn, values):
        drawn["can_run"][3] = False
        for own in values.values():
            own["compute_latency_s"][3] = 1e9

    result = compared(tmp_path / "some", change=change)
    assert len(kept(result).networks["divergence_target"]) == 7
    marked, _ = row_artists(policies.draw(result).axes[1], 0)
    assert len(marked["."]) == 7
    assert max(marked["."]) < 100

    def none(drawn, values):
        drawn["can_run"][:] = False

    with pytest.raises(InputError, match="no network"):
        policies.draw(compared(tmp_path / "none", change=none))


def test_infinite_networks_are_counted_and_have_no_mean(tmp_path):
    axes = policies.draw(compared(tmp_path, change=break_first)).axes[0]
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
    np.testing.assert_allclose(policies.part_shares(parts_s), [0.25, 0.25, 0.125, 0.25, 0.125])
    parts_s[1, 0, 0] = np.inf
    np.testing.assert_allclose(policies.part_shares(parts_s), [0.5, 0, 0.25, 0, 0.25])
    parts_s[0] = np.inf
    assert np.isnan(policies.part_shares(parts_s)).all()


def test_bars_stack_the_shares(tmp_path):
    result = compared(tmp_path)
    axes = policies.draw(result).axes[4]
    bars = np.array([[bar.get_x(), bar.get_width(), bar.get_y()] for bar in axes.patches])
    bars = bars.reshape(8, 5, 3)
    for row, values in enumerate(result.policies.values()):
        shares = 100 * policies.part_shares(values["parts_s"])
        np.testing.assert_allclose(bars[row, :, 1], shares)
        np.testing.assert_allclose(bars[row, 1:, 0], np.cumsum(shares)[:-1])
    np.testing.assert_allclose(bars[:, :, 1].sum(axis=1), 100)
    colors = [patch.get_facecolor() for patch in axes.patches[:5]]
    assert len(set(colors)) == 5


def test_an_all_infinite_policy_has_words_in_place_of_bars(tmp_path):
    axes = policies.draw(compared(tmp_path, change=break_all, names=EIGHT[:2])).axes[4]
    assert [text.get_text() for text in axes.texts] == ["no finite latency"] * 2
    assert not axes.patches


def test_memory_is_summed_over_held():
    values = {
        "blocks_held": np.array([[0.0, 3, 0, 1], [0, 1, 0, 3]]),
        "memory_by_blocks": np.array([[0.0, 30, 0, 50], [0, 14, 0, 190]]),
    }
    mean, share = memory.held_memory(values)
    np.testing.assert_allclose(mean, [np.nan, 11, np.nan, 60])
    np.testing.assert_allclose(share, [0, 50, 0, 50])
    nobody = {field: np.zeros((2, 4)) for field in values}
    mean, share = memory.held_memory(nobody)
    assert np.isnan(mean).all()
    assert not share.any()


def test_memory_figure_shows_markers_limits_and_shares(tmp_path):
    result = compared(tmp_path)
    above, below = memory.draw(result).axes
    unit = 2.0**30
    limits = result.networks["memory_limit_bytes"]
    ruled = [line.get_ydata()[0] for line in rulers(above) if np.ptp(line.get_ydata()) == 0]
    assert sorted(ruled) == [4, 8]
    share = 100 * np.mean(limits == 4 * unit)
    assert above.texts[0].get_text() == f"limit of {share:.0f} % of the devices"
    markers = [line for line in above.lines if line not in rulers(above)]
    for line, values in zip(markers, result.policies.values(), strict=True):
        held = values["blocks_held"].sum(axis=0)
        blocks = np.flatnonzero(held)
        np.testing.assert_array_equal(np.round(line.get_xdata()), blocks)
        np.testing.assert_allclose(line.get_ydata() * unit, 3.5e8 * blocks)
    shares = {text.get_position(): text.get_text() for text in below.texts}
    for row, values in enumerate(result.policies.values()):
        held = values["blocks_held"].sum(axis=0)
        for blocks in np.flatnonzero(held):
            percent = 100 * held[blocks] / held.sum()
            assert shares[blocks, row] == (f"{percent:.0f}" if percent >= 0.5 else "<1")


def test_many_limits_become_three():
    told = memory.board_limits(np.arange(1.0, 10.0).reshape(3, 3))
    assert told == {"smallest limit": 1.0, "median limit": 5.0, "largest limit": 9.0}


def test_energy_over_budget_is_the_running_mean_of_all_nodes(tmp_path):
    result = compared(tmp_path, rounds=6)
    told = constraints.energy_over_budget(result, "greedy")
    energy = result.policies["greedy"]["energy_j"]
    budget = result.networks["energy_budget_j"].sum(axis=(1, 2))
    np.testing.assert_allclose(told[:, 0], energy[:, 0] / budget)
    np.testing.assert_allclose(told[:, -1], energy.mean(axis=1) / budget)


def test_constraints_show_estimates_of_every_round(tmp_path):
    result = compared(tmp_path)
    figure = constraints.draw(result)
    for index, estimate in enumerate((mean_estimate, median_estimate)):
        queues = [own["worst_energy_queue"] for own in result.policies.values()]
        axes = figure.axes[3 * index + 1]
        lines = [line for line in axes.lines if line.get_linewidth() > 1]
        bands = [line for line in axes.lines if line.get_linewidth() < 1]
        for place, queue in enumerate(queues):
            told = estimate(queue)
            np.testing.assert_array_equal(lines[place].get_xdata(), np.arange(1, 6))
            np.testing.assert_allclose(lines[place].get_ydata(), told.value)
            low, high = bands[2 * place].get_ydata(), bands[2 * place + 1].get_ydata()
            np.testing.assert_allclose(low, np.maximum(told.low, 0))
            np.testing.assert_allclose(high, told.high)


def test_panels_without_a_finite_value_say_so(tmp_path):
    figure = constraints.draw(compared(tmp_path, change=break_all, names=EIGHT[:2]))
    told = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert told == 2 * [["no finite value"], [], ["no finite value"]]


def test_lines_of_means_end_where_a_value_is_infinite(tmp_path):
    figure = constraints.draw(compared(tmp_path, change=break_first, names=EIGHT[:2]))
    mean = [line.get_ydata() for line in figure.axes[2].lines if line.get_linewidth() > 1]
    median = [line.get_ydata() for line in figure.axes[5].lines if line.get_linewidth() > 1]
    np.testing.assert_array_equal(np.isfinite(mean[0]), [1, 1, 0, 0, 0])
    assert np.isfinite(mean[1]).all()
    assert np.isfinite(median).all()


def test_reduction_is_paired_and_signed(tmp_path):
    def change(drawn, values):
        values["titanic"]["energy_j"] = 4 * values["dssra"]["energy_j"]
        values["greedy"]["energy_j"] = 0.5 * values["dssra"]["energy_j"]
        values["random"]["energy_j"][1] = np.inf

    result = compared(tmp_path, change=change)
    told = reduction.reductions(result)["energy_j"]
    assert list(told) == list(EIGHT[1:])
    np.testing.assert_allclose(told["titanic"], 75)
    np.testing.assert_allclose(told["greedy"], -100)
    assert told["random"][1] == 100
    axes = reduction.draw(result).axes[3]
    marked, _ = row_artists(axes, list(told).index("titanic"))
    np.testing.assert_allclose(marked["."], 75)
    np.testing.assert_allclose(marked["o"], [75])


def test_great_losses_stretch_the_axis(tmp_path):
    def change(drawn, values):
        values["titanic"]["energy_j"] = values["dssra"]["energy_j"] / 500

    figure = rendered(reduction.draw(compared(tmp_path, change=change)))
    assert figure.axes[3].get_xscale() == "symlog"
    assert figure.axes[3].get_xlim()[0] < -49900
    assert figure.axes[2].get_xscale() == "linear"


@pytest.mark.parametrize("names", [("greedy", "random"), ("dssra",)])
def test_nothing_to_reduce_is_told(names, tmp_path, capsys):
    write_comparison(tmp_path / "c", names=names)
    assert run_reporting_errors(reduction.main, [f"--workdir={tmp_path / 'c'}"]) == 2
    assert "without dssra and another policy" in capsys.readouterr().err
    assert not (tmp_path / "c" / "figures").exists()
