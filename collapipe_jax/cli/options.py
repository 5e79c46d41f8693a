"""Options of all commands, and one message for wrong input."""

import argparse
import errno
import inspect
import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from collapipe_jax.core.compilation import keep_freed_memory
from collapipe_jax.core.errors import (
    HostError,
    InputError,
    InputWarning,
    TrainingError,
    collect,
    meant,
)
from collapipe_jax.core.stopping import exit_status, stopped_text, terminable
from collapipe_jax.runs.config import NAMED

_HELP = {
    "config": "NAME, FILE.py or package.module, with :VARIANT where it has some; names: "
    + ", ".join(NAMED),
    "workdir": "folder for the results",
    "out": "file to write",
    "rounds": "length of the horizon",
    "realisations": "number of networks, each with its fading",
    "chunk": "realisations at a time",
    "policies": "names, with commas",
    "x": "horizontal axis, KEY=v1,v2,... with a key of the configuration",
    "y": "vertical axis, as --x",
    "networks": "number of networks in a cell, each with its fading",
    "tolerance": "share of networks, or of clusters, that a policy may fail",
    "model": "workdir of a run that has ended, or its folder model/, or a copy",
    "data": "labelled file (docs/file-formats.md)",
    "instance": "network on file",
    "decision": "decision on file",
}


_EXTRAS = {
    **dict.fromkeys(("orbax", "tokenizers", "sacrebleu", "seqeval", "jinja2"), "train"),
    **dict.fromkeys(("sklearn", "requests", "urllib3"), "train"),
    "matplotlib": "figures",
    "tensorboardX": "tensorboard",
    **{name: name for name in ("wandb", "trackio")},
    "submitit": "cluster",
    "dp_accounting": "privacy",
}
"""Extras of the package by the modules that they bring."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MAKE_ROOM = (
    ". Nothing on file is lost. Make room, or raise the limit; the same command goes on then, "
    "train with --resume."
)


class Parser(argparse.ArgumentParser):
    """A parser that reports wrong options as an ``InputError``, like all wrong input."""

    def error(self, message: str) -> NoReturn:
        """Raise the error."""
        remedy = f"{self.prog} --help shows all options"
        raise InputError("options", " ".join(sys.argv[1:]), message, remedy)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As ``argparse``, after a check for misspelt options, which names the nearest ones."""
        known = [flag for action in self._actions for flag in action.option_strings]
        with collect() as step:
            for argument in sys.argv[1:] if args is None else args:
                option = argument.partition("=")[0]
                is_known = any(flag.startswith(option) for flag in known)
                if is_known or not option.startswith("--") or option.startswith("--config."):
                    continue
                with step():
                    remedy = meant(option, known) or f"{self.prog} --help shows all"
                    raise InputError("option", option, "no such option", remedy)
        return super().parse_known_args(args, namespace)


class _Help(argparse.RawDescriptionHelpFormatter):
    """The docstring of a program as it is, and the default of every option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        words = action.help
        if (
            not words
            or "default" in words
            or action.default in (None, "", False, [], "==SUPPRESS==")
        ):
            return words
        return f"{words} (default: %(default)s)"


def make_parser(description: str | None, *required: str, **options: Any) -> Parser:
    """A parser that shows the docstring of a program as it is.

    Args:
      description: the docstring.
      *required: names of options that must be given.
      **options: for the others the default, of the option's type, or the type of one without; or a
        pair of it and a help text. One of False is a flag.
    """
    parser = Parser(description=description, formatter_class=_Help)
    for name in required:
        parser.add_argument(f"--{name}", required=True, help=_HELP.get(name))
    for name, option in options.items():
        default, words = option if isinstance(option, tuple) else (option, _HELP.get(name))
        kind = str if default is None else type(default)
        if isinstance(default, type):
            kind, default = default, None
        how: dict[str, Any] = {"type": kind, "default": default}
        if default is False:
            how = {"action": "store_true"}
        parser.add_argument(_flag(name), help=words, **how)
    return parser


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def refuse_given(
    given: argparse.Namespace, options: Mapping[str, Any], problem: str, remedy: str
) -> None:
    """Refuse options without effect, as of :func:`make_parser`, that are not at their defaults.

    Raises:
      InputError: naming all of them.
    """
    with collect() as step:
        for name, option in options.items():
            with step():
                value = getattr(given, name.replace("-", "_"))
                default = option[0] if isinstance(option, tuple) else option
                if value != (None if isinstance(default, type) else default):
                    raise InputError(_flag(name), value, problem, remedy)


def run_reporting_errors(
    main: Callable[[Sequence[str]], None], argv: Sequence[str] | None = None
) -> int:
    """Run a program; print wrong input, or a file that cannot be written, as one message.

    Several wrong inputs take a line each in it. A warning of input takes a line of its own.

    Returns:
      The exit status: 0, 1 after training that broke down, 2 after an error, 130 after Ctrl-C, 143
      after SIGTERM.
    """
    try:
        with terminable(), warnings.catch_warnings():
            warnings.simplefilter("default", InputWarning)
            warnings.showwarning = _show_warning(warnings.showwarning)
            main(sys.argv[1:] if argv is None else argv)
    except BrokenPipeError:  # who reads the output has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (InputError, TrainingError, HostError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    except OSError as error:
        remedy = _MAKE_ROOM if error.errno in _FULL else ""
        print(f"error: {error}{remedy}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        remedy = f"pip install 'collapipe-jax[{extra}]'"
        print(f"error: {error.name} is not installed. {remedy} brings it.", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(stopped_text(stop), file=sys.stderr)
        return exit_status(stop)
    return 0


def _show_warning(otherwise: Callable[..., None]) -> Callable[..., None]:
    """What prints an ``InputWarning`` as one line, and any other warning otherwise."""

    def show(message: Warning, category: type[Warning], *place: Any) -> None:
        if issubclass(category, InputWarning):
            print(f"warning: {message}", file=sys.stderr)
        else:
            otherwise(message, category, *place)

    return show


def run_training(main: Callable[[Sequence[str]], None], argv: Sequence[str] | None = None) -> int:
    """As :func:`run_reporting_errors`, for the first program in a process that uses JAX.

    Memory is set up for many steps of training.
    """
    keep_freed_memory()
    return run_reporting_errors(main, argv)


def add_sweep(parser: Parser) -> None:
    """Add the option ``--sweep``, which may be repeated."""
    words = "axis KEY=v1,v2,...; repeat it for more"
    parser.add_argument("--sweep", action="append", default=[], help=words)


def given_of(**options: Any) -> dict[str, Any]:
    """Options that are given; one that is not is None or False, which 0 is not."""
    return {
        name: value for name, value in options.items() if value is not None and value is not False
    }


def options_of(method: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Options of a predictor's method that are given; one that it lacks is an ``InputError``."""
    chosen = given_of(**options)
    for name in set(chosen) - set(inspect.signature(method).parameters):
        problem = "has no meaning for a model of this task"
        raise InputError(f"--{name.replace('_', '-')}", chosen[name], problem, "Leave it out")
    return chosen


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
