"""Train a model over a simulated network.

    python -m experiments.train --config=configs/default.py --workdir=runs/default
    python -m experiments.train --config=configs/default.py --workdir=runs/default --resume

Any key may be set on the way: ``--config.control.v=30``. Draw the figures afterwards
with ``python -m figures.all --workdir=runs/default``.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from collapipe_jax.build import build_experiment
from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.train import train
from configs import default
from experiments.configuration import read_config


def main(argv: Sequence[str]) -> None:
    """Build the experiment, train, and print the summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="a file with get_config()")
    parser.add_argument("--workdir", required=True, help="where metrics and checkpoints go")
    parser.add_argument("--resume", action="store_true", help="go on with what is there")
    options, overrides = parser.parse_known_args(argv)

    config = read_config(options.config, overrides)
    experiment = build_experiment(config, default.get_config())
    console = Console()
    train(experiment, options.workdir, resume=options.resume, console=console)
    summary = json.loads((Path(options.workdir) / "summary.json").read_text(encoding="utf-8"))
    for name, value in summary.items():
        console.print(f"{name:32} {value}")


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
