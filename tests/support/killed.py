"""What a process that is killed at any moment leaves in its workdir."""

import os
import shutil
import signal
import time
from pathlib import Path


def states_on_disk(process, workdir, copies, is_enough):
    """Copies of a running process's workdir; each is what SIGKILL would leave behind then.

    The process is stopped while it is copied, and killed once ``is_enough(workdir)``.
    """
    taken, seen = [], []
    while process.poll() is None:
        if (now := _listing(workdir)) == seen:
            time.sleep(0.002)
            continue
        process.send_signal(signal.SIGSTOP)
        stopped = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if stopped.si_code != os.CLD_STOPPED:  # it ended just before
            break
        if workdir.exists():
            seen = _listing(workdir)
            taken.append(Path(shutil.copytree(workdir, copies / str(len(taken)))))
            if is_enough(workdir):
                process.send_signal(signal.SIGKILL)
        else:
            seen = now
        process.send_signal(signal.SIGCONT)
    return taken


def _listing(workdir):
    """Names and sizes of all that is there."""
    found = []
    for folder, folders, files in os.walk(workdir):
        found += [os.path.join(folder, name) for name in folders]
        for name in files:
            try:
                found.append((os.path.join(folder, name), os.stat(f"{folder}/{name}").st_size))
            except FileNotFoundError:
                found.append(name)
    return sorted(map(str, found))
