"""Two processes with half of the devices each, against one with all."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax.serialization import from_state_dict
from jax.errors import JaxRuntimeError
from support import ROOT, SUPPORT
from support.metrics import read_metrics

from collapipe_jax.cli.train import main as train_main
from collapipe_jax.core.errors import HostError, InputError, InputErrors, TrainingError
from collapipe_jax.edge.queues import Queues
from collapipe_jax.runs import hosts


def test_one_host_is_the_first_and_works_itself():
    assert hosts.is_first()
    value = object()
    assert hosts.on_first(lambda: value) is value
    with pytest.raises(OSError, match="full"):
        hosts.on_first(_raising(OSError("full")))


def _raising(error):
    def work():
        raise error

    return work


@pytest.fixture
def on_two(monkeypatch):
    """Calls ``hosts.on_first`` on the first of two hosts, then on the other: results or errors."""
    monkeypatch.setattr(hosts.jax, "process_count", lambda: 2)

    def on_host(host, *arguments):
        monkeypatch.setattr(hosts.jax, "process_index", lambda: host)
        try:
            return hosts.on_first(*arguments)
        except Exception as error:
            return error

    def on_both(*arguments):
        sent = []
        monkeypatch.setattr(hosts, "_from_first", lambda message: sent.append(message) or sent[0])
        return on_host(0, *arguments), on_host(1, *arguments)

    return on_both


def test_results_of_the_first_host_reach_the_other_one(on_two):
    value = {"none": None, "list": [1, True, "é"], "f": -0.1, "nan": np.nan, "inf": -np.inf}
    value |= {"rows": np.arange(6, dtype=np.int32).reshape(2, 3)[:, ::2], "zero": np.float32(-0.0)}
    value |= {"key": np.array([], np.uint32), "half": jnp.ones(3, jnp.bfloat16)}
    first, other = on_two(lambda: value)
    assert first is value
    np.testing.assert_equal(other, value)
    assert np.signbit(other["zero"])
    for name in ("rows", "zero", "key", "half"):
        assert other[name].dtype == value[name].dtype

    rounds = [[Queues(energy=np.ones((2, 3), np.float32), divergence=np.array(np.nan))] * 2, []]
    example = Queues(energy=None, divergence=None)
    _, other = on_two(
        lambda: rounds,
        lambda state: [
            [from_state_dict(example, o) for o in own.values()] for own in state.values()
        ],
    )
    np.testing.assert_equal(other, rounds)
    assert type(other[0][1]) is Queues


@pytest.mark.parametrize("value", [len, object(), {"a": os}, {3}, Queues(1, 2)])
def test_a_message_brings_no_code_and_no_types(value, on_two):
    first, _ = on_two(lambda: value)
    assert isinstance(first, TypeError)


@pytest.mark.parametrize(
    "error",
    [
        InputError("key", 1, "is wrong", "Mend it"),
        InputErrors([InputError("key", 1, "is wrong", "Mend it")] * 2),
        OSError(28, "full"),
        TrainingError("x"),
    ],
)
def test_errors_of_the_first_host_reach_the_other_one(error, on_two):
    first, other = on_two(_raising(error))
    assert first is error
    assert isinstance(error, type(other))
    assert str(other) == str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # also to other processes


def test_an_unforeseen_error_reaches_the_other_host(on_two, capsys):
    first, other = on_two(_raising(KeyError("lost")))
    assert type(first) is type(other) is HostError
    assert str(first) == str(other) == "a host has failed: KeyError: 'lost'"
    assert "in work" in capsys.readouterr().err  # where it happened


def test_an_error_of_one_host_says_how_to_go_on(monkeypatch, capsys):
    monkeypatch.setattr(hosts.jax.distributed, "initialize", lambda **_: None)
    monkeypatch.setattr(hosts.os, "_exit", sys.exit)
    monkeypatch.setattr(hosts.time, "sleep", lambda _: None)
    with pytest.raises(TrainingError, match="all have it"), hosts.join("auto"):
        raise TrainingError("all have it")
    for error, status, told in (
        (KeyError("lost"), 1, "error: host 0 of 1 cannot go on (KeyError: 'lost'). If another"),
        (
            JaxRuntimeError("closed"),
            1,
            "error: host 0 of 1 cannot go on (JaxRuntimeError: closed).",
        ),
        (KeyboardInterrupt(), 130, "stopped"),
    ):
        with pytest.raises(SystemExit) as ended, hosts.join("auto"):
            raise error
        printed = capsys.readouterr().err
        assert ended.value.code == status
        assert printed.splitlines()[-1].startswith(told)
        assert ("Traceback" in printed) == isinstance(error, KeyError)


@pytest.mark.parametrize(
    ("address", "count", "index", "told"),
    [
        ("localhost:1", None, None, "number of hosts"),
        ("localhost:1", 2, None, "number of hosts"),
        ("localhost:1", 2, 2, "number of hosts"),
        ("localhost:1", 2, -1, "number of hosts"),
        ("localhost", 2, 0, "no address"),
        (":8476", 2, 0, "no address"),
        ("::1:8476", 2, 0, "no address"),
        ("auto", 2, 0, "knows the hosts"),
    ],
)
def test_wrong_places_of_hosts_are_reported(address, count, index, told):
    with (
        pytest.raises(InputError, match=f"--coordinator.*{told}"),
        hosts.join(address, count, index),
    ):
        pass


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


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _start_hosts(workdir, *options, devices=(2, 2), of_last=()):
    options += (f"--coordinator=127.0.0.1:{_free_port()}", "--hosts=2")
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
    assert "test_bleu" in printed[0]
    assert "test_bleu" not in printed[1]  # the first host speaks for all
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
def test_hosts_listen_at_one_address_alone(tmp_path):
    """A stranger who sees another address of the machine can neither join nor send."""
    workdir = tmp_path / "run"
    processes = _start_hosts(workdir, "--config.training.rounds=100000")
    try:
        while not (workdir / "metrics.jsonl").exists():
            time.sleep(0.1)
            assert all(process.poll() is None for process in processes)
        ports = [port for process in processes for port in _listening(process.pid)]
        assert len(ports) >= 2  # of the coordinator, and of sums over hosts
        for port in ports:
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port), timeout=5)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _listening(pid):
    """TCP ports that a process of Linux listens at."""
    folder = Path(f"/proc/{pid}/fd")
    own = {os.readlink(entry) for entry in folder.iterdir() if entry.is_symlink()}
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return [
        int(row[1].rpartition(":")[2], 16)
        for row in rows
        if row[3] == "0A" and f"socket:[{row[9]}]" in own
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dies", "how", "told"),
    [
        (0, signal.SIGKILL, "the leader task was preempted/died"),
        (1, signal.SIGKILL, "unhealthy (stopped sending heartbeats):\n1\n"),
        (1, signal.SIGSTOP, "unhealthy (stopped sending heartbeats):\n1\n"),
    ],
)
def test_a_host_that_dies_or_hangs_ends_the_other_soon_and_by_name(dies, how, told, tmp_path):
    workdir = tmp_path / "run"
    processes = _start_hosts(workdir, "--config.training.rounds=100000")
    while not (workdir / "metrics.jsonl").exists() or len(read_metrics(workdir)) < 3:
        time.sleep(0.1)
        assert all(process.poll() is None for process in processes)
    processes[dies].send_signal(how)
    start_s = time.monotonic()
    try:
        (status,), (printed,) = _end(processes[1 - dies])
    finally:
        processes[dies].kill()
        processes[dies].communicate()
    assert time.monotonic() - start_s < 2 * hosts.DEAD_AFTER_S
    assert status != 0
    assert told in printed
    if dies == 1 and how == signal.SIGKILL:  # a sum over both fails at once
        assert "error: host 0 of 2 cannot go on" in printed


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
