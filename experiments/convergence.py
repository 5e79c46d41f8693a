r"""How losses slow the learning of a real task, one cause at a time.

    python -m experiments.convergence --config=configs/convergence_clinc150.py \
        --workdir=runs/convergence --seeds=12

Every cluster's blocks stand on its first devices, cut evenly, at full power, in a fixed number
of micro-batches. Around one such decision the number of micro-batches, of stages and the
interference vary; everything random is the same in all runs of a seed. Every run is a training
run in a folder of its own, gone on with if it was killed. Writes ``convergence.json``.
"""

import argparse
import dataclasses
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table
from scipy import stats

from collapipe_jax.command_line import run_training
from collapipe_jax.config.experiment import Experiment, build_experiment
from collapipe_jax.config.system import build_system
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.feasibility import usable_blocks
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.static_pipeline import split_equally, with_equal_resources
from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import write_text
from collapipe_jax.files.checkpoints import RunRecord
from collapipe_jax.policies.registry import Policy
from collapipe_jax.training.loop import train
from experiments.configuration import read_config
from experiments.intervals import mean_interval

LAST_SHARE = 0.25
"""Share of the rounds, the last ones, over which the training loss is averaged."""


class Setting(NamedTuple):
    """What one run differs in from another of its seed.

    Attributes:
      micro_batches: ``M`` of all clusters.
      stages: devices that hold blocks, in every cluster.
      activity: part of the time that senders of other clusters interfere.
    """

    micro_batches: int = 2
    stages: int = 2
    activity: float = 0.5

    @property
    def name(self) -> str:
        """Of the run's folder."""
        return f"micro_batches{self.micro_batches}_stages{self.stages}_activity{self.activity:g}"


BASE = Setting()
AXES = {
    "micro_batches": tuple(BASE._replace(micro_batches=value) for value in (1, 2, 4, 8, 16)),
    "stages": tuple(BASE._replace(stages=value) for value in (1, 2, 4)),
    "activity": tuple(BASE._replace(activity=value) for value in (0.0, 0.5, 1.0)),
}
"""Settings by what varies."""
MEASURES = ("train_loss", "last_score", "divergence")


def fixed_pipeline(stages: int, micro_batches: int) -> Policy:
    """A policy that always decides the same.

    Args:
      stages: devices that hold blocks; the first ones of every cluster.
      micro_batches: of every cluster.

    Returns:
      The policy; a cluster sits out where its first devices cannot hold the encoder.
    """

    def decide(key: Array, problem: RoundProblem) -> Decision:
        del key
        count = jnp.full(problem.clusters, micro_batches)
        capacity = usable_blocks(problem, count[:, None])[:, :stages]
        held = split_equally(capacity, problem.workload.blocks)
        segments = jnp.pad(held, ((0, 0), (0, problem.devices - stages)))
        return with_equal_resources(problem, segments, count)

    return decide


def main(argv: Sequence[str]) -> None:
    """Train under every setting with every seed, and write what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="a file with get_config()")
    parser.add_argument("--workdir", required=True, help="where results go")
    parser.add_argument("--seeds", type=int, default=12, help="number of seeds, 2 or more")
    options, overrides = parser.parse_known_args(argv)
    if options.seeds < 2:
        raise InputError("--seeds", options.seeds, "no interval from so few", "Give 2 or more")
    config = read_config(options.config, overrides)
    root = Path(options.workdir)
    console = Console()
    rows = run_settings(config, options.seeds, root, console)
    report = {"runs": rows, "steps": compare_values(rows), "order": rank_agreement(rows)}
    write_text(root / "convergence.json", json.dumps(report, indent=1) + "\n")
    console.print(steps_table(report["steps"]))
    agreement = report["order"]["mean"], report["order"]["ci95"]
    console.print("Spearman's rank correlation of divergence and training loss within a seed:")
    console.print("{:.2f} ± {:.2f}, mean and 95 % interval over seeds".format(*agreement))


def run_settings(
    config: ConfigDict, seeds: int, root: Path, console: Console
) -> list[dict[str, Any]]:
    """Train under every setting with every seed.

    Args:
      config: of all runs but for seed and interference.
      seeds: how many, from 0.
      root: where the runs' folders go.
      console: where progress is shown.

    Returns:
      A row a run, as :func:`outcome` makes them.

    Raises:
      InputError: if a setting does not fit the configuration.
    """
    settings = list(dict.fromkeys(setting for axis in AXES.values() for setting in axis))
    _check(config, settings)
    rows = []
    for seed in range(seeds):
        config.seed = seed
        built = build_experiment(config)  # corpus and model of all settings
        for setting in settings:
            console.print(f"seed {seed}: {setting.name}")
            experiment = with_setting(built, setting)
            folder = root / f"seed{seed}" / setting.name
            record = train(experiment, folder, resume=True, console=console)
            rows.append({**setting._asdict(), "seed": seed, **outcome(record)})
    return rows


def _check(config: ConfigDict, settings: Sequence[Setting]) -> None:
    choices, devices = config.training.micro_batch_choices, config.network.devices
    for setting in settings:
        if setting.micro_batches not in choices:
            problem = f"lacks the {setting.micro_batches} of a setting"
            raise InputError("training.micro_batch_choices", choices, problem, "Add it")
        if setting.stages > devices:
            problem = f"fewer than the {setting.stages} stages of a setting"
            raise InputError("network.devices", devices, problem, "Raise it")


def with_setting(built: Experiment, setting: Setting) -> Experiment:
    """An experiment under a setting; corpus, model and clusters' data stay."""
    config = ConfigDict(built.config)
    config.radio.d2d_activity = setting.activity
    config.policy.update({"name": "static_pipeline", "micro_batches": setting.micro_batches})
    return dataclasses.replace(
        built,
        config=config.to_dict(),
        system=build_system(config, built.cluster_weight),
        policy=fixed_pipeline(setting.stages, setting.micro_batches),
    )


def outcome(record: RunRecord) -> dict[str, Any]:
    """What a run says of convergence.

    Args:
      record: of the run.

    Returns:
      Its mean ``divergence``, ``erased`` share of samples and ``latency_s``, its
      ``train_loss`` over the last rounds, ``score`` over ``rounds`` and ``time_s``, and the
      ``last_score``.
    """
    history = record.history
    last = max(1, round(LAST_SHARE * len(history["train_loss"])))
    scored = np.isfinite(history["score"])
    return {
        "divergence": float(history["divergence"].mean()),
        "erased": float(history["erased_fraction"].mean()),
        "latency_s": float(history["latency_s"].mean()),
        "train_loss": float(history["train_loss"][-last:].mean()),
        "last_score": float(history["score"][-1]),
        "rounds": (np.flatnonzero(scored) + 1).tolist(),
        "time_s": history["simulated_time_s"][scored].tolist(),
        "score": history["score"][scored].tolist(),
    }


def rows_of(rows: Sequence[dict[str, Any]], setting: Setting) -> list[dict[str, Any]]:
    """The rows of a setting, by seed."""
    wanted = setting._asdict()
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return sorted(found, key=lambda row: row["seed"])


def compare_values(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What changes from each value of an axis to the next, and to the last, seed by seed.

    Args:
      rows: as :func:`run_settings` returns them.

    Returns:
      For every axis and two values on it ``axis``, ``from``, ``to`` and for every measure
      the mean difference and the half width of its 95 % interval; of the divergence, whose
      size a hopeless link sets, the share of the seeds in which it rises.
    """
    steps = []
    for axis, settings in AXES.items():
        for one, other in (*itertools.pairwise(settings), (settings[0], settings[-1])):
            pairs = list(zip(rows_of(rows, one), rows_of(rows, other), strict=True))
            step = {"axis": axis, "from": getattr(one, axis), "to": getattr(other, axis)}
            change = {
                key: np.array([after[key] - before[key] for before, after in pairs])
                for key in MEASURES
            }
            step["divergence_rises"] = float(np.mean(change.pop("divergence") > 0))
            steps.append(step | {key: mean_interval(values) for key, values in change.items()})
    return steps


def rank_agreement(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """How far the bound orders the runs of a seed as their training losses do.

    Args:
      rows: as :func:`run_settings` returns them.

    Returns:
      Mean over seeds of Spearman's rank correlation, and the half width of its interval.
    """
    found = []
    for seed in sorted({row["seed"] for row in rows}):
        own = [row for row in rows if row["seed"] == seed]
        values = ([row[key] for row in own] for key in ("divergence", "train_loss"))
        found.append(stats.spearmanr(*values).statistic)
    return mean_interval(np.array(found))


def steps_table(steps: Sequence[dict[str, Any]]) -> Table:
    """The same for a reader."""
    table = Table(title="From one value to another, mean and 95 % interval over seeds")
    columns = ("", "from", "to", "training loss", "score", "seeds in which divergence rises")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for step in steps:
        table.add_row(
            step["axis"],
            *(f"{step[key]:g}" for key in ("from", "to")),
            *(
                f"{step[key]['mean']:+.2f} ± {step[key]['ci95']:.2f}"
                for key in ("train_loss", "last_score")
            ),
            f"{100 * step['divergence_rises']:.0f} %",
        )
    return table


if __name__ == "__main__":
    sys.exit(run_training(main, sys.argv[1:]))
