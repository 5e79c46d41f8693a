r"""How losses slow the learning of a real task, one cause at a time.

    python -m experiments.studies.convergence --config=configs/convergence_clinc150.py \
        --workdir=runs/convergence --seeds=12

Every cluster's blocks are on its first devices, cut evenly, at full power, in a fixed number of
micro-batches. Around one such decision the number of micro-batches, of stages and the
interference vary; everything random is the same in all runs of a seed. Every run is a training
run in a folder of its own, and resumes if it was killed. More seeds are the same study. Several
processes share the runs with ``--shard=i/n``.
"""

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table
from scipy import stats

from collapipe_jax.cli.options import make_parser, run_training
from collapipe_jax.cli.shards import SHARD, is_done
from collapipe_jax.core.console import make_table
from collapipe_jax.core.errors import InputError
from collapipe_jax.core.statistics import Interval, interval_text, mean_interval
from collapipe_jax.edge.cost.decision import Decision
from collapipe_jax.edge.cost.feasibility import usable_blocks
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.static_pipeline import split_equally, with_equal_allocation
from collapipe_jax.edge.policies.registry import Policy
from collapipe_jax.runs.config.experiment import Experiment
from collapipe_jax.runs.config.files import parse_overrides, read_config
from collapipe_jax.runs.config.system import build_system
from collapipe_jax.runs.results.checkpoints import load_run
from collapipe_jax.runs.results.experiment import Results, as_columns, as_rows
from collapipe_jax.runs.results.store import WHOLE, Shard, read_shard
from collapipe_jax.runs.studies.race import train_shard
from experiments.studies.seeds import experiments_of_seeds

Row = dict[str, Any]

LAST_SHARE = 0.25
"""Share of the rounds, the last ones, over which the training loss is averaged."""


class Setting(NamedTuple):
    """What one run differs in from another of its seed."""

    micro_batches: int = 2  # of all clusters
    stages: int = 2  # devices that hold blocks, in every cluster
    activity: float = 0.5  # part of the time that senders of other clusters interfere

    @property
    def name(self) -> str:
        """Of the run's folder."""
        return f"micro_batches{self.micro_batches}_stages{self.stages}_activity{self.activity:g}"


BASE = Setting()
AXES = {"micro_batches": [1, 2, 4, 8, 16], "stages": [1, 2, 4], "activity": [0.0, 0.5, 1.0]}
"""Values by what varies around the base."""
MEASURES = ("train_loss", "last_score", "divergence")


class ConvergenceStudy(NamedTuple):
    """Training runs around a setting, one cause at a time."""

    base: dict[str, float]  # values of the setting by axis
    axes: dict[str, list[float]]  # values by the axis that varies
    # A run each, with its values on the axes and its ``seed``; its ``simulated_time_s`` and
    # ``score`` in every round, nan without evaluation
    rows: list[Row]

    def of(self, axis: str, value: float) -> list[Row]:
        """Runs at the base but for the value on an axis, by seed."""
        wanted = self.base | {axis: value}
        found = [row for row in self.rows if all(row[key] == wanted[key] for key in wanted)]
        return sorted(found, key=lambda row: row["seed"])


def save_study(study: ConvergenceStudy, results: Results) -> None:
    """Write the runs of a study."""
    results.write("runs", as_columns(study.rows, "run", then="round"))


def load_study(workdir: str | os.PathLike) -> ConvergenceStudy:
    """A study of convergence on file; an ``InputError`` if there is none."""
    results = Results.open(workdir, "convergence")
    return ConvergenceStudy(**results.options, rows=as_rows(results.read("runs")))


@functools.cache
def fixed_pipeline(stages: int, micro_batches: int) -> Policy:
    """A policy that always puts the blocks on the first devices of every cluster.

    A cluster sits out where these cannot hold the encoder.
    """

    def decide(key: Array, problem: RoundProblem) -> Decision:
        del key
        count = jnp.full(problem.clusters, micro_batches)
        capacity = usable_blocks(problem, count[:, None])[:, :stages]
        held = split_equally(capacity, problem.workload.blocks)
        segments = jnp.pad(held, ((0, 0), (0, problem.devices - stages)))
        return with_equal_allocation(problem, segments, count)

    return decide


def main(argv: Sequence[str]) -> None:
    """Train under every setting with every seed, and write the results."""
    parser = make_parser(
        __doc__, "config", "workdir", seeds=(12, "number of seeds, 2 or more"), **SHARD
    )
    given, overrides = parser.parse_known_args(argv)
    config, console = read_config(given.config, parse_overrides(overrides)), Console()
    settings, shard = settings_of(config), read_shard(given.shard)
    experiments = experiments_of_seeds(config, given.seeds)
    around = {"base": BASE._asdict(), "axes": AXES}
    results = Results.create(given.workdir, "convergence", around, config.to_dict())
    missing, labels = train_settings(experiments, settings, results.folder, console, shard)
    if not is_done(missing, shard, console.print):
        return
    rows = [label | outcome(load_run(folder).history) for folder, label in labels.items()]
    study = ConvergenceStudy(**around, rows=rows)
    save_study(study, results)
    report = {"steps": compare_values(study), "order": rank_agreement(rows)}
    results.write_summary(report)
    console.print(steps_table(report["steps"]))
    agreement = interval_text(report["order"], "{:.2f}")
    console.print("Spearman's rank correlation of divergence and training loss within a seed:")
    console.print(f"{agreement}, mean and 95 % interval over seeds")


def settings_of(config: ConfigDict) -> list[Setting]:
    """All settings, each once.

    Raises:
      InputError: if one does not fit the configuration.
    """
    settings = [BASE._replace(**{axis: value}) for axis in AXES for value in AXES[axis]]
    settings = list(dict.fromkeys(settings))
    choices, devices = config.training.micro_batch_choices, config.network.devices
    for setting in settings:
        if setting.micro_batches not in choices:
            problem = f"lacks the {setting.micro_batches} of a setting"
            raise InputError("training.micro_batch_choices", choices, problem, "Add it")
        if setting.stages > devices:
            problem = f"fewer than the {setting.stages} stages of a setting"
            raise InputError("network.devices", devices, problem, "Raise it")
    return settings


def train_settings(
    experiments: Iterable[Experiment],
    settings: Sequence[Setting],
    root: Path,
    console: Console,
    shard: Shard = WHOLE,
) -> tuple[int, dict[Path, Row]]:
    """Train every experiment, one a seed, under every setting at once.

    All settings share its corpus and model.

    Returns:
      The number of runs that all shards lack, and by folder the setting and seed of every run.
    """
    built, labels = [], dict[Path, Row]()
    for experiment in experiments:
        seed = experiment.config["seed"]
        for setting in settings:
            built.append(with_setting(experiment, setting))
            labels[root / f"seed{seed}" / setting.name] = {**setting._asdict(), "seed": seed}
    return train_shard(built, list(labels), console, shard), labels


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


def outcome(history: Mapping[str, np.ndarray]) -> Row:
    """Measures of convergence of a run; its score is nan in rounds without evaluation."""
    last = max(1, round(LAST_SHARE * len(history["train_loss"])))
    return {
        "divergence": float(history["divergence"].mean()),
        "erased": float(history["erased_fraction"].mean()),  # share of samples
        "latency_s": float(history["latency_s"].mean()),
        "train_loss": float(history["train_loss"][-last:].mean()),
        "last_score": float(history["score"][-1]),
        "simulated_time_s": history["simulated_time_s"],
        "score": history["score"],
    }


def compare_values(study: ConvergenceStudy) -> list[dict[str, Any]]:
    """Changes from each value of an axis to the next, and to the last, seed by seed.

    Returns:
      For every axis and two values on it ``axis``, ``from``, ``to`` and for every measure
      the mean difference and the half width of its 95 % interval; of the divergence, whose
      size a hopeless link sets, the share of the seeds in which it rises.
    """
    steps = []
    for axis, values in study.axes.items():
        for one, other in (*itertools.pairwise(values), (values[0], values[-1])):
            pairs = list(zip(study.of(axis, one), study.of(axis, other), strict=True))
            step = {"axis": axis, "from": one, "to": other}
            change = {
                key: np.array([after[key] - before[key] for before, after in pairs])
                for key in MEASURES
            }
            step["divergence_rises"] = float(np.mean(change.pop("divergence") > 0))
            steps.append(step | {key: mean_interval(values) for key, values in change.items()})
    return steps


def rank_agreement(rows: Sequence[Row]) -> Interval:
    """Spearman's rank correlation of divergence and training loss, mean over seeds."""
    found = []
    for seed in sorted({row["seed"] for row in rows}):
        own = [row for row in rows if row["seed"] == seed]
        values = ([row[key] for row in own] for key in ("divergence", "train_loss"))
        found.append(stats.spearmanr(*values).statistic)
    return mean_interval(np.array(found))


def steps_table(steps: Sequence[dict[str, Any]]) -> Table:
    """One row for every two values that are compared."""
    rows = []
    for step in steps:
        changes = (interval_text(step[key], "{:+.2f}") for key in ("train_loss", "last_score"))
        rises = f"{100 * step['divergence_rises']:.0f} %"
        rows.append((step["axis"], f"{step['from']:g}", f"{step['to']:g}", *changes, rises))
    headings = ("", "from", "to", "training loss", "score", "seeds in which divergence rises")
    title = "From one value to another, mean and 95 % interval over seeds"
    return make_table(headings, rows, title=title)


if __name__ == "__main__":
    raise SystemExit(run_training(main))
