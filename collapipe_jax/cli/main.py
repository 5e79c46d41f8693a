"""Dispatch of ``collapipe COMMAND``; what a command needs is imported once it is known."""

import importlib
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from collapipe_jax.core.errors import meant

COMMANDS = {
    "quickstart": "train with two policies on synthetic text, compare, draw: 1 to 3 minutes",
    "train": "train a model over a simulated network",
    "predict": "use a trained model on texts",
    "evaluate": "score a trained model on a labelled file",
    "compare": "evaluate all policies on the same networks, without training",
    "sweep": "compare policies at all combinations of values of configuration keys",
    "map": "show which policy wins where in a plane of two configuration keys",
    "figures": "draw what a folder of results holds",
    "report": "write one page of HTML that shows what a folder of results holds",
    "sample": "write a network, drawn from a configuration, to a file",
    "plan": "let a policy decide for a network on file, and explain the decision",
    "price": "evaluate the cost of a decision on file",
    "fetch": "download public corpora and models",
    "completion": "print what completes commands and options in bash, zsh or fish",
}
_TRAINING = ("quickstart", "train")
_USAGE = """\
usage: collapipe COMMAND [options]

Train language models over simulated wireless edge networks.

commands:
{commands}

collapipe COMMAND --help shows the options of a command, collapipe --version the version.
Compiled programs are kept in ~/.cache/collapipe_jax; COLLAPIPE_CACHE names another folder, or
is "off"."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    It is 0, 1 after training that broke down, 2 after wrong input, 130 after Ctrl-C,
    or 143 after SIGTERM.
    """
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        print(_USAGE.format(commands="\n".join(f"  {c:{width}}  {COMMANDS[c]}" for c in COMMANDS)))
        return 0
    if name in ("-V", "--version"):
        print(f"collapipe-jax {metadata.version('collapipe-jax')}")
        return 0
    if name not in COMMANDS:
        remedy = meant(name, COMMANDS) or "collapipe --help lists all commands."
        print(f"error: command = {name!r}: no such command. {remedy}", file=sys.stderr)
        return 2
    sys.argv[0] = f"collapipe {name}"  # as parsers show it
    # XLA asks for a bug report where compiling takes minutes, as it may on a busy machine. What is
    # wrong with a program arrives as an exception anyway.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.path.append(os.getcwd())  # where modules of one's own may be; last, to hide nothing

    from collapipe_jax.cli.options import run_reporting_errors, run_training
    from collapipe_jax.core.compilation import keep_compiled_programs

    keep_compiled_programs()
    run = run_training if name in _TRAINING else run_reporting_errors
    return run(lambda rest: importlib.import_module(f"{__package__}.{name}").main(rest), rest)
