r"""Test score against epsilon, for every example's privacy and for every cluster's.

    python -m experiments.studies.privacy --config=configs/privacy_clinc150.py \
        --workdir=runs/privacy --seeds=3

Every value of epsilon sets the noise of a whole run. Everything random but the noise is the same in
all runs of a seed. The vocabulary is the start of a public one, ``--pieces`` of its entries, and is
written to the workdir. Every run is a training run in a folder of its own, and resumes if it was
killed. More seeds are the same study, and ``--shard=i/n`` shares the runs.
"""

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from collapipe_jax.cli.options import make_parser, read_numbers, run_training
from collapipe_jax.cli.shards import SHARD, is_done
from collapipe_jax.core.console import make_table
from collapipe_jax.core.statistics import interval_text, mean_interval
from collapipe_jax.learning.tasks.subwords import CONTINUES, SPECIAL_PIECES, WordPiece
from collapipe_jax.runs.config.experiment import Experiment, build_experiment
from collapipe_jax.runs.config.files import parse_overrides, read_config
from collapipe_jax.runs.results.experiment import Results, read_summary
from collapipe_jax.runs.results.store import read_shard
from collapipe_jax.runs.studies.race import train_shard
from experiments.studies.seeds import experiments_of_seeds

NOTHING = ("none", 0.0)
"""Unit and epsilon of a run without privacy."""


def main(argv: Sequence[str]) -> None:
    """Train with every epsilon and seed, and write the scores."""
    parser = make_parser(
        __doc__,
        "config",
        "workdir",
        seeds=(3, "number of seeds, 2 or more"),
        epsilons=("8,30,100,300", "of an example"),
        cluster_epsilons=("1000", "of a cluster"),
        pieces=(1000, "entries of the vocabulary"),
        **SHARD,
    )
    given, overrides = parser.parse_known_args(argv)
    config, console = read_config(given.config, parse_overrides(overrides)), Console()
    settings = [NOTHING]
    for unit, words in (("example", given.epsilons), ("cluster", given.cluster_epsilons)):
        settings += [(unit, value) for value in read_numbers("--epsilons", words)]
    options = {"settings": [f"{unit} {value:g}" for unit, value in settings]}
    results = Results.create(given.workdir, "privacy", options, config.to_dict())
    with_vocabulary(config, results.folder, given.pieces)
    experiments, labels = [], dict[Path, dict[str, Any]]()
    for built in experiments_of_seeds(config, given.seeds):
        seed = built.config["seed"]
        for unit, epsilon in settings:
            experiments.append(with_privacy(built, unit, epsilon))
            folder = results.folder / f"seed{seed}" / f"{unit}{epsilon:g}"
            labels[folder] = {"unit": unit, "epsilon": epsilon, "seed": seed}
    shard = read_shard(given.shard)
    missing = train_shard(experiments, list(labels), console, shard)
    if not is_done(missing, shard, console.print):
        return
    rows = [label | outcome(read_summary(folder)) for folder, label in labels.items()]
    table = summarise(rows)
    results.write_summary({"rows": rows, "scores": table})
    console.print(_table(table))


def with_vocabulary(config: ConfigDict, folder: Path, count: int) -> None:
    """Shorten the vocabulary of a configuration to its start, in a file of the folder."""
    task, path = config.task, folder / "vocab.txt"
    found = WordPiece.from_file(task.vocabulary, task.lowercase).pieces
    WordPiece(short_vocabulary(found, count), task.lowercase).save(path)
    task.update({"vocabulary": str(path), "vocabulary_size": count})


def short_vocabulary(pieces: Sequence[str], count: int) -> list[str]:
    """The special pieces, those of one character, and the first words of a vocabulary.

    BERT's has its words in the order of their frequency.
    """
    letters = string.ascii_lowercase + string.digits + "'-"
    characters = [prefix + each for prefix in ("", CONTINUES) for each in letters]
    needed = [piece for piece in (*SPECIAL_PIECES, *characters) if piece in set(pieces)]
    words = [piece for piece in pieces if piece.removeprefix(CONTINUES).isascii()]
    words = [piece for piece in words if piece.removeprefix(CONTINUES).isalpha()]
    return list(dict.fromkeys([*needed, *words]))[:count]


def with_privacy(built: Experiment, unit: str, epsilon: float) -> Experiment:
    """An experiment with a target of epsilon; corpus and model stay."""
    config = ConfigDict(built.config)
    if unit != NOTHING[0]:
        config.privacy.update({"unit": unit, "epsilon": epsilon})
    return build_experiment(config, like=[built])


def outcome(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Test accuracy of a run, and the noise that it had."""
    spent = summary.get("privacy", {"noise_multiplier": 0.0})
    return {
        "accuracy": summary["test_accuracy"],
        "noise_multiplier": spent["noise_multiplier"],
    }


def summarise(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean accuracy over the seeds with its 95 % interval, for every setting in order."""
    found = []
    for unit, epsilon in dict.fromkeys((row["unit"], row["epsilon"]) for row in rows):
        own = [row for row in rows if (row["unit"], row["epsilon"]) == (unit, epsilon)]
        scores = np.array([row["accuracy"] for row in own])
        noise = {"noise_multiplier": float(np.mean([row["noise_multiplier"] for row in own]))}
        found.append({"unit": unit, "epsilon": epsilon, **noise, "accuracy": mean_interval(scores)})
    return found


def _table(scores: Sequence[Mapping[str, Any]]) -> Any:
    rows = [
        (
            row["unit"],
            f"{row['epsilon']:g}" if row["epsilon"] else "",
            f"{row['noise_multiplier']:.3g}",
            interval_text(row["accuracy"], "{:.1f}"),
        )
        for row in scores
    ]
    return make_table(("unit", "epsilon", "noise multiplier", "test accuracy, %"), rows)


if __name__ == "__main__":
    raise SystemExit(run_training(main))
