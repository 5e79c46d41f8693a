"""Training refuses what is wrong with one message, before any work."""

import pytest
from support import SUPPORT

from collapipe_jax.cli import train
from collapipe_jax.cli.options import run_reporting_errors

TINY = str(SUPPORT / "tiny_run.py")


pytestmark = pytest.mark.usefixtures("in_root")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--config=missing.py"], ["--config", "missing.py", "no such file"]),
        (["--config.trainning.batch=2"], ["trainning.batch", "Did you mean training.batch"]),
        (["--config.training.batch=-1"], ["training.batch", "-1", "like 16"]),
        (["--config.model.heads=3"], ["model.heads", "3", "divisor of model.width"]),
        (["--config.task.corpus=de.txt"], ["task.corpus", "de.txt", "COLLAPIPE_DATA"]),
        (["--config.policy.name=best"], ["policy.name", "best", "static_pipeline"]),
    ],
)
def test_program_ends_with_one_message_and_leaves_nothing(tmp_path, capfd, arguments, parts):
    workdir = tmp_path / "run"
    argv = [f"--config={TINY}", f"--workdir={workdir}", *arguments]
    assert run_reporting_errors(train.main, argv) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert all(part in err for part in parts)
    assert not workdir.exists()


def test_program_leaves_a_foreign_workdir_alone(tmp_path, capfd):
    (tmp_path / "thesis.txt").write_text("mine")
    assert run_reporting_errors(train.main, [f"--config={TINY}", f"--workdir={tmp_path}"]) == 2
    assert "workdir" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
