"""Progress of long work: a bar on a terminal, a line a minute in a file."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PERIOD_S = 60.0
"""Least time between two lines."""
_Item = TypeVar("_Item")


@contextlib.contextmanager
def progress(
    console: Console, what: str, total: int, done: int = 0, status: str = ""
) -> Iterator[Callable[[int, str], None]]:
    """Show how much of some work is done.

    Args:
      console: where.
      what: the plural of a step.
      total: number of steps.
      done: steps of earlier calls.
      status: what happens before the first step.

    Yields:
      A function that takes a number of new steps and a status. Threads may share it.
    """
    if console.is_terminal or console.is_jupyter:
        columns = BarColumn(bar_width=10), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, TextColumn("{task.fields[status]}"), console=console) as bar:
            task = bar.add_task(what, total=total, completed=done, status=status)
            yield lambda steps, status: bar.update(task, advance=steps, status=status)
        return
    lock, first, shown_s, now = threading.Lock(), (done, time.monotonic()), time.monotonic(), done

    def show(status: str) -> None:
        text = f"{what} {now}/{total}"
        if now > first[0]:
            left_s = (total - now) * (time.monotonic() - first[1]) / (now - first[0])
            text += f", {left_s:.0f} s left"
        line = f"{text} {status}".rstrip()
        console.print(line, soft_wrap=True, markup=False, highlight=False)

    def advance(steps: int, status: str) -> None:
        nonlocal now, shown_s
        with lock:
            now += steps
            if time.monotonic() - shown_s >= PERIOD_S or now >= total:
                shown_s = time.monotonic()
                show(status)

    if status:
        show(status)
    yield advance


def track(items: Iterable[_Item], what: str, total: int, console: Console) -> Iterator[_Item]:
    """The items, with the progress of what is done with them."""
    with progress(console, what, total) as advance:
        for item in items:
            yield item
            advance(1, "")
