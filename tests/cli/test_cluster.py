"""Shards as jobs: options, and shards that are lost on the way."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from support import ROOT

from collapipe_jax.cli import sweep
from collapipe_jax.cli.cluster import read_options, run_shards
from collapipe_jax.errors import InputError
from collapipe_jax.files.realisations import load_points


def test_options_of_jobs_have_the_names_of_the_cluster():
    found = read_options("partition=gpu,time=90,cpus=4,slurm_qos=low", "slurm")
    assert found == {
        "slurm_partition": "gpu",
        "timeout_min": 90,
        "cpus_per_task": 4,
        "slurm_qos": "low",
    }
    assert read_options("gpus=1", "local") == {"gpus_per_node": 1}
    for wrong, kind in (("partition", "slurm"), ("partition=gpu", "local")):
        with pytest.raises(InputError, match="--cluster-options"):
            read_options(wrong, kind)


def test_jobs_that_finish_nothing_end_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr("collapipe_jax.cli.cluster._run_locally", lambda *_: None)
    with pytest.raises(InputError, match="3 parts are missing as before"):
        run_shards("local", 2, 2, {}, tmp_path, "sweep", [], lambda count: {0: 1, 1: 2})


def arguments(workdir):
    return [
        "--config=support.tiny_run",
        f"--workdir={workdir}",
        "--sweep=control.v=1,3,10",
        "--rounds=2",
        "--realisations=4",
        "--chunk=2",
        "--policies=static_pipeline,vanilla_fl",
    ]


def children(process):
    path = pathlib.Path(f"/proc/{process}/task/{process}/children")
    return [int(child) for child in path.read_text().split()]


@pytest.mark.slow
def test_a_lost_worker_starts_again_and_nothing_else_is_done_twice(tmp_path):
    """Three shards; the first to finish a part is killed."""
    workdir = tmp_path / "run"
    command = [sys.executable, "-m", "collapipe_jax", "sweep", *arguments(workdir)]
    command += ["--cluster=local", "--shards=3", "--workers=2"]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None and not list(workdir.glob("parts/*_*/*/*.json")):
            time.sleep(0.02)
        controllers = children(process.pid)
        os.kill(children(controllers[0])[0], signal.SIGKILL)
        done = {path: path.stat().st_mtime_ns for path in workdir.glob("parts/**/*.json")}
        told = process.communicate()[0]
    assert process.returncode == 0, told
    assert told.count("parts are missing; starting") == 2
    assert {path: path.stat().st_mtime_ns for path in done} == done
    sweep.main(arguments(tmp_path / "plain"))
    assert [point.policies.keys() for point in load_points(workdir, "sweep")]
    one, other = (json.loads((tmp_path / n / "summary.json").read_text()) for n in ("run", "plain"))
    assert one == other
