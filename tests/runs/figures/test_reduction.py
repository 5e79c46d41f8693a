"""Savings of dssra, network by network."""

import numpy as np
import pytest
from support.drawing import rendered
from support.made_up_comparisons import EIGHT, compared, row_artists, write_comparison

from collapipe_jax.cli.options import run_reporting_errors
from collapipe_jax.runs.figures import comparison
from figures import __main__ as all_figures


def test_reduction_is_paired_and_signed(tmp_path):
    def change(drawn, values):
        values["titanic"]["energy_j"] = 4 * values["dssra"]["energy_j"]
        values["greedy"]["energy_j"] = 0.5 * values["dssra"]["energy_j"]
        values["random"]["energy_j"][1] = np.inf

    result = compared(tmp_path, change=change)
    told = comparison.reductions(result)["energy_j"]
    assert list(told) == list(EIGHT[1:])
    np.testing.assert_allclose(told["titanic"], 75)
    np.testing.assert_allclose(told["greedy"], -100)
    assert told["random"][1] == 100
    axes = comparison.draw_reduction(result).axes[3]
    marked, _ = row_artists(axes, list(told).index("titanic"))
    np.testing.assert_allclose(marked["."], 75)
    np.testing.assert_allclose(marked["o"], [75])


def test_great_losses_stretch_the_axis(tmp_path):
    def change(drawn, values):
        values["titanic"]["energy_j"] = values["dssra"]["energy_j"] / 500

    figure = rendered(comparison.draw_reduction(compared(tmp_path, change=change)))
    assert figure.axes[3].get_xscale() == "symlog"
    assert figure.axes[3].get_xlim()[0] < -49900
    assert figure.axes[2].get_xscale() == "linear"


@pytest.mark.parametrize("names", [("greedy", "random"), ("dssra",)])
def test_nothing_to_reduce_is_reported(names, tmp_path, capsys):
    write_comparison(tmp_path / "c", names=names)
    arguments = ["reduction", f"--workdir={tmp_path / 'c'}"]
    assert run_reporting_errors(all_figures.main, arguments) == 2
    assert "without dssra and another policy" in capsys.readouterr().err
    assert not (tmp_path / "c" / "figures").exists()
