import itertools
import math
import re

import numpy as np
import pytest
from matplotlib.text import Text
from scipy import stats
from test_closed_loop import random_loop
from test_figures import assert_units, make_record, rendered

from collapipe_jax.checkpoint import open_workdir
from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.errors import InputError
from experiments import closed_loop_files, compare_files
from experiments.array_files import write_arrays
from experiments.benchmarks.network_rows import append_row
from experiments.compare_files import load_comparison
from experiments.compare_summary import summarise
from experiments.sweep_files import load_sweep, point_folder
from figures import all as all_figures
from figures import choices, constraints, gap, memory, policies, reduction, style, sweep
from figures.comparison import kept
from figures.estimates import mean_estimate, median_estimate
from figures.scales import wide_axis

EIGHT = (
    "dssra",
    "static_pipeline",
    "titanic",
    "titanic_pipelined",
    "greedy",
    "random",
    "vanilla_fl",
    "splitfed",
)
FIGURES = {
    "policies": policies.draw,
    "memory": memory.draw,
    "constraints": constraints.draw,
    "reduction": reduction.draw,
}
CLUSTERS, DEVICES, BLOCKS = 2, 3, 12


def make_values(rng, networks, rounds):
    """Realisations of a policy; latencies and divergences are heavy-tailed."""
    shape = (networks, rounds)
    parts_s = rng.lognormal(0, 2, (networks, 1, 1)) * rng.uniform(1, 9, (*shape, 5))
    held = rng.multinomial(CLUSTERS * rounds * 2, rng.dirichlet(np.ones(BLOCKS)), networks)
    held = np.concatenate([np.zeros((networks, 1)), held], axis=1)
    queue = np.maximum(rng.normal(0, 1, shape).cumsum(axis=1), 0)
    return {
        "latency_s": parts_s.sum(axis=2),
        "compute_latency_s": rng.uniform(20, 60, shape),
        "parts_s": parts_s,
        "energy_j": rng.uniform(500, 900, shape),
        "divergence": 1e-3 * rng.lognormal(0, 6, (networks, 1)) * np.ones(shape),
        "device_memory_bytes": rng.uniform(1e9, 4e9, shape),
        "worst_energy_queue": queue,
        "divergence_queue": 10 ** (4 * queue) - 1,
        "blocks_held": held,
        "memory_by_blocks": 3.5e8 * held * np.arange(BLOCKS + 1),
    }


def write_comparison(folder, names=EIGHT, networks=8, rounds=5, change=None, seed=0):
    """A comparison as experiments.compare leaves it, in chunks of 3 networks.

    ``change(arrays of the networks, arrays by policy)`` may alter what is written.
    """
    rng = np.random.default_rng(seed)
    drawn = {
        "reference_latency_s": np.ones(networks),
        "can_run": np.ones((networks, CLUSTERS), bool),
        "energy_budget_j": rng.uniform(50, 150, (networks, CLUSTERS, DEVICES + 1)),
        "divergence_target": rng.uniform(0.005, 0.01, networks),
        "memory_limit_bytes": 2.0**30 * rng.choice([4, 8], (networks, CLUSTERS, DEVICES)),
    }
    values = {name: make_values(rng, networks, rounds) for name in names}
    if change is not None:
        change(drawn, values)
    asked = {"rounds": rounds, "realisations": networks, "chunk": 3, "policies": list(names)}
    open_workdir(folder, {"config": {}, "compare": asked}, resume=True)
    write_arrays(compare_files.networks_file(folder), drawn)
    for name, start in itertools.product(names, range(0, networks, 3)):
        chunk = {field: value[start : start + 3] for field, value in values[name].items()}
        write_arrays(compare_files.chunk_file(folder, name, start), chunk)
    return folder


def compared(folder, **keywords):
    return load_comparison(write_comparison(folder, **keywords))


def write_sweep(folder, values=(5.0, 10.0, 40.0), axis="D2E bandwidth [MHz]", log=True, **keywords):
    told = {"axis": axis, "log": log, "values": list(values)}
    open_workdir(folder, {"sweep": told}, resume=False)
    for index in range(len(values)):
        write_comparison(point_folder(folder, index), seed=index, **keywords)
    return folder


def write_gaps(folder, gaps, loss=0.1):
    folder.mkdir(exist_ok=True)
    for number, value in enumerate(gaps):
        row = {"network": number, "dssra": 2.0 * (1 + value), "dssra_tuned": 2.0}
        append_row(
            gap.gap_file(folder), row | {"exhaustive": 2.0, "lower_bound": 1.9, "loss": loss}
        )
    return folder


def break_first(drawn, values):
    """The first network of every policy but the last never ends its third round."""
    for name in list(values)[:-1]:
        for field in ("latency_s", "parts_s", "energy_j", "divergence", "divergence_queue"):
            values[name][field][0, 2:] = np.inf


def break_all(drawn, values):
    for own in values.values():
        for field in ("latency_s", "parts_s", "energy_j", "divergence", "divergence_queue"):
            own[field][:] = np.inf


CASES = {
    "one_network": {"networks": 1},
    "one_round": {"rounds": 1, "networks": 7},
    "some_infinite": {"change": break_first},
    "all_infinite": {"change": break_all},
}


def words(figure):
    """Every text that is drawn, with its box."""
    hidden = set()
    for axis in itertools.chain(*((axes.xaxis, axes.yaxis) for axes in figure.axes)):
        low, high = sorted(axis.get_view_interval())
        for tick in axis.get_major_ticks() + axis.get_minor_ticks():
            if not low <= tick.get_loc() <= high:
                hidden |= {tick.label1, tick.label2}
    texts = [text for text in figure.findobj(Text) if text not in hidden and text.get_visible()]
    return [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]


def assert_readable(figure):
    """Units everywhere, no word too small, on another, or out of the page."""
    assert_units(rendered(figure))
    sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text()]
    assert min(sizes) >= 7
    shown, page = words(figure), figure.bbox.padded(1.0)
    for text, box in shown:
        assert page.contains(box.x0, box.y0), text
        assert page.contains(box.x1, box.y1), text
    for (one, first), (other, second) in itertools.combinations(shown, 2):
        assert not first.padded(-0.5).overlaps(second.padded(-0.5)), (one, other)


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


@pytest.mark.parametrize("values", [(5.0, 10.0, 20.0, 40.0, 80.0), ("as it is", "otherwise")])
def test_sweeps_of_eight_policies_are_readable(values, tmp_path):
    assert_readable(sweep.draw(load_sweep(write_sweep(tmp_path / "s", values))))


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


def row_artists(axes, row):
    """Dots, median, its interval, mean and its interval of a row, as values of x."""
    lines = [
        line
        for line in axes.lines
        if len(line.get_ydata())
        and abs(line.get_ydata()[0] - row) < 0.5
        and line not in rulers(axes)
    ]
    marked = {line.get_marker(): line.get_xdata() for line in lines if line.get_marker() != "None"}
    spans = [line.get_xdata() for line in lines if line.get_marker() == "None"]
    return marked, spans


def rulers(axes):
    return [line for line in axes.lines if line.get_transform() != axes.transData]


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


@pytest.mark.parametrize("statistic", ["median", "mean"])
def test_sweep_shows_estimates_at_its_values(statistic, tmp_path):
    result = load_sweep(write_sweep(tmp_path / "s"))
    figure = rendered(sweep.draw(result, statistic))
    assert_units(figure)
    of = {"median": np.median, "mean": np.mean}[statistic]
    axes = figure.axes[1]
    for name, drawn in zip(EIGHT, axes.containers, strict=True):
        per_network = [p.policies[name]["compute_latency_s"].mean(axis=1) for p in result.points]
        np.testing.assert_allclose(drawn.lines[0].get_ydata(), of(per_network, axis=1))
        ratio = drawn.lines[0].get_xdata() / result.values
        assert np.all((ratio > 0.8) & (ratio < 1.25))
        ends = np.array([segment[:, 1] for segment in drawn.lines[2][0].get_segments()])
        if statistic == "median":
            np.testing.assert_allclose(ends, np.sort(per_network, axis=1)[:, [0, -1]])
    assert {axes.get_xscale() for axes in figure.axes} == {"log"}
    ticks = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert ticks == ["5", "10", "40"]
    memory_bytes = result.points[0].policies["dssra"]["device_memory_bytes"].mean(axis=1)
    shown = figure.axes[3].containers[0].lines[0].get_ydata()[0]
    assert shown * 2**30 == pytest.approx(of(memory_bytes))


def test_policies_of_a_value_stand_side_by_side(tmp_path):
    result = load_sweep(write_sweep(tmp_path / "s", (1.0, 2.0, 4.0), "Clusters", log=False))
    places = sweep.side_by_side(result, 8)
    assert np.all(np.diff(places, axis=0) > 0)
    np.testing.assert_allclose(places.mean(axis=0), [1, 2, 4])
    assert np.ptp(places, axis=0).max() < 0.5
    figure = sweep.draw(result)
    assert figure.axes[0].get_xscale() == "linear"
    assert figure.axes[0].get_xlabel() == "Clusters [–]"


@pytest.mark.parametrize(
    "keywords",
    [
        {"values": (3.0,), "names": EIGHT[:2]},
        {"values": (0.0, 1.0), "names": EIGHT[:2]},
        {"values": (1.0, 2.0), "networks": 1, "rounds": 1, "names": EIGHT[:2]},
        {"values": (1.0, 2.0), "change": break_first, "names": EIGHT[:2]},
        {"values": (1.0, 2.0), "change": break_all, "names": EIGHT[:2]},
        {"values": ("one", "other"), "change": break_first, "names": EIGHT[:2]},
    ],
)
def test_hard_sweeps_draw(keywords, tmp_path):
    result = load_sweep(write_sweep(tmp_path / "s", **keywords))
    rendered(sweep.draw(result, "mean"))


def test_a_sweep_of_names_has_a_row_a_point(tmp_path):
    result = load_sweep(write_sweep(tmp_path / "s", ("as it is", "no noise"), "Choice", log=False))
    figure = rendered(sweep.draw(result))
    axes = figure.axes[1]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(result.values)
    lines = [line for line in axes.lines if line not in rulers(axes)]
    for name, line in zip(EIGHT, lines, strict=True):
        told = [np.median(p.policies[name]["compute_latency_s"].mean(1)) for p in result.points]
        np.testing.assert_allclose(line.get_xdata(), told)
        np.testing.assert_array_equal(np.round(line.get_ydata()), [0, 1])
    assert len(figure.axes) == len(choices.METRICS)


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


def share_at(line, x):
    """Height of stairs at a place."""
    return line.get_ydata()[np.searchsorted(line.get_xdata(), x, side="right") - 1]


def test_gap_curve_is_the_empirical_distribution(tmp_path):
    gaps = np.random.default_rng(0).lognormal(-9, 2, 40)
    gaps[:4] = [0.0, -1e-9, 1e-12, 0.02]
    rows = gap.load_gaps(write_gaps(tmp_path, gaps))
    figure = gap.draw(rows)
    assert_readable(figure)
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines] == [
        "gap (n = 40)",
        "the layout's part (n = 40)",
        "to the lower bound (n = 40)",
    ]
    for percent in np.geomspace(2e-5, 9, 50):
        expected = 100 * np.mean(100 * gaps <= percent)
        assert share_at(axes.lines[0], percent) == pytest.approx(expected)
    assert share_at(axes.lines[0], gap.FLOOR_PERCENT) >= 7.5
    assert share_at(axes.lines[1], gap.FLOOR_PERCENT) == 100
    np.testing.assert_array_equal(axes.lines[0].get_ydata()[-1], 100)
    bound = 100 * (2.0 * (1 + gaps) / 1.9 - 1)
    assert share_at(axes.lines[2], np.median(bound) * 1.0001) == pytest.approx(50, abs=2.5)


def test_hopeless_networks_have_a_curve_of_their_own(tmp_path):
    write_gaps(tmp_path, [1e-4, 1e-3])
    write_gaps(tmp_path, [1e-2], loss=0.95)
    with gap.gap_file(tmp_path).open("a") as stream:
        stream.write('{"network": 9, "dss')
    axes = gap.draw(gap.load_gaps(tmp_path)).axes[0]
    assert [line.get_label() for line in axes.lines][::3] == [
        "gap (n = 2)",
        "gap, hopeless losses (n = 1)",
    ]
    one = gap.draw(gap.load_gaps(write_gaps(tmp_path / "one", [0.0])))
    assert share_at(rendered(one).axes[0].lines[0], 1.0) == 100


def test_a_folder_without_gaps_is_told(tmp_path):
    with pytest.raises(InputError, match="holds no gaps"):
        gap.load_gaps(tmp_path)


def test_policies_keep_their_colours(tmp_path):
    looks = style.policy_looks(EIGHT)
    assert len({look.color for look in looks.values()}) == 8
    assert len({look.marker for look in looks.values()}) == 8
    assert len({str(look.linestyle) for look in looks.values()}) == 8
    for names in itertools.permutations(("splitfed", "dssra", "made_up"), 2):
        told = style.policy_looks(names)
        assert all(told[name] == looks[name] for name in names if name in looks)
        assert len(set(told.values())) == 2
    result = compared(tmp_path / "c", names=("splitfed", "dssra"))
    above = memory.draw(result).axes[0]
    colors = [line.get_color() for line in above.lines if line not in rulers(above)]
    assert colors == [looks["splitfed"].color, looks["dssra"].color]
    curves = [line for line in constraints.draw(result).axes[0].lines if line.get_linewidth() > 1]
    assert [line.get_color() for line in curves] == colors


def test_runs_have_the_looks_of_their_policies():
    looks = style.policy_looks(EIGHT)
    records = [make_record(name, rounds=1) for name in ("titanic", "dssra")]
    assert style.run_looks(records) == [looks["titanic"], looks["dssra"]]
    shared = style.run_looks([records[0], records[0], records[1]])
    assert len(set(shared)) == 3


@pytest.mark.parametrize(
    ("most", "unit"), [(5e9, "GiB"), (2**30, "GiB"), (7e6, "MiB"), (900.0, "KiB"), (0.0, "KiB")]
)
def test_memory_unit(most, unit):
    assert style.memory_unit(most)[1] == unit


@pytest.mark.parametrize(
    ("values", "scale", "holds"),
    [
        ([1.0, 20.0], "linear", (0.0, 20.0)),
        ([1.0, 50.0], "log", (1.0, 50.0)),
        ([3.0, 5000.0, np.inf, -1.0, 0.0], "log", (3.0, 5000.0)),
        ([1e-3, 1e27], "log", (1e-3, 1e27)),
        ([0.0, np.nan], "linear", (0.0, 1.0)),
        ([], "linear", (0.0, 1.0)),
    ],
)
def test_axes_of_amounts(values, scale, holds):
    axes = style.new_figure(3.5, 2.0).subplots()
    low, high = wide_axis(axes, "x", np.array(values))
    assert axes.get_xscale() == scale
    assert axes.get_xlim() == (low, high)
    assert low <= holds[0] < holds[1] <= high
    if scale == "log":
        decades = np.floor(np.log10(high)) - np.ceil(np.log10(low))
        assert decades >= 1  # at least two powers of ten are numbered


def write_loop(folder, v=(1.0, 10.0, 100.0)):
    result = random_loop(v)
    asked = result.settings["closed_loop"] | {"chunk": 40}
    open_workdir(folder, result.settings | {"closed_loop": asked}, resume=False)
    write_arrays(closed_loop_files.networks_file(folder), result.networks)
    for case in result.cases:
        write_arrays(closed_loop_files.chunk_file(folder, "made_up", case.v, 0), case.values)
    return folder


@pytest.mark.parametrize(
    ("write", "names"),
    [
        (write_comparison, ["policies", "memory", "constraints", "reduction"]),
        (
            lambda folder: write_comparison(folder, ["random"]),
            ["policies", "memory", "constraints"],
        ),
        (write_sweep, ["sweep", "sweep_mean"]),
        (write_loop, ["tradeoff"]),
        (lambda folder: write_gaps(folder, [1e-5, 1e-4]), ["gap"]),
    ],
)
def test_all_draws_what_belongs(write, names, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(style, "save", lambda figure, folder, name: [folder / f"{name}.pdf"])
    workdir = write(tmp_path / "run")
    assert run_reporting_errors(all_figures.main, [f"--workdir={workdir}"]) == 0
    told = capsys.readouterr().out
    written = [str(workdir / "figures" / f"{name}.pdf") for name in names]
    assert re.findall(r"written: (.*)", told) == written
    assert ("no reduction: the comparison lacks dssra" in told) == (names[-1] == "constraints")


def test_a_figure_is_written_in_both_formats(tmp_path):
    workdir = write_gaps(tmp_path / "run", [1e-5, 1e-4])
    assert run_reporting_errors(gap.main, [f"--workdir={workdir}"]) == 0
    assert {path.name for path in (workdir / "figures").iterdir()} == {"gap.pdf", "gap.png"}


@pytest.mark.parametrize("content", [None, "{", "[1]", '{"model_type": "bert"}'])
def test_all_refuses_what_it_does_not_know(content, tmp_path, capsys):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    assert run_reporting_errors(all_figures.main, [f"--workdir={tmp_path}"]) == 2
    told = capsys.readouterr().err
    assert str(tmp_path) in told
    assert "holds nothing that figures are drawn from" in told


def test_all_refuses_several_folders_but_of_runs(tmp_path, capsys):
    first, second = (write_comparison(tmp_path / name, names=("dssra",)) for name in "ab")
    arguments = [f"--workdir={first}", f"--workdir={second}"]
    assert run_reporting_errors(all_figures.main, arguments) == 2
    assert "only training runs are drawn together" in capsys.readouterr().err


def test_a_closed_loop_run_with_one_v_is_told(tmp_path, capsys):
    workdir = write_loop(tmp_path / "run", v=(1.0,))
    assert run_reporting_errors(all_figures.main, [f"--workdir={workdir}"]) == 2
    assert "no trade-off" in capsys.readouterr().err


def test_a_missing_chunk_is_told(tmp_path, capsys):
    workdir = write_comparison(tmp_path / "run")
    compare_files.chunk_file(workdir, "random", 3).unlink()
    assert run_reporting_errors(policies.main, [f"--workdir={workdir}"]) == 2
    assert "random_000003" in capsys.readouterr().err
