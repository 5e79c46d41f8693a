"""What all command-line programs share: one message for wrong input, exit status 2."""

import sys
from collections.abc import Callable, Sequence

from collapipe_jax.errors import InputError


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
