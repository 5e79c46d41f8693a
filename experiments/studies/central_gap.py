"""How much collaboration costs in score: collaborative against central training.

    python -m experiments.studies.central_gap --config=tatoeba \
        --workdir=runs/gap --seeds=3

Trains both for every seed on the same number of samples, and prints scores, their paired
difference and its 95 % confidence interval. Goes on with what is finished or saved; an
interrupted central run starts anew. More seeds are the same study.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from collapipe_jax.cli.options import make_parser, run_training
from collapipe_jax.config.experiment import Experiment
from collapipe_jax.config.files import parse_overrides, read_config
from collapipe_jax.files.results import Results, as_columns
from collapipe_jax.statistics import mean_interval
from collapipe_jax.training.central import central_round, initial_central_state
from collapipe_jax.training.loop import train
from experiments.studies.seeds import experiments_of_seeds


def main(argv: Sequence[str]) -> None:
    """Train both ways for every seed, and print the scores."""
    parser = make_parser(__doc__, "config", "workdir", seeds=(3, "number of seeds, 2 or more"))
    given, overrides = parser.parse_known_args(argv)
    config, console = read_config(given.config, parse_overrides(overrides)), Console()
    experiments = experiments_of_seeds(config, given.seeds)
    results = Results.create(given.workdir, "central_gap", {}, config.to_dict())
    rows = []
    for seed, experiment in enumerate(experiments):
        console.print(f"seed {seed}: collaborative")
        folder = results.folder / f"seed{seed}"
        train(experiment, folder, resume=True, console=console)
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        row = {
            "seed": seed,
            "collaborative": summary[experiment.objective.headline],
            "central": _central_score(experiment, results, console),
            "trivial": summary[experiment.objective.baseline],
            "simulated_time_s": summary["simulated_time_s"],
        }
        console.print(row)
        rows.append(row)
    report = summarise(rows)
    results.write_summary(report)
    console.print(report["difference"])


def _central_score(experiment: Experiment, results: Results, console: Console) -> float:
    """Headline score of central training, from file if it is there."""
    part, headline = f"central_seed{experiment.config['seed']}", experiment.objective.headline
    if results.missing([part]):
        state = initial_central_state(experiment)
        rounds = experiment.config["training"]["rounds"]
        for index in track(range(rounds), description="central", console=console):
            state, _ = central_round(experiment, state, index)
        scores = experiment.objective.test(state.params)
        scores = {key: score for key, score in scores.items() if isinstance(score, int | float)}
        results.write(part, as_columns([scores], "run"))
    return results.read(part)[headline].item()


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
