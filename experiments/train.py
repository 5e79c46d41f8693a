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

from collapipe_jax import hosts
from collapipe_jax.command_line import run_training
from collapipe_jax.config.experiment import build_experiment
from collapipe_jax.errors import InputError
from collapipe_jax.training.loop import train
from experiments.configuration import read_config


def main(argv: Sequence[str]) -> None:
    """Build the experiment, train, and print the summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="a file with get_config()")
    parser.add_argument("--workdir", required=True, help="where metrics and checkpoints go")
    parser.add_argument("--resume", action="store_true", help="go on with what is there")
    parser.add_argument("--coordinator", help="ADDRESS:PORT of the first host, or auto")
    parser.add_argument("--hosts", type=int, help="how many there are")
    parser.add_argument("--host", type=int, help="which of them this one is, from 0")
    options, overrides = parser.parse_known_args(argv)
    _join(options)

    config = hosts.on_every(lambda: read_config(options.config, overrides))
    experiment = hosts.on_every(lambda: build_experiment(config))
    console = Console()
    train(experiment, options.workdir, resume=options.resume, console=console)
    if not hosts.is_first():
        return
    summary = json.loads((Path(options.workdir) / "summary.json").read_text(encoding="utf-8"))
    for name, value in summary.items():
        console.print(f"{name:32} {value}")


def _join(options: argparse.Namespace) -> None:
    """Become one of several hosts where that is asked for."""
    if options.coordinator is not None:
        hosts.join(options.coordinator, options.hosts, options.host)
        return
    for name in ("hosts", "host"):
        value = getattr(options, name)
        if value is not None:
            remedy = "Give --coordinator=ADDRESS:PORT of the first host"
            raise InputError(f"--{name}", value, "says nothing without a coordinator", remedy)


if __name__ == "__main__":
    sys.exit(run_training(main, sys.argv[1:]))
