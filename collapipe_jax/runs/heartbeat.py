"""Signs of life of several hosts: one that dies ends the others, with a sentence that names it.

Every host counts up a number in the coordinator's store, and looks at the numbers of the others. It
does so in a thread of its own, since the main one may wait for a host that is no more.
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import jax
from jax._src import distributed  # JAX has no public name for the store

from collapipe_jax.core.errors import HostError, InputError, TrainingError
from collapipe_jax.stopping import exit_status

PERIOD_S = 1.0
PATIENCE_S = 15.0
"""Time without a sign of life after which a host counts as dead."""
_GRACE_S = 5.0  # for a host to tell of its own error, which another one has too
_KEY = "collapipe/alive"
_ENDED, _FAILED = "ended", "failed"
_KEPT: list[Any] = []  # handlers that C knows, out of reach of the garbage collector


class _Watch:
    """What a host knows of the others."""

    def __init__(self, client: Any, index: int, count: int):
        self._client, self._index, self._count = client, index, count
        self._found: dict[str, str] = {}
        self._answered_s = time.monotonic()
        self._seen: dict[int, tuple[str, float]] = {}
        self._over = threading.Event()

    def start(self) -> None:
        """Watch in threads until :meth:`tell`: one may wait for an answer for minutes."""
        for work in (self._ask, self._watch):
            threading.Thread(target=work, daemon=True).start()

    def tell(self, word: str) -> None:
        """Tell the others that this host has ended or failed, and watch no more."""
        self._over.set()
        with contextlib.suppress(Exception):  # the coordinator may be gone
            self._client.key_value_set(f"{_KEY}/{self._index}", word, allow_overwrite=True)

    def _ask(self) -> None:
        number, key = 0, f"{_KEY}/{self._index}"
        while not self._over.wait(PERIOD_S):
            number += 1
            with contextlib.suppress(Exception):  # no answer; the other thread notices
                self._client.key_value_set(key, str(number), allow_overwrite=True)
                self._found = dict(self._client.key_value_dir_get(_KEY))
                self._answered_s = time.monotonic()

    def _watch(self) -> None:
        while not self._over.wait(PERIOD_S):
            if time.monotonic() - self._answered_s > PATIENCE_S:
                end(_unreachable(self._count))
            for host in range(self._count):
                self._check(host, self._found.get(f"{_KEY}/{host}", ""))

    def _check(self, host: int, word: str) -> None:
        """End if a host has failed, or was silent for too long."""
        now_s = time.monotonic()
        before, since_s = self._seen.setdefault(host, (word, now_s))
        if word != before:
            self._seen[host] = word, now_s
        elif word == _FAILED and now_s - since_s > _GRACE_S:
            end(f"host {host} of {self._count} has failed; see its output")
        elif word not in (_ENDED, _FAILED) and now_s - since_s > PATIENCE_S:
            end(f"host {host} of {self._count} has died: no sign of life for {PATIENCE_S:g} s")


def _unreachable(count: int) -> str:
    return f"host 0 of {count}, which coordinates the others, has died or is out of reach"


def _name_first_host(address: str, count: int) -> None:
    """Say that the first host has died where JAX aborts because of that, after its own output."""
    host, _, port = address.rpartition(":")

    def handle(number: int) -> None:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=2.0).close()
        except OSError:
            end(_unreachable(count))
        ctypes.CDLL(None).signal(number, None)  # as without this handler

    # Python's own handlers run between its instructions, and an abort ends the process before.
    kept = ctypes.CFUNCTYPE(None, ctypes.c_int)(handle)
    _KEPT.append(kept)
    ctypes.CDLL(None).signal(signal.SIGABRT, kept)


def end(problem: str) -> None:
    """End this process at once; no other host would answer a goodbye."""
    print(f"error: {problem}. Start all hosts again with --resume.", file=sys.stderr, flush=True)
    os._exit(1)


@contextlib.contextmanager
def watched(index: int, count: int) -> Iterator[None]:
    """Watch the other hosts during a block, and let them know how it ended."""
    state = distributed.global_state
    watch = _Watch(state.client, index, count)
    watch.start()
    if index:
        _name_first_host(str(state.coordinator_address), count)
    try:
        yield
    except (InputError, TrainingError, HostError):  # all hosts have it
        watch.tell(_ENDED)
        raise
    except OSError:  # perhaps of this host alone; others that have it end by themselves
        watch.tell(_FAILED)
        raise
    except KeyboardInterrupt as stop:
        watch.tell(_FAILED)
        print("stopped", file=sys.stderr, flush=True)
        os._exit(exit_status(stop))
    except Exception as error:
        if isinstance(error, jax.errors.JaxRuntimeError):
            time.sleep(PATIENCE_S + _GRACE_S)  # a host that died is the likely cause, and is named
        traceback.print_exc()
        watch.tell(_FAILED)
        time.sleep(2 * _GRACE_S)  # so that the others hear of it
        os._exit(1)
    watch.tell(_ENDED)
