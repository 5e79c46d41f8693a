"""Gaps to exhaustive search as distributions."""

import numpy as np
import pytest
from support.drawing import rendered
from support.made_up_comparisons import assert_readable, write_gaps

from collapipe_jax.cli.options import run_reporting_errors
from collapipe_jax.core.errors import InputError
from figures import __main__ as all_figures
from figures import gap


def share_at(line, x):
    """Height of stairs at a place."""
    return line.get_ydata()[np.searchsorted(line.get_xdata(), x, side="right") - 1]


def test_gap_curve_is_the_empirical_distribution(tmp_path):
    gaps = np.random.default_rng(0).lognormal(-9, 2, 40)
    gaps[:4] = [0.0, -1e-9, 1e-12, 0.02]
    rows = gap.load(write_gaps(tmp_path, gaps))
    figure = gap.draw(rows)
    assert_readable(figure)
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines] == [
        "gap (n = 40)",
        "of the partition (n = 40)",
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


def test_networks_with_heavy_losses_have_a_curve_of_their_own(tmp_path):
    write_gaps(tmp_path, [1e-4, 1e-3])
    write_gaps(tmp_path, [1e-2], loss=0.95)
    with (tmp_path / gap.FILE).open("a") as stream:
        stream.write('{"network": 9, "dss')
    axes = gap.draw(gap.load(tmp_path)).axes[0]
    assert [line.get_label() for line in axes.lines][::3] == [
        "gap (n = 2)",
        "gap, heavy losses (n = 1)",
    ]
    one = gap.draw(gap.load(write_gaps(tmp_path / "one", [0.0])))
    assert share_at(rendered(one).axes[0].lines[0], 1.0) == 100


def test_a_folder_without_gaps_is_reported(tmp_path):
    with pytest.raises(InputError, match="holds no gaps"):
        gap.load(tmp_path)


def test_a_figure_is_written_in_both_formats(tmp_path):
    workdir = write_gaps(tmp_path / "run", [1e-5, 1e-4])
    assert run_reporting_errors(all_figures.main, ["gap", f"--workdir={workdir}"]) == 0
    assert {path.name for path in (workdir / "figures").iterdir()} == {"gap.pdf", "gap.png"}
