"""How much collaboration costs in score: collaborative against central training.

    python -m experiments.studies.central_gap --config=tatoeba \
        --workdir=runs/gap --seeds=3 --rates=0.5,1,2

Trains both for every seed on the same number of samples, and prints scores, their paired
difference and its 95 % confidence interval. With ``--rates=0.5,1,2`` each way trains at every
multiple of the configured learning rates on the first seed, and on the others with the one whose
validation score is best. Goes on with what is finished or saved; interrupted central runs start
anew. More seeds and rates are the same study. Several processes share the runs with
``--shard=i/n``.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from collapipe_jax.cli.options import make_parser, read_numbers, run_training
from collapipe_jax.cli.shards import SHARD, is_done
from collapipe_jax.core.statistics import mean_interval
from collapipe_jax.runs.config.experiment import Experiment, at_rate
from collapipe_jax.runs.config.files import parse_overrides, read_config
from collapipe_jax.runs.results.checkpoints import load_entry
from collapipe_jax.runs.results.experiment import Results, as_columns
from collapipe_jax.runs.results.store import Shard, read_shard
from collapipe_jax.runs.studies.race import train_shard
from experiments.studies.central import train_centrally
from experiments.studies.seeds import experiments_of_seeds

WAYS = ("collaborative", "central")
Row = dict[str, Any]
"""A run: its seed, rate and scores."""
Entrants = Iterable[tuple[Experiment, float]]
"""Experiments, each with a multiple of its learning rates."""


def main(argv: Sequence[str]) -> None:
    """Train both ways for every seed, and print the scores."""
    parser = make_parser(
        __doc__,
        "config",
        "workdir",
        seeds=(3, "number of seeds, 2 or more"),
        rates=("1", "multiples of the learning rates, with commas"),
        **SHARD,
    )
    given, overrides = parser.parse_known_args(argv)
    config, console = read_config(given.config, parse_overrides(overrides)), Console()
    rates = read_numbers("--rates", given.rates, zero=False)
    shard = read_shard(given.shard)
    experiments = list(experiments_of_seeds(config, given.seeds))
    results = Results.create(given.workdir, "central_gap", {}, config.to_dict())
    rows = _Study(results, console, shard).train_all(experiments, rates)
    if rows is None:
        return
    report = summarise(rows)
    for row in report["seeds"]:
        console.print(row)
    results.write_summary(report)
    console.print(report["difference"])


@dataclasses.dataclass
class _Study:
    """What all runs of the study share."""

    results: Results
    console: Console
    shard: Shard

    def train_all(
        self, experiments: Sequence[Experiment], rates: Sequence[float]
    ) -> dict[str, list[Row]] | None:
        """Rows of both ways, one a seed, at the best rate of each way.

        Returns:
          None if other shards lack some.
        """
        first = experiments[:1] if len(rates) > 1 else experiments
        tried = self._train({way: [*itertools.product(first, rates)] for way in WAYS})
        if tried is None or len(rates) == 1:
            return tried
        merit = experiments[0].task.merit
        best = {
            way: max(rows, key=lambda row: merit(row["validation"])) for way, rows in tried.items()
        }
        others = self._train(
            {way: [(own, best[way]["rate"]) for own in experiments[1:]] for way in WAYS}
        )
        return None if others is None else {way: [best[way], *others[way]] for way in WAYS}

    def _train(self, entrants: Mapping[str, Entrants]) -> dict[str, list[Row]] | None:
        """Train what is not on file, both ways in batches; rows of all, or None."""
        own = {
            way: [(at_rate(experiment, rate), rate) for experiment, rate in pairs]
            for way, pairs in entrants.items()
        }
        collaborative = [experiment for experiment, _ in own["collaborative"]]
        folders = [self.results.folder / _name(*pair) for pair in own["collaborative"]]
        self.console.print("collaborative")
        missing = train_shard(collaborative, folders, self.console, self.shard)
        parts = [f"central_{_name(*pair)}" for pair in own["central"]]
        self._train_centrally([experiment for experiment, _ in own["central"]], parts)
        missing += len(self.results.missing(parts))
        if not is_done(missing, self.shard, self.console.print):
            return None
        return {
            "collaborative": [self._collaborative(*pair) for pair in own["collaborative"]],
            "central": [self._central(*pair) for pair in own["central"]],
        }

    def _train_centrally(self, experiments: Sequence[Experiment], parts: Sequence[str]) -> None:
        """Write the scores of central training; those on file are not trained anew."""
        missing = self.results.missing(self.shard.of(parts))
        left = [own for own, part in zip(experiments, parts, strict=True) if part in missing]
        trained = train_centrally(left, self.console) if left else []
        for part, experiment, run in zip(missing, left, trained, strict=True):
            scores = experiment.task.test(run.params)
            scores = {key: score for key, score in scores.items() if isinstance(score, int | float)}
            self.results.write(part, as_columns([{"validation": run.score} | scores], "run"))

    def _collaborative(self, experiment: Experiment, rate: float) -> Row:
        task, seed = experiment.task, experiment.config["seed"]
        folder = self.results.folder / _name(experiment, rate)
        entry = {"policy": experiment.config["policy"]["name"], "rate": rate, "seed": seed}
        run = load_entry(**entry, folder=folder.name, headline=task.headline, workdir=folder)
        return {
            "seed": seed,
            "rate": rate,
            "validation": run.validation_score,
            "score": run.summary[task.headline],
            "trivial": run.summary[task.trivial_headline],
            "simulated_time_s": run.summary["simulated_time_s"],
        }

    def _central(self, experiment: Experiment, rate: float) -> Row:
        found = self.results.read(f"central_{_name(experiment, rate)}")
        return {
            "rate": rate,
            "validation": found["validation"].item(),
            "score": found[experiment.task.headline].item(),
        }


def _name(experiment: Experiment, rate: float) -> str:
    """Name of a run's folder or part."""
    return f"seed{experiment.config['seed']}" + (f"_x{rate:g}" if rate != 1.0 else "")


def summarise(rows: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """Means, and the paired difference with its confidence interval.

    Args:
      rows: of both ways by seed.
    """
    ways = {way: np.array([row["score"] for row in rows[way]]) for way in WAYS}
    seeds = [
        {
            "seed": ours["seed"],
            "collaborative": ours["score"],
            "central": theirs["score"],
            "trivial": ours["trivial"],
            "simulated_time_s": ours["simulated_time_s"],
        }
        for ours, theirs in zip(rows["collaborative"], rows["central"], strict=True)
    ]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = float(np.mean(ways["collaborative"] / ways["central"]))
    return {
        "seeds": seeds,
        "rates": {way: rows[way][0]["rate"] for way in WAYS},
        **{way: float(scores.mean()) for way, scores in ways.items()},
        "trivial": float(np.mean([row["trivial"] for row in seeds])),
        "share": share,
        "difference": mean_interval(ways["collaborative"] - ways["central"]),
    }


if __name__ == "__main__":
    raise SystemExit(run_training(main))
