"""Folders in, files out."""

import numpy as np
from support.drawing import make_record

from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.files.checkpoints import Checkpoints, open_workdir
from figures import command_line, gantt, latency


def test_default_folder_is_in_the_first_run():
    options = command_line.figure_parser(None).parse_args(["--workdir=x", "--workdir=y"])
    assert str(command_line.out_dir(options)) == "x/figures"


def test_figure_from_a_checkpoint(tmp_path):
    record = make_record("titanic", rounds=3)
    config = {"policy": {"name": "titanic"}, "task": {"kind": "translation"}}
    workdir = open_workdir(tmp_path / "run", config, resume=False)
    with Checkpoints(workdir) as checkpoints:
        saved = {"constants": record.constants, "history": record.history}
        checkpoints.save(3, {"weights": np.zeros(2)}, saved)
    assert run_reporting_errors(gantt.main, [f"--workdir={workdir}"]) == 0
    names = {path.name for path in (workdir / "figures").iterdir()}
    assert names == {"gantt.pdf", "gantt.png"}
    loaded = command_line.load_run(workdir)
    np.testing.assert_array_equal(latency.slowest_parts_s(loaded), latency.slowest_parts_s(record))


def test_missing_run_is_reported(tmp_path, capsys):
    assert run_reporting_errors(gantt.main, [f"--workdir={tmp_path / 'nowhere'}"]) == 2
    assert "nowhere" in capsys.readouterr().err
