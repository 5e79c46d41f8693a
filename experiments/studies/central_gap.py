"""How much collaboration costs in score: collaborative against central training.

    python -m experiments.studies.central_gap --config=tatoeba \
        --workdir=runs/gap --seeds=3

Trains both for every seed on the same number of samples, and prints scores, their paired
difference and its 95 % confidence interval. Goes on with what is finished or saved;
interrupted central runs start anew. More seeds are the same study.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console

from collapipe_jax.cli.options import make_parser, run_training
from collapipe_jax.config.experiment import Experiment
from collapipe_jax.config.files import parse_overrides, read_config
from collapipe_jax.files.results import Results, as_columns
from collapipe_jax.statistics import mean_interval
from collapipe_jax.training.central import train_centrally
from collapipe_jax.training.loop import train_together
from experiments.studies.seeds import experiments_of_seeds


def main(argv: Sequence[str]) -> None:
    """Train both ways for every seed, and print the scores."""
    parser = make_parser(__doc__, "config", "workdir", seeds=(3, "number of seeds, 2 or more"))
    given, overrides = parser.parse_known_args(argv)
    config, console = read_config(given.config, parse_overrides(overrides)), Console()
    experiments = list(experiments_of_seeds(config, given.seeds))
    results = Results.create(given.workdir, "central_gap", {}, config.to_dict())
    folders = [results.folder / f"seed{seed}" for seed in range(len(experiments))]
    console.print("collaborative")
    runs = train_together(experiments, folders, resume=True, console=console)
    rows = [
        {
            "seed": seed,
            "collaborative": run.summary[experiment.objective.headline],
            "central": central,
            "trivial": run.summary[experiment.objective.baseline],
            "simulated_time_s": run.summary["simulated_time_s"],
        }
        for seed, (experiment, run, central) in enumerate(
            zip(experiments, runs, _central_scores(experiments, results, console), strict=True)
        )
    ]
    for row in rows:
        console.print(row)
    report = summarise(rows)
    results.write_summary(report)
    console.print(report["difference"])


def _central_scores(
    experiments: Sequence[Experiment], results: Results, console: Console
) -> list[float]:
    """Headline scores of central training; those on file are not trained anew."""
    parts = [f"central_seed{experiment.config['seed']}" for experiment in experiments]
    missing = results.missing(parts)
    left = [own for own, part in zip(experiments, parts, strict=True) if part in missing]
    trained = train_centrally(left, console) if left else []
    for part, experiment, params in zip(missing, left, trained, strict=True):
        scores = experiment.objective.test(params)
        scores = {key: score for key, score in scores.items() if isinstance(score, int | float)}
        results.write(part, as_columns([scores], "run"))
    headline = experiments[0].objective.headline
    return [results.read(part)[headline].item() for part in parts]


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
