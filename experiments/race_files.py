"""What a race leaves besides its runs: ``race.json``, which names those that took part."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from collapipe_jax.checkpoint import RunRecord, load_run
from collapipe_jax.errors import InputError
from collapipe_jax.files import write_text

FILE = "race.json"


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
        """On the validation set; lowest of all if training broke down."""
        score = float(self.record.history["score"][-1])
        return score if np.isfinite(score) else -np.inf


def save_race(runs: Sequence[Run], root: Path) -> None:
    """Write which runs took part, in order, with their summaries."""
    rows = [run._asdict() for run in runs]
    for row in rows:
        del row["record"]  # it is in the run's checkpoint
    write_text(root / FILE, json.dumps({"runs": rows}, indent=1) + "\n")


def load_race(workdir: str | os.PathLike) -> list[Run]:
    """Runs of a race, as they were saved.

    Raises:
      InputError: if there is no race, or one of its runs is missing or damaged.
    """
    path = Path(workdir) / FILE
    if not path.is_file():
        remedy = "Name the workdir of experiments.race"
        raise InputError("workdir", str(workdir), f"holds no {FILE}", remedy)
    rows = json.loads(path.read_text(encoding="utf-8"))["runs"]
    return [Run(record=load_run(Path(workdir) / row["folder"]), **row) for row in rows]
