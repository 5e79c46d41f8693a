"""Two processes with half of the devices each, against one with all."""

import os
import pickle
import socket
import subprocess
import sys

import numpy as np
import pytest
from support import ROOT, SUPPORT
from support.metrics import read_metrics

from collapipe_jax import hosts
from collapipe_jax.cli.train import main as train_main
from collapipe_jax.errors import InputError


def test_one_host_is_the_first_and_tells_itself():
    assert hosts.is_first()
    value = {"a": np.arange(3)}
    assert hosts.from_first(value) is value
    with pytest.raises(OSError, match="full"):
        hosts.on_first(_full)


def _full():
    raise OSError("full")


def test_an_unforeseen_error_reaches_all_hosts_as_one_that_can_be_told(monkeypatch, capsys):
    told = []
    monkeypatch.setattr(hosts.jax, "process_count", lambda: 2)
    monkeypatch.setattr(hosts, "from_first", lambda value: told.append(value) or value)
    with pytest.raises(RuntimeError, match="host has failed: KeyError: 'lost'"):
        hosts.on_first(lambda: {}["lost"])
    pickle.dumps(told)
    assert "in <lambda>" in capsys.readouterr().err  # where it happened


def test_an_error_can_be_told_to_others():
    error = InputError("key", 1, "is wrong", "Mend it")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("address", "count", "index", "told"),
    [
        ("localhost:1", None, None, "number of hosts"),
        ("localhost:1", 2, None, "number of hosts"),
        ("localhost:1", 2, 2, "number of hosts"),
        ("localhost:1", 2, -1, "number of hosts"),
        ("localhost", 2, 0, "no address"),
        (":8476", 2, 0, "no address"),
        ("auto", 2, 0, "knows the hosts"),
    ],
)
def test_wrong_places_of_hosts_are_reported(address, count, index, told):
    with pytest.raises(InputError, match=f"--coordinator.*{told}"):
        hosts.join(address, count, index)


@pytest.mark.parametrize("option", ["--hosts=2", "--host=1"])
def test_hosts_without_a_coordinator_are_reported(option, tmp_path):
    arguments = [f"--config={SUPPORT / 'tiny_run.py'}", f"--workdir={tmp_path / 'run'}", option]
    with pytest.raises(InputError, match="without a coordinator"):
        train_main(arguments)
    assert not (tmp_path / "run").exists()


def _start(workdir, devices, *options):
    """A training run in a process of its own."""
    flags = os.environ["XLA_FLAGS"].replace("count=8", f"count={devices}")
    command = [
        sys.executable,
        "-m",
        "collapipe_jax",
        "train",
        f"--config={SUPPORT / 'tiny_run.py'}",
    ]
    command += [f"--workdir={workdir}", "--config.pipeline.backend=sharded", *options]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _start_hosts(workdir, *options, devices=(2, 2), of_last=()):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        options += (f"--coordinator=localhost:{probe.getsockname()[1]}", "--hosts=2")
    return [
        _start(workdir, devices[0], *options, "--host=0"),
        _start(workdir, devices[1], *options, "--host=1", *of_last),
    ]


def _end(*processes):
    """Exit statuses, and what was printed."""
    try:
        printed = [process.communicate(timeout=500)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], printed


@pytest.mark.slow
def test_two_hosts_train_as_one_and_resume(tmp_path):
    alone, together = tmp_path / "alone", tmp_path / "together"
    statuses, printed = _end(_start(alone, 4))
    assert statuses == [0], printed
    statuses, printed = _end(*_start_hosts(together))
    assert statuses == [0, 0], printed
    assert "test_bleu_greedy" in printed[0]
    assert "test_bleu_greedy" not in printed[1]  # the first host speaks for all
    for one, two in zip(read_metrics(alone), read_metrics(together), strict=True):
        assert one["segments"] == two["segments"]
        np.testing.assert_allclose(two["train_loss"], one["train_loss"], rtol=1e-4)

    last = (together / "summary.json").read_bytes(), read_metrics(together)
    (together / "summary.json").unlink()
    newest = max((together / "checkpoints").iterdir(), key=lambda path: int(path.name))
    newest.rename(tmp_path / "gone")
    statuses, printed = _end(*_start_hosts(together, "--resume"))
    assert statuses == [0, 0], printed
    assert ((together / "summary.json").read_bytes(), read_metrics(together)) == last

    # Every host hears of what only the first one sees.
    statuses, printed = _end(*_start_hosts(together))
    assert statuses == [2, 2]
    assert all("holds results already" in text for text in printed)


@pytest.mark.slow
def test_a_host_that_fails_ends_the_others(tmp_path):
    wrong = ("--config.training.no_such_key=1",)
    statuses, printed = _end(*_start_hosts(tmp_path / "run", of_last=wrong))
    assert statuses == [1, 2]
    assert "host 1 of 2 has failed" in printed[0]
    assert "no_such_key" in printed[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "devices", "told"),
    [
        (("--config.pipeline.backend=sequential",), (2, 2), "pipeline.backend = 'sequential'"),
        ((), (4, 4), "--hosts = 2"),
        ((), (1, 3), "[1, 3] devices"),
    ],
)
def test_hosts_that_would_not_share_the_work_are_reported(options, devices, told, tmp_path):
    statuses, printed = _end(*_start_hosts(tmp_path / "run", *options, devices=devices))
    assert statuses == [2, 2]
    assert all(told in text for text in printed)
