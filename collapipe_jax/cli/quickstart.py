"""The first five minutes: train with DSSRA and with a static pipeline, compare, draw.

    collapipe quickstart

Results go to ``runs/quickstart``; a second call goes on where the first stopped.
"""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from collapipe_jax.cli.options import make_parser
from collapipe_jax.runs.config.named import quickstart
from collapipe_jax.runs.figures.draw import draw_folders
from collapipe_jax.runs.studies.race import race

_POLICIES = ("dssra", "static_pipeline")


def main(argv: Sequence[str]) -> None:
    """Train twice on the same network and data, print the table, draw the figures."""
    workdir = Path(make_parser(__doc__, workdir="runs/quickstart").parse_args(argv).workdir)
    race(quickstart(), _POLICIES, workdir, Console())
    for path in draw_folders([str(workdir)], workdir / "figures"):
        print(f"written: {path}")
