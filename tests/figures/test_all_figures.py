"""Gaps, what figures share, and one command for all of them."""

import itertools
import re

import numpy as np
import pytest
from support.drawing import make_record, rendered
from support.made_up_comparisons import (
    EIGHT,
    assert_readable,
    compared,
    random_loop,
    rulers,
    write_comparison,
    write_gaps,
    write_sweep,
)

from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.errors import InputError
from collapipe_jax.files.checkpoints import open_workdir
from experiments import closed_loop_files, compare_files
from experiments.array_files import write_arrays
from figures import all as all_figures
from figures import constraints, gap, memory, policies, style
from figures.scales import wide_axis


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
