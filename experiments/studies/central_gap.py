"""How much collaboration costs in score: collaborative against central training.

    python -m experiments.studies.central_gap --config=tatoeba \
        --workdir=runs/gap --seeds=3

Trains both for every seed on the same number of samples, and prints scores, their paired
difference and its 95 % confidence interval. Goes on with what is finished or saved;
interrupted central runs start anew. More seeds are the same study. Several processes share the
seeds with ``--shard=i/n``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console

from collapipe_jax.cli.options import make_parser, run_training
from collapipe_jax.cli.shards import SHARD, is_done
from collapipe_jax.config.experiment import Experiment
from collapipe_jax.config.files import parse_overrides, read_config
from collapipe_jax.files.results import Results, as_columns
from collapipe_jax.files.workdir import read_summary
from collapipe_jax.simulation.montecarlo import Shard, read_shard
from collapipe_jax.statistics import mean_interval
from collapipe_jax.training.central import train_centrally
from collapipe_jax.training.shards import train_shard
from experiments.studies.seeds import experiments_of_seeds


def main(argv: Sequence[str]) -> None:
    """Train both ways for every seed, and print the scores."""
    parser = make_parser(
        __doc__, "config", "workdir", seeds=(3, "number of seeds, 2 or more"), **SHARD
    )
    given, overrides = parser.parse_known_args(argv)
    config, console = read_config(given.config, parse_overrides(overrides)), Console()
    shard = read_shard(given.shard)
    experiments = list(experiments_of_seeds(config, given.seeds))
    results = Results.create(given.workdir, "central_gap", {}, config.to_dict())
    folders = [results.folder / f"seed{seed}" for seed in range(len(experiments))]
    console.print("collaborative")
    missing = train_shard(experiments, folders, console, shard)
    parts = [f"central_seed{experiment.config['seed']}" for experiment in experiments]
    _train_centrally(experiments, parts, results, console, shard)
    if not is_done(missing + len(results.missing(parts)), shard, console.print):
        return
    rows = []
    for seed, (experiment, folder, part) in enumerate(
        zip(experiments, folders, parts, strict=True)
    ):
        objective, summary = experiment.objective, read_summary(folder, "study")
        row = {
            "seed": seed,
            "collaborative": summary[objective.headline],
            "central": results.read(part)[objective.headline].item(),
            "trivial": summary[objective.baseline],
            "simulated_time_s": summary["simulated_time_s"],
        }
        rows.append(row)
    for row in rows:
        console.print(row)
    report = summarise(rows)
    results.write_summary(report)
    console.print(report["difference"])


def _train_centrally(
    experiments: Sequence[Experiment],
    parts: Sequence[str],
    results: Results,
    console: Console,
    shard: Shard,
) -> None:
    """Write the scores of central training; those on file are not trained anew."""
    missing = results.missing(shard.of(parts))
    left = [own for own, part in zip(experiments, parts, strict=True) if part in missing]
    trained = train_centrally(left, console) if left else []
    for part, experiment, params in zip(missing, left, trained, strict=True):
        scores = experiment.objective.test(params)
        scores = {key: score for key, score in scores.items() if isinstance(score, int | float)}
        results.write(part, as_columns([scores], "run"))


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means, and the paired difference with its confidence interval."""
    ways = {way: np.array([row[way] for row in rows]) for way in ("collaborative", "central")}
    with np.errstate(divide="ignore", invalid="ignore"):
        share = float(np.mean(ways["collaborative"] / ways["central"]))
    return {
        "seeds": rows,
        **{way: float(scores.mean()) for way, scores in ways.items()},
        "trivial": float(np.mean([row["trivial"] for row in rows])),
        "share": share,
        "difference": mean_interval(ways["collaborative"] - ways["central"]),
    }


if __name__ == "__main__":
    raise SystemExit(run_training(main))
