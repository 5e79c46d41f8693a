"""How much collaboration costs in score: collaborative against central training.

    python -m experiments.central_gap --config=configs/translation_tatoeba.py \
        --workdir=runs/gap --seeds=3

Trains both for every seed on the same number of samples, and prints scores, their
paired difference and its 95 % confidence interval. Goes on with what is finished
or saved; an interrupted central run starts anew.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from collapipe_jax.command_line import run_training
from collapipe_jax.config.experiment import Experiment, build_experiment
from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import write_text
from collapipe_jax.training.central import (
    central_learner,
    central_round,
    initial_central_state,
)
from collapipe_jax.training.loop import train
from experiments.configuration import read_config
from experiments.intervals import mean_interval


def main(argv: Sequence[str]) -> None:
    """Train both ways for every seed and print what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="a file with get_config()")
    parser.add_argument("--workdir", required=True, help="where results go")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, 2 or more")
    options, overrides = parser.parse_known_args(argv)
    if options.seeds < 2:
        raise InputError("--seeds", options.seeds, "no interval from so few", "Give 2 or more")

    console = Console()
    root = Path(options.workdir)
    rows = []
    for seed in range(options.seeds):
        config = read_config(options.config, [*overrides, f"--config.seed={seed}"])
        experiment = build_experiment(config)
        console.print(f"seed {seed}: collaborative")
        folder = root / f"seed{seed}"
        train(experiment, folder, resume=True, console=console)
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        central = _train_centrally(experiment, root / f"seed{seed}_central.json", console)
        rows.append(
            {
                "seed": seed,
                "collaborative": summary[experiment.objective.headline],
                "central": central[experiment.objective.headline],
                "trivial": summary[experiment.objective.baseline],
                "simulated_time_s": summary["simulated_time_s"],
            }
        )
        console.print(rows[-1])
    report = _report(rows)
    write_text(root / "central_gap.json", json.dumps(report, indent=1) + "\n")
    console.print(report["difference"])


def _train_centrally(experiment: Experiment, path: Path, console: Console) -> dict:
    """Scores of central training, from file if they are there already."""
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["config"] == json.loads(json.dumps(experiment.config)):
            return found
        raise InputError(
            "workdir", str(path), "belongs to another configuration", "Choose another workdir"
        )
    state = initial_central_state(experiment)
    rounds = experiment.config["training"]["rounds"]
    for index in track(range(rounds), description="central", console=console):
        state, _ = central_round(experiment, state, index)
    params = central_learner(experiment).params(state)
    result = {**experiment.objective.test(params), "config": experiment.config}
    write_text(path, json.dumps(result, indent=1) + "\n")
    return result


def _report(rows: list[dict]) -> dict:
    """Means, and the paired difference with its confidence interval."""
    difference = np.array([row["collaborative"] - row["central"] for row in rows])
    return {
        "seeds": rows,
        "collaborative": float(np.mean([row["collaborative"] for row in rows])),
        "central": float(np.mean([row["central"] for row in rows])),
        "trivial": float(np.mean([row["trivial"] for row in rows])),
        "share": float(np.mean([row["collaborative"] / row["central"] for row in rows])),
        "difference": mean_interval(difference),
    }


if __name__ == "__main__":
    sys.exit(run_training(main, sys.argv[1:]))
