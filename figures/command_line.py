"""What the figure scripts share on the command line: runs in, files out."""

import argparse
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from collapipe_jax.errors import InputError
from collapipe_jax.files.checkpoints import RunRecord, load_run
from figures.style import save


def figure_parser(description: str | None) -> argparse.ArgumentParser:
    """Parser of ``--workdir``, once or more, and ``--out``."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workdir", required=True, action="append", help="folder of a run; repeat for several"
    )
    parser.add_argument("--out", help="folder for the files (default: figures/ in the first run)")
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
    """Tell what was written."""
    for path in paths:
        print(f"written: {path}")


def draw_and_save(
    argv: Sequence[str],
    description: str | None,
    name: str,
    draw: Callable[[Sequence[RunRecord]], Figure],
) -> None:
    """The whole main of a figure without options of its own."""
    options = figure_parser(description).parse_args(argv)
    print_paths(save(draw(load_runs(options)), out_dir(options), name))


def result_parser(description: str | None, made_by: str) -> argparse.ArgumentParser:
    """Parser of one ``--workdir``, a list of it as for runs, and ``--out``."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", required=True, nargs=1, help=f"folder of {made_by}")
    parser.add_argument("--out", help="folder for the files (default: figures/ in the workdir)")
    return parser


def load_report(workdir: str | os.PathLike, name: str, made_by: str) -> dict[str, Any]:
    """Read what an experiment wrote as one JSON file.

    Args:
      workdir: folder of the file.
      name: of the file.
      made_by: the experiment.

    Raises:
      InputError: if it is not there.
    """
    path = Path(workdir) / name
    if not path.is_file():
        remedy = f"Name the folder in which {made_by} wrote it"
        raise InputError("workdir", str(workdir), f"holds no {name}", remedy)
    return json.loads(path.read_text(encoding="utf-8"))


def draw_result(
    argv: Sequence[str],
    description: str | None,
    made_by: str,
    name: str,
    load: Callable[[str], Any],
    draw: Callable[[Any], Figure],
) -> None:
    """The whole main of a figure of one experiment."""
    options = result_parser(description, made_by).parse_args(argv)
    print_paths(save(draw(load(options.workdir[0])), out_dir(options), name))
