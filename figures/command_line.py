"""Command lines of figures: folders in, files out."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from collapipe_jax.command_line import make_parser
from collapipe_jax.files.checkpoints import RunRecord, load_run
from figures.style import save

_OUT = (None, "folder for the files (default: figures/ in the first workdir)")
Main = Callable[[Sequence[str]], None]


def figure_parser(description: str | None, *, several: bool = True) -> argparse.ArgumentParser:
    """Parser of ``--workdir``, a list of one folder or of several, and ``--out``."""
    parser = make_parser(description, out=_OUT)
    how = {"action": "append"} if several else {"nargs": 1}
    words = "folder of results" + ("; repeat for several" if several else "")
    parser.add_argument("--workdir", required=True, help=words, **how)
    return parser


def load_runs(options: argparse.Namespace) -> list[RunRecord]:
    """Read every run named on the command line.

    Raises:
      InputError: a folder is missing or holds no run.
    """
    return [load_run(workdir) for workdir in options.workdir]


def out_dir(options: argparse.Namespace) -> Path:
    """Folder that the files go to."""
    return Path(options.out) if options.out else Path(options.workdir[0]) / "figures"


def print_paths(paths: Iterable[Path]) -> None:
    """Print what was written."""
    for path in paths:
        print(f"written: {path}")


def main_of_runs(
    description: str | None, name: str, draw: Callable[[Sequence[RunRecord]], Figure]
) -> Main:
    """The program of a figure over training runs.

    Args:
      description: docstring of its module.
      name: of the files.
      draw: what draws it.
    """

    def main(argv: Sequence[str]) -> None:
        options = figure_parser(description).parse_args(argv)
        print_paths(save(draw(load_runs(options)), out_dir(options), name))

    return main


def main_of_results(
    description: str | None, name: str, load: Callable[[str], Any], draw: Callable[[Any], Figure]
) -> Main:
    """The program of a figure of one experiment.

    Args:
      description: docstring of its module.
      name: of the files.
      load: reader of its workdir.
      draw: what draws it.
    """

    def main(argv: Sequence[str]) -> None:
        options = figure_parser(description, several=False).parse_args(argv)
        print_paths(save(draw(load(options.workdir[0])), out_dir(options), name))

    return main
