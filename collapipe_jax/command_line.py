"""Helpers of all command-line programs: options, tables, one message for wrong input."""

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from collapipe_jax.compilation import keep_freed_memory
from collapipe_jax.errors import InputError

_HELP = {
    "config": "a file with get_config(), as FILE or FILE:ARGUMENT",
    "workdir": "folder for the results",
    "out": "file to write",
    "rounds": "length of the horizon",
    "realisations": "number of networks, each with its fading",
    "chunk": "realisations at a time",
    "policies": "names, with commas",
    "instance": "network on file",
    "decision": "decision on file",
}


def make_parser(description: str | None, *required: str, **options: Any) -> argparse.ArgumentParser:
    """A parser that shows the docstring of a program as it is.

    Args:
      description: the docstring.
      *required: names of options that must be given.
      **options: for the others the default, of the option's type, or a pair of it and a help text.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in required:
        parser.add_argument(f"--{name}", required=True, help=_HELP.get(name))
    for name, option in options.items():
        default, words = option if isinstance(option, tuple) else (option, _HELP.get(name))
        flag = f"--{name.replace('_', '-')}"
        kind = str if default is None else type(default)
        parser.add_argument(flag, type=kind, default=default, help=words)
    return parser


COMPACT = {"box": box.SIMPLE, "padding": (0, 1, 0, 0), "pad_edge": False}
"""Style of a table with many columns."""


def make_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1, **style: Any
) -> Table:
    """A table of ``left`` columns of words, then of numbers; ``style`` is that of rich."""
    usual: dict[str, Any] = {"title_justify": "left", "caption_justify": "left"}
    table = Table(**usual | style)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < left else "right")
    for row in rows:
        table.add_row(*row)
    return table


def run_reporting_errors(
    main: Callable[[Sequence[str]], None], argv: Sequence[str] | None = None
) -> int:
    """Run a program; print wrong input, or a file that cannot be written, as one message.

    Returns:
      The exit status: 0, or 2 after an error.
    """
    try:
        main(sys.argv[1:] if argv is None else argv)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run_training(main: Callable[[Sequence[str]], None], argv: Sequence[str] | None = None) -> int:
    """As :func:`run_reporting_errors`, for the first program in a process that uses JAX.

    Memory is set up for many steps of training.
    """
    keep_freed_memory()
    return run_reporting_errors(main, argv)


def console_for_tables(width: int) -> Console:
    """A console as wide as the terminal; where the output is none, as the tables need."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


def require_positive(**counts: int) -> None:
    """Check, or raise an ``InputError``, that options by these names are 1 or more."""
    for name, value in counts.items():
        if value < 1:
            key = f"--{name.replace('_', '-')}"
            raise InputError(key, value, "not positive", "Give 1 or more")


def read_numbers(key: str, text: str, zero: bool = True) -> list[float]:
    """Different numbers written with commas, from the least on.

    Raises:
      InputError: for the option ``key``, if a word is no finite number from 0 on, or is a 0 that
        is not allowed.
    """
    try:
        values = {float(word) for word in text.split(",")}
    except ValueError:
        values = {math.nan}
    if not all(0.0 <= value < math.inf for value in values) or (0.0 in values and not zero):
        kind = "numbers from 0 on" if zero else "positive numbers"
        raise InputError(key, text, f"not a list of {kind}", "Write it like 1,10,100")
    return sorted(values)


def read_counts(key: str, text: str) -> list[int]:
    """Positive integers written with commas, in their order.

    Raises:
      InputError: for the option ``key``, if a word is no positive integer.
    """
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) for word in words):
        raise InputError(key, text, "not a list of positive integers", "Write it like 1,2,4")
    return [int(word) for word in words]
