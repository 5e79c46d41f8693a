"""Stopping a program by a signal: Ctrl-C, or SIGTERM as Slurm and Kubernetes send it."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM. Whatever treats Ctrl-C treats it alike, but for the exit status."""


class Stop(threading.Event):
    """Set once a signal asks to stop."""

    kind: type[KeyboardInterrupt] = KeyboardInterrupt  # of the signal


def exit_status(stop: KeyboardInterrupt) -> int:
    """That of a program that a signal ended: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


def stopped_text(stop: KeyboardInterrupt) -> str:
    """What a program says that a signal ended: what is saved, where something is."""
    return f"stopped: {stop}" if stop.args else "stopped"


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Raise :class:`Terminated` at SIGTERM, unless a program around this one handles it."""

    def handle(number: int, frame: Any) -> None:
        del number, frame
        raise Terminated

    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, handle)
    try:
        with _nothing_swallowed():
            yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


_AGAIN_S = 0.05


@contextlib.contextmanager
def _nothing_swallowed() -> Iterator[None]:
    """Send a signal again whose exception was ignored, as in a callback of garbage collection."""

    def send_again(ignored: Any) -> None:
        if not isinstance(ignored.exc_value, KeyboardInterrupt):
            before(ignored)
            return
        is_term = isinstance(ignored.exc_value, Terminated)
        number = signal.SIGTERM if is_term else signal.SIGINT
        # Later: now it would be ignored once more.
        threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number)).start()

    before, sys.unraisablehook = sys.unraisablehook, send_again
    try:
        yield
    finally:
        sys.unraisablehook = before


def restore_sigterm() -> None:
    """Give SIGTERM back to Python's handler where a library written in C took its place."""
    handler = signal.getsignal(signal.SIGTERM)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def stop_between_steps() -> Iterator[Stop]:
    """Let Ctrl-C and SIGTERM wait for the end of a step; a second Ctrl-C does not wait.

    A second SIGTERM waits too: several senders may pass on one request.

    Yields:
      What a signal sets. A thread other than the main one is interrupted at once as ever.
    """
    asked = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: Any) -> None:
        del frame
        if number == signal.SIGTERM:
            asked.kind = Terminated
        else:
            signal.signal(signal.SIGINT, before[signal.SIGINT])
        asked.set()

    before: dict[int, Any] = {signal.SIGINT: signal.signal(signal.SIGINT, ask)}
    handler = signal.getsignal(signal.SIGTERM)
    # One of a program around this one stays: jobs that Slurm queues again have theirs.
    if handler is signal.SIG_DFL or getattr(handler, "__module__", "") == __name__:
        before[signal.SIGTERM] = signal.signal(signal.SIGTERM, ask)
    try:
        yield asked
    finally:
        for number, handle in before.items():
            signal.signal(number, handle)
