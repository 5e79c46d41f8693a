"""Two processes with half of the devices each, against one with all."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support import ROOT, SUPPORT
from support.metrics import read_metrics

from collapipe_jax.cli.train import main as train_main
from collapipe_jax.core.errors import HostError, InputError, TrainingError
from collapipe_jax.edge.control.queues import Queues
from collapipe_jax.runs import heartbeat as signs_of_life
from collapipe_jax.runs import host_messages as messages
from collapipe_jax.runs import hosts


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
    with pytest.raises(HostError, match="host has failed: KeyError: 'lost'"):
        hosts.on_first(lambda: {}["lost"])
    messages.encode(told)
    assert "in <lambda>" in capsys.readouterr().err  # where it happened


def test_an_error_can_be_told_to_others():
    error = InputError("key", 1, "is wrong", "Mend it")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_message_brings_values_arrays_and_structs():
    queues = Queues(energy=np.ones((2, 3), np.float32), divergence=np.array(np.nan))
    value = {"none": None, "pair": (1, [True, "é"]), "f": -0.1, "inf": np.inf, "queues": [queues]}
    value["rows"] = np.arange(6, dtype=np.int32).reshape(2, 3)[:, ::2]
    value["key"] = np.array([], np.uint32)
    found = messages.decode(messages.encode(value))
    np.testing.assert_equal(found, value)
    assert type(found["queues"][0]) is Queues
    assert found["rows"].dtype == np.int32
    assert type(found["pair"]) is tuple


def test_a_message_brings_no_code():
    for value in (len, object(), {1: 2}, {"a": os}, {3}):
        with pytest.raises(TypeError, match="no place for"):
            messages.encode(value)
    head = b'{"struct": ["os", "system", {"command": {"plain": "true"}}]}'
    with pytest.raises(TypeError, match="is no struct here"):
        messages.decode(len(head).to_bytes(8, "little") + head)


def test_errors_arrive_as_they_are_told():
    for error in (
        InputError("key", 1, "is wrong", "Mend it"),
        OSError(28, "full"),
        TrainingError("x"),
    ):
        found = messages.make_error(*messages.describe_error(error))
        assert (type(found), str(found)) == (type(error), str(error))
    found = messages.make_error(*messages.describe_error(KeyError("x")))
    assert isinstance(found, HostError)


class Store:
    """A store of the coordinator, where the other hosts do what a test says."""

    def __init__(self, **found):
        self.found, self.told = found, []

    def key_value_set(self, key, value, allow_overwrite):
        self.told.append(value)

    def key_value_dir_get(self, key):
        if not self.found:
            raise ConnectionError
        return [(f"{key}/{host[1:]}", word) for host, word in self.found.items()]


@pytest.mark.parametrize(
    ("store", "told"),
    [
        (Store(h0="1", h1="1"), "host 1 of 2 has died: no sign of life"),
        (Store(h0="1", h1="failed"), "host 1 of 2 has failed"),
        (Store(), "host 0 of 2, which coordinates the others, has died"),
        (Store(h0="ended", h1="ended"), ""),
    ],
)
def test_a_host_that_falls_silent_is_named(store, told, monkeypatch):
    ended = []
    monkeypatch.setattr(signs_of_life, "PERIOD_S", 0.01)
    monkeypatch.setattr(signs_of_life, "PATIENCE_S", 0.1)
    monkeypatch.setattr(signs_of_life, "_GRACE_S", 0.05)
    monkeypatch.setattr(signs_of_life, "end", ended.append)
    watch = signs_of_life._Watch(store, 0, 2)
    monkeypatch.setattr(watch, "_check", _only(1, watch._check))
    watch.start()
    time.sleep(0.3)
    watch.tell("ended")
    assert [text.startswith(told) for text in ended[:1]] == ([True] if told else [])
    assert store.told[-1] == "ended"


def _only(one, check):
    return lambda host, word: check(host, word) if host == one else None


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
@pytest.mark.parametrize("dies", [0, 1])
def test_a_host_that_is_killed_ends_the_other_soon_and_by_name(dies, tmp_path):
    workdir = tmp_path / "run"
    processes = _start_hosts(workdir, "--config.training.rounds=100000")
    while not (workdir / "metrics.jsonl").exists() or len(read_metrics(workdir)) < 3:
        time.sleep(0.1)
        assert all(process.poll() is None for process in processes)
    processes[dies].send_signal(signal.SIGKILL)
    start_s = time.monotonic()
    statuses, printed = _end(*processes)
    assert time.monotonic() - start_s < 30.0
    assert statuses[1 - dies] == 1
    last = printed[1 - dies].splitlines()[-1]
    assert last.startswith(f"error: host {dies} of 2")
    assert "has died" in last


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
