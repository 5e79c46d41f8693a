"""The benchmark of clipped gradients on sizes of its own."""

import pytest

from collapipe_jax.cli.options import run_reporting_errors
from experiments.benchmarks import privacy


@pytest.mark.slow
def test_every_number_of_gradients_has_its_row(capsys):
    sizes = {"width": 8, "blocks": 1, "vocabulary": 20, "batch": 4, "sequence": 4, "repeats": 1}
    argv = [f"--{name}={value}" for name, value in sizes.items()]
    assert run_reporting_errors(privacy.main, [*argv, "--at-once=1,4"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in ("plain", "1 at once", "4 at once"))


def test_wrong_sizes_are_reported(capsys):
    assert run_reporting_errors(privacy.main, ["--repeats=0"]) == 2
    assert "--repeats" in capsys.readouterr().err
