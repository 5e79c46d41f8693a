"""The first five minutes: train with DSSRA and with a static pipeline, compare, draw.

    make quickstart

Results go to ``runs/quickstart``; a second call goes on where the first stopped.
"""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from collapipe_jax.command_line import make_parser, run_training
from configs import quickstart
from experiments.studies.race import race
from figures import all as all_figures

POLICIES = ("dssra", "static_pipeline")


def main(argv: Sequence[str]) -> None:
    """Train twice on the same network and data, print the table, draw the figures."""
    workdir = Path(make_parser(__doc__, workdir="runs/quickstart").parse_args(argv).workdir)
    race(quickstart.get_config(), POLICIES, workdir, Console())
    all_figures.main([f"--workdir={workdir}"])


if __name__ == "__main__":
    raise SystemExit(run_training(main))
