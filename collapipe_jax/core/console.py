"""What a terminal shows: progress, as a bar there and a line a minute in a file, and tables."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

_PERIOD_S = 60.0
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
            if time.monotonic() - shown_s >= _PERIOD_S or now >= total:
                shown_s = time.monotonic()
                show(status)

    if status:
        show(status)
    yield advance


def tell_phase(console: Console, what: str) -> None:
    """Tell what begins and may take long, in a line of the style of :func:`progress`."""
    console.print(what, soft_wrap=True, markup=False, highlight=False)


def track(items: Iterable[_Item], what: str, total: int, console: Console) -> Iterator[_Item]:
    """The items, with the progress of what is done with them."""
    with progress(console, what, total) as advance:
        for item in items:
            yield item
            advance(1, "")


# Tables of results in a terminal.

COMPACT = {"box": box.SIMPLE, "padding": (0, 1, 0, 0), "pad_edge": False}
"""Style of a table with many columns."""


_LONGEST_NAME = 20
"""Letters of a name that is never broken."""


def make_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1, **style: Any
) -> Table:
    """A table of ``left`` columns of words, then of numbers; ``style`` is that of rich."""
    usual: dict[str, Any] = {"title_justify": "left", "caption_justify": "left"}
    table, rows = Table(**usual | style), list(rows)
    for place, heading in enumerate(headings):
        is_words = place < left
        side = "left" if is_words else "right"
        # Names stay whole, and the other columns get narrower. Where the terminal is narrow, other
        # text goes on in another line: it is never cut.
        whole = is_words and all(_is_name(row[place]) for row in rows)
        table.add_column(heading, justify=side, overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*row)
    return table


def _is_name(text: str) -> bool:
    """Whether text is a short word, or some in a line each, at none of whose letters to break."""
    return " " not in text and max(map(len, text.split("\n"))) <= _LONGEST_NAME


def name_lines(name: str, width: int = 13) -> str:
    r"""A name in lines that end with one of its signs, for a table with many columns.

    >>> name_lines("control_unit_split")
    'control_unit_\nsplit'
    """
    lines = [""]
    for word in re.findall(r"[^_.:]+[_.:]*", name):
        lines += [""] if len(lines[-1] + word) > width and lines[-1] else []
        lines[-1] += word
    return "\n".join(lines)


def console_for_tables(width: int) -> Console:
    """A console as wide as the terminal; where the output is none, as the tables need."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


def setting_text(value: Any) -> str:
    """A value of a key of the configuration, without digits that nobody set."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def value_text(value: Any) -> str:
    """A score or a list of them as a reader wants it; the file has all digits."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {value_text(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value))
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)
