"""What all command-line programs share: one message for wrong input, exit status 2."""

import math
import sys
from collections.abc import Callable, Sequence

from rich.console import Console

from collapipe_jax.errors import InputError
from collapipe_jax.host_memory import keep_freed_memory


def run_reporting_errors(main: Callable[[Sequence[str]], None], argv: Sequence[str]) -> int:
    """Run a program; print wrong input, or a file that cannot be written, as one message.

    Args:
      main: the program.
      argv: its arguments, without its name.

    Returns:
      The exit status: 0, or 2 after an error.
    """
    try:
        main(argv)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run_training(main: Callable[[Sequence[str]], None], argv: Sequence[str]) -> int:
    """As :func:`run_reporting_errors`, with memory set up for many steps of training.

    Args:
      main: the program; the first to use JAX in this process.
      argv: its arguments, without its name.

    Returns:
      The exit status: 0, or 2 after an error.
    """
    keep_freed_memory()
    return run_reporting_errors(main, argv)


def console_for_tables(width: int) -> Console:
    """A console as wide as the terminal, or as told where the output is none.

    Args:
      width: columns that the program's tables need.
    """
    console = Console()
    return console if console.is_terminal else Console(width=width)


def require_positive(**counts: int) -> None:
    """Check that options which count something are 1 or more.

    Args:
      **counts: what was given, by the name of the option.

    Raises:
      InputError: naming the first that is not.
    """
    for name, value in counts.items():
        if value < 1:
            key = f"--{name.replace('_', '-')}"
            raise InputError(key, value, "not positive", "Give 1 or more")


def read_numbers(key: str, text: str, zero: bool = True) -> list[float]:
    """Different numbers written with commas, from the least on.

    Args:
      key: of the option, for errors.
      text: what was given.
      zero: whether 0 is allowed.

    Raises:
      InputError: if a word is no finite number from 0 on, or is a 0 that is not allowed.
    """
    try:
        values = {float(word) for word in text.split(",")}
    except ValueError:
        values = {math.nan}
    if not all(0.0 <= value < math.inf for value in values) or (0.0 in values and not zero):
        kind = "numbers from 0 on" if zero else "positive numbers"
        raise InputError(key, text, f"not a list of {kind}", "Write it like 1,10,100")
    return sorted(values)
