"""Studies made of training runs on file: races of policies, and studies of convergence."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from collapipe_jax.learning.tasks.registry import find_task
from collapipe_jax.learning.tasks.task import Task
from collapipe_jax.runs.results.checkpoints import RunRecord, load_run
from collapipe_jax.runs.results.experiment import Results, as_columns, as_rows
from collapipe_jax.runs.results.workdir import read_summary

Row = dict[str, Any]


class Run(NamedTuple):
    """A training run of a race."""

    policy: str  # its name
    rate: float  # multiple of the configured learning rates
    seed: int  # of network, split and initial model
    folder: str  # its workdir below that of the race
    headline: str  # the final score to compare by, a key of the summary
    summary: dict[str, Any]  # its test scores and means
    record: RunRecord  # its history

    @property
    def validation_score(self) -> float:
        """Validation score of what is tested; not finite if training broke down."""
        scores = self.record.history["score"]
        return float(scores[self.summary.get("best_round", -1)])

    @property
    def task(self) -> type[Task]:
        """The kind of task."""
        return find_task(self.record.config["task"]["kind"])

    @property
    def merit(self) -> float:
        """That score, negative where it should fall; least of all if training broke down."""
        merit = self.task.merit(self.validation_score)
        return merit if np.isfinite(merit) else -np.inf


def save_race(runs: Sequence[Run], results: Results) -> None:
    """Write which runs took part, in order; the rest is in their own workdirs."""
    rows = [dict(zip(Run._fields[:5], run, strict=False)) for run in runs]
    results.write("runs", as_columns(rows, "run"))


def load_race(workdir: str | os.PathLike) -> list[Run]:
    """Runs of a race, in order; an ``InputError`` if something is missing or damaged."""
    rows = as_rows(Results.open(workdir, "race").read("runs"))
    return [load_entry(**row, workdir=Path(workdir) / row["folder"]) for row in rows]


def load_entry(*, workdir: Path, **entry: Any) -> Run:
    """A run of a race from its workdir; an ``InputError`` if it is missing or unfinished."""
    return Run(**entry, summary=read_summary(workdir, "race"), record=load_run(workdir))


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
