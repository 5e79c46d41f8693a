import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest
from support import ROOT

from collapipe_jax.core.errors import InputError, InputWarning
from collapipe_jax.core.files import lock_folder

HOLD = """
import sys
from pathlib import Path
from collapipe_jax.core.files import lock_folder
with lock_folder(Path(sys.argv[1]), shared=len(sys.argv) > 2):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Start another process that holds the lock of ``tmp_path``."""
    processes = []

    def start(*options):
        command = [sys.executable, "-c", HOLD, str(tmp_path), *options]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)
        processes.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_another_process_is_named_and_a_killed_one_leaves_no_lock(holder, tmp_path):
    process = holder()
    told = f"process {process.pid} on .* writes to it"
    with pytest.raises(InputError, match=told), lock_folder(tmp_path):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(tmp_path.iterdir())  # the file is still there
    with lock_folder(tmp_path):
        assert (tmp_path / "run.lock").read_text().startswith(f"process {os.getpid()} on")
    assert not list(tmp_path.iterdir())


def test_shares_exclude_the_whole_and_are_left_one_by_one(holder, tmp_path):
    process = holder("shared")
    with lock_folder(tmp_path, shared=True), lock_folder(tmp_path, "shard_0_of_2"):
        with pytest.raises(InputError, match="writes to it"), lock_folder(tmp_path, "shard_0_of_2"):
            pass
        with lock_folder(tmp_path, shared=True):
            pass
    with pytest.raises(InputError), lock_folder(tmp_path):
        pass
    process.communicate("")
    with lock_folder(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_a_lock_that_was_removed_meanwhile_is_made_anew(tmp_path, monkeypatch):
    whole, calls = fcntl.flock, []

    def flock(descriptor, kind):
        whole(descriptor, kind)
        calls.append(kind)
        if len(calls) == 1:  # its owner had it, and removes it just before we get it
            (tmp_path / "run.lock").unlink()

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock_folder(tmp_path), pytest.raises(InputError), lock_folder(tmp_path):
        pass


def test_a_file_system_without_locks_is_told(tmp_path, monkeypatch):
    def flock(descriptor, kind):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.warns(InputWarning, match="has no locks"), lock_folder(tmp_path):
        pass
