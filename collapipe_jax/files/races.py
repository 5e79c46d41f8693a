"""Races on file: training runs of several policies, rates and seeds."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from collapipe_jax.errors import InputError
from collapipe_jax.files.checkpoints import RunRecord, load_run
from collapipe_jax.files.results import Results, as_columns, as_rows


class Run(NamedTuple):
    """A training run of a policy.

    Attributes:
      policy: its name.
      rate: multiple of the configured learning rates.
      seed: of network, split and initial model.
      folder: its workdir below that of the race.
      headline: the test score of the objective, a key of the summary.
      summary: its test scores and means.
      record: its history.
    """

    policy: str
    rate: float
    seed: int
    folder: str
    headline: str
    summary: dict[str, Any]
    record: RunRecord

    @property
    def last_score(self) -> float:
        """Last validation score; lowest of all if training broke down."""
        score = float(self.record.history["score"][-1])
        return score if np.isfinite(score) else -np.inf


_KEPT = ("policy", "rate", "seed", "folder", "headline")  # the rest is in the run's own workdir


def save_race(runs: Sequence[Run], results: Results) -> None:
    """Write which runs took part, in order."""
    rows = [{key: getattr(run, key) for key in _KEPT} for run in runs]
    results.write("runs", as_columns(rows, "run"))


def load_race(workdir: str | os.PathLike) -> list[Run]:
    """Runs of a race, in order.

    Raises:
      InputError: if there is no finished race, or something of it is missing or damaged.
    """
    rows = as_rows(Results.open(workdir, "race").read("runs"))
    return [load_entry(**row, workdir=Path(workdir) / row["folder"]) for row in rows]


def load_entry(*, workdir: Path, **entry: Any) -> Run:
    """A run of a race from its workdir.

    Raises:
      InputError: if it is missing, unfinished or damaged.
    """
    try:
        summary = json.loads((workdir / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        problem = f"its summary.json is missing or damaged ({type(error).__name__})"
        remedy = "Run the race again with the same arguments to mend it"
        raise InputError("workdir", str(workdir), problem, remedy) from error
    return Run(**entry, summary=summary, record=load_run(workdir))
