"""Train a model over a simulated network.

    collapipe train --config=default --workdir=runs/default
    collapipe train --config=default --workdir=runs/default --resume

Any key may be set on the way: ``--config.control.v=30``. Draw the figures afterwards
with ``python -m figures --workdir=runs/default``.
"""

import argparse
from collections.abc import Sequence

from rich.console import Console

from collapipe_jax import hosts
from collapipe_jax.cli.options import make_parser
from collapipe_jax.config.experiment import build_experiment
from collapipe_jax.config.files import parse_overrides, read_config
from collapipe_jax.errors import InputError
from collapipe_jax.training.loop import train


def main(argv: Sequence[str]) -> None:
    """Build the experiment, train, and print the summary."""
    parser = make_parser(__doc__, "config", "workdir")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the workdir")
    parser.add_argument("--coordinator", help="ADDRESS:PORT of the first host, or auto")
    parser.add_argument("--hosts", type=int, help="how many there are")
    parser.add_argument("--host", type=int, help="which of them this one is, from 0")
    options, overrides = parser.parse_known_args(argv)
    _join(options)

    config = hosts.on_every(lambda: read_config(options.config, parse_overrides(overrides)))
    experiment = hosts.on_every(lambda: build_experiment(config))
    console = Console()
    run = train(experiment, options.workdir, resume=options.resume, console=console)
    if hosts.is_first():
        for name, value in run.summary.items():
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
            raise InputError(f"--{name}", value, "has no meaning without a coordinator", remedy)
