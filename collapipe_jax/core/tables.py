"""Tables of results in a terminal."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

COMPACT = {"box": box.SIMPLE, "padding": (0, 1, 0, 0), "pad_edge": False}
"""Style of a table with many columns."""


def make_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1, **style: Any
) -> Table:
    """A table of ``left`` columns of words, then of numbers; ``style`` is that of rich."""
    usual: dict[str, Any] = {"title_justify": "left", "caption_justify": "left"}
    table = Table(**usual | style)
    for place, heading in enumerate(headings):
        is_words = place < left
        side = "left" if is_words else "right"
        # Where the terminal is narrow, text goes on in another line: it is never cut.
        table.add_column(heading, justify=side, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def console_for_tables(width: int) -> Console:
    """A console as wide as the terminal; where the output is none, as the tables need."""
    console = Console()
    return console if console.is_terminal else Console(width=width)
