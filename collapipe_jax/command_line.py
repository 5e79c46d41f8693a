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
