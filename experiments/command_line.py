"""What the command-line programs share: one message for wrong input, exit status 2."""

import sys
from collections.abc import Callable, Sequence

from collapipe_jax.errors import InputError


def run_reporting_errors(main: Callable[[Sequence[str]], None], argv: Sequence[str]) -> int:
    """Run a program; print wrong input as one message and return the exit status."""
    try:
        main(argv)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
