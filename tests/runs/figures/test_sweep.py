"""Figures of sweeps."""

import numpy as np
import pytest
from support.drawing import assert_units, rendered
from support.made_up_comparisons import (
    EIGHT,
    assert_readable,
    break_all,
    break_first,
    rulers,
    write_sweep,
)

from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.figures import sweep
from collapipe_jax.runs.results.realisations import load_sweep


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        (5.0, 10.0, 20.0, 40.0, 80.0),
        ("as it is", "otherwise"),
    ],
)
def test_sweeps_of_eight_policies_are_readable(values, tmp_path):
    assert_readable(sweep.draw_sweep(load_sweep(write_sweep(tmp_path / "s", values))[0]))


@pytest.mark.parametrize("statistic", [pytest.param("median", marks=pytest.mark.slow), "mean"])
def test_sweep_shows_estimates_at_its_values(statistic, tmp_path):
    result = load_sweep(write_sweep(tmp_path / "s"))[0]
    figure = rendered(sweep.draw_sweep(result, statistic))
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


@pytest.mark.slow
def test_policies_of_a_value_stand_side_by_side(tmp_path):
    result = load_sweep(write_sweep(tmp_path / "s", (1.0, 2.0, 4.0), "Clusters", log=False))[0]
    places = sweep.side_by_side(result, 8)
    assert np.all(np.diff(places, axis=0) > 0)
    np.testing.assert_allclose(places.mean(axis=0), [1, 2, 4])
    assert np.ptp(places, axis=0).max() < 0.5
    figure = sweep.draw_sweep(result)
    assert figure.axes[0].get_xscale() == "linear"
    assert figure.axes[0].get_xlabel() == "Clusters [–]"


@pytest.mark.parametrize(
    "keywords",
    [
        pytest.param({"values": (3.0,)}, marks=pytest.mark.slow),
        {"values": (0.0, 1.0)},
        pytest.param({"values": (1.0, 2.0), "networks": 1, "rounds": 1}, marks=pytest.mark.slow),
        pytest.param({"values": (1.0, 2.0), "change": break_first}, marks=pytest.mark.slow),
        {"values": (1.0, 2.0), "change": break_all},
        pytest.param({"values": ("one", "other"), "change": break_first}, marks=pytest.mark.slow),
    ],
)
def test_hard_sweeps_draw(keywords, tmp_path):
    result = load_sweep(write_sweep(tmp_path / "s", names=EIGHT[:2], **keywords))[0]
    rendered(sweep.draw_sweep(result, "mean"))


@pytest.mark.parametrize("statistic", [pytest.param("median", marks=pytest.mark.slow), "mean"])
def test_a_point_where_no_network_can_run_is_left_out(statistic, tmp_path):
    result = load_sweep(write_sweep(tmp_path / "s", names=EIGHT[:2]))[0]
    result.points[0].networks["can_run"][:] = False
    figure = rendered(sweep.draw_sweep(result, statistic))
    drawn = figure.axes[1].containers[0].lines[0].get_ydata()
    assert np.isnan(drawn).tolist() == [True, False, False]
    for point in result.points:
        point.networks["can_run"][:] = False
    with pytest.raises(InputError, match="no network of the comparison can run"):
        sweep.draw_sweep(result, statistic)


def test_a_sweep_of_names_has_a_row_a_point(tmp_path):
    names = "as it is", "no noise"
    (result,) = load_sweep(write_sweep(tmp_path / "s", names, "Choice", log=False))
    figure = rendered(sweep.draw_sweep(result))
    axes = figure.axes[1]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(result.values)
    lines = [line for line in axes.lines if line not in rulers(axes)]
    for name, line in zip(EIGHT, lines, strict=True):
        told = [np.median(p.policies[name]["compute_latency_s"].mean(1)) for p in result.points]
        np.testing.assert_allclose(line.get_xdata(), told)
        np.testing.assert_array_equal(np.round(line.get_ydata()), [0, 1])
    assert len(figure.axes) == len(sweep.NAMED_METRICS)
    assert_readable(figure)


def test_further_axes_have_figures_of_their_own_and_seeds_are_networks(tmp_path):
    further = [("control.v", (1.0, 3.0)), ("seed", (0, 1))]
    lines = load_sweep(write_sweep(tmp_path / "s", (5.0, 10.0), further=further, names=EIGHT[:2]))
    assert [line.others for line in lines] == [{"control.v": 1.0}, {"control.v": 3.0}]
    for line in lines:
        assert [len(p.policies["dssra"]["latency_s"]) for p in line.points] == [16, 16]
    figures = sweep.draw_sweeps(lines)
    assert set(figures) == {"sweep_1", "sweep_mean_1", "sweep_2", "sweep_mean_2"}
    assert figures["sweep_2"].axes[0].get_title(loc="left").startswith("control.v = 3.0")
