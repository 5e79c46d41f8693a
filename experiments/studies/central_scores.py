"""Validation scores of a model trained in one place, to choose settings by.

    python -m experiments.studies.central_scores --config=clinc150:plain \
        --config.model.ngram_buckets=20000

Trains as the central run of ``central_gap`` with the same seed, and prints loss and score on the
validation set. With ``--test`` it prints those on the test set, too. ``--export`` names a folder
for the trained model.
"""

import time
from collections.abc import Sequence

from rich.console import Console

from collapipe_jax.cli.options import make_parser, run_training
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.config.files import parse_overrides, read_config
from experiments.studies.central import train_centrally


def main(argv: Sequence[str]) -> None:
    """Train, and print the scores."""
    parser = make_parser(__doc__, "config", export=("", "folder for the trained model"))
    parser.add_argument("--test", action="store_true", help="score on the test set, too")
    given, overrides = parser.parse_known_args(argv)
    config, console = read_config(given.config, parse_overrides(overrides)), Console()
    start, experiment = time.monotonic(), build_experiment(config)
    (run,) = train_centrally([experiment], console)
    task = experiment.task
    loss = task.loss(run.params, task.data.validation)
    row = {"seed": config.seed, "validation_loss": loss, "validation_score": run.score}
    row |= task.test(run.params) if given.test else {}
    console.print(row | {"duration_s": round(time.monotonic() - start)})
    if given.export:
        task.export(run.params, given.export)


if __name__ == "__main__":
    raise SystemExit(run_training(main))
