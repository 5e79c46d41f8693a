"""The first five minutes: train with DSSRA and with a static pipeline, compare, draw.

    make quickstart

Results go to ``runs/quickstart``; a second call goes on where the first stopped.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from collapipe_jax.command_line import run_training
from configs import quickstart
from experiments.race import race

POLICIES = ("dssra", "static_pipeline")


def main(argv: Sequence[str]) -> None:
    """Train twice on the same network and data, print the table, draw the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", default="runs/quickstart", help="where results go")
    race(quickstart.get_config(), POLICIES, Path(parser.parse_args(argv).workdir), Console())


if __name__ == "__main__":
    sys.exit(run_training(main, sys.argv[1:]))
