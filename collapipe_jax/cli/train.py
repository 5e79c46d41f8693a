r"""Train a model over a simulated network.

    collapipe train --config=default --workdir=runs/default
    collapipe train --config=default --workdir=runs/default --resume
    collapipe train --config=classification --config.task.train=a.csv \
        --config.task.test=b.csv --workdir=runs/own --linear-baseline

Any key may be set on the way: ``--config.control.v=30``. Draw the figures afterwards
with ``collapipe figures --workdir=runs/default``.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from collapipe_jax import hosts
from collapipe_jax.cli.options import make_parser
from collapipe_jax.config.experiment import Experiment, build_experiment
from collapipe_jax.config.files import parse_overrides, read_values
from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import write_json
from collapipe_jax.training.loop import train


def main(argv: Sequence[str]) -> None:
    """Build the experiment, train, and print the summary."""
    parser = make_parser(__doc__, "config", "workdir")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the workdir")
    add_linear = "also score a linear model on the test set, of classification and tagging"
    parser.add_argument("--linear-baseline", action="store_true", help=add_linear)
    parser.add_argument("--coordinator", help="ADDRESS:PORT of the first host, or auto")
    parser.add_argument("--hosts", type=int, help="how many there are")
    parser.add_argument("--host", type=int, help="which of them this one is, from 0")
    options, overrides = parser.parse_known_args(argv)
    _join(options)

    console, path = Console(), Path(options.workdir) / "summary.json"
    experiment = hosts.on_every(lambda: _build(options, overrides))
    scores = experiment.task.linear_scores if options.linear_baseline else None
    linear = hosts.on_first(lambda: scores(experiment.corpus)) if scores else {}
    run = train(experiment, options.workdir, resume=options.resume, console=console)
    if not hosts.is_first():
        return
    summary = run.summary | linear
    if linear:
        write_json(path, summary)
    for name, value in summary.items():
        console.print(f"{name:32} {value}")


def _build(options: argparse.Namespace, overrides: Sequence[str]) -> Experiment:
    """The experiment of a configuration; all wrong keys and files are reported at once."""
    config, unknown = read_values(options.config, parse_overrides(overrides))
    experiment = build_experiment(config, unknown)
    if options.linear_baseline and experiment.task.linear_scores is None:
        problem = f"there is no linear model of {config.task.kind}"
        remedy = "Leave it out, or set task.kind to classification or tagging"
        raise InputError("--linear-baseline", True, problem, remedy)
    return experiment


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
