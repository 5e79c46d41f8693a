"""Shards as jobs: options, and shards that are lost on the way."""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from support import ROOT
from support.metrics import read_metrics

from collapipe_jax.cli import cluster, sweep
from collapipe_jax.cli.cluster import read_hosts, read_options, run_shards
from collapipe_jax.cli.train import main as train
from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.results.realisations import load_points


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


def given(**options):
    options = {"cluster": "slurm", "hosts": 8, "cluster_options": "nodes=2,gpus=4"} | options
    return argparse.Namespace(**options)


def test_hosts_of_a_run_are_the_tasks_of_one_job_with_a_gpu_each(monkeypatch):
    monkeypatch.setattr(cluster, "run_hosts", lambda kind, options: (kind, options))
    sizes = {"nodes": 2, "gpus_per_node": 4, "tasks_per_node": 4}
    assert read_hosts(given())() == ("slurm", sizes)
    local = given(cluster="local", hosts=2, cluster_options="cpus=1")
    sizes = {"nodes": 1, "cpus_per_task": 1, "tasks_per_node": 2}
    assert read_hosts(local)() == ("local", sizes)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"cluster": "cloud"}, "no such cluster"),
        ({"hosts": None}, "no multiple"),
        ({"hosts": 0}, "no multiple"),
        ({"hosts": 7}, "no multiple of 2 nodes"),
        ({"cluster_options": "nodes=0"}, "Give 1 or more"),
        ({"cluster_options": "nodes=2,gpus=2"}, "Give gpus=4"),
        ({"cluster": "local"}, "not on one machine"),
        ({"cluster": "local", "cluster_options": "gpus=8"}, "not on one machine"),
    ],
)
def test_wrong_hosts_are_reported(options, told):
    with pytest.raises(InputError, match=told):
        read_hosts(given(**options))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ([], "would all do the same work"),
        (["--host=1"], "--cluster tells"),
        (["--shards=2"], "not of a single run"),
        (["--config.training.rounds=0"], "training.rounds"),
        (["--seeds=2"], "not with a sweep"),
    ],
)
def test_hosts_that_cannot_train_are_not_started(more, told, tmp_path):
    options = ["--cluster=local", "--hosts=2", f"--workdir={tmp_path / 'run'}"]
    with pytest.raises(InputError, match=told):
        train(["--config=support.tiny_run", *options, *more])
    assert not (tmp_path / "run").exists()


def python(*command):
    """A program in a process of its own."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    flags = os.environ["XLA_FLAGS"].replace("count=8", "count=2")
    environment = {**os.environ, "PYTHONPATH": paths, "XLA_FLAGS": flags}
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_command_starts_the_hosts_of_a_run(tmp_path):
    """Two hosts of two devices each; what they lose is done again from the newest checkpoint."""
    workdir = tmp_path / "run"
    command = ["collapipe_jax", "train", "--config=support.tiny_run", f"--workdir={workdir}"]
    command += ["--config.pipeline.backend=sharded", "--cluster=local", "--hosts=2"]
    with python(*command) as process:
        told = process.communicate()[0]
    assert process.returncode == 0, told
    assert told.count("starting 2 hosts on local") == 1
    assert "test_bleu" in told
    (workdir / "summary.json").unlink()
    rounds = len(read_metrics(workdir))
    newest = max((workdir / "checkpoints").iterdir(), key=lambda path: int(path.name))
    newest.rename(tmp_path / "gone")
    before = (workdir / "metrics.jsonl").read_bytes()
    with python(*command) as process:
        told = process.communicate()[0]
    assert process.returncode == 0, told
    assert rounds == 6
    assert "3 rounds are missing" in told
    assert (workdir / "metrics.jsonl").read_bytes() == before


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
    command = ["collapipe_jax", "sweep", *arguments(workdir)]
    command += ["--cluster=local", "--shards=3", "--workers=2"]
    with python(*command) as process:
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
