"""What a race leaves besides its runs: ``race.json``, which names those that took part."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import write_text
from collapipe_jax.files.checkpoints import RunRecord, load_run

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


_KEPT = ("policy", "rate", "seed", "folder", "headline")  # the rest is in the run's own workdir


def save_race(runs: Sequence[Run], root: Path) -> None:
    """Write which runs took part, in order."""
    rows = [{key: getattr(run, key) for key in _KEPT} for run in runs]
    write_text(root / FILE, json.dumps({"runs": rows}, indent=1) + "\n")


def load_race(workdir: str | os.PathLike) -> list[Run]:
    """Runs of a race, in order.

    Raises:
      InputError: if there is no finished race, or something of it is missing or damaged.
    """
    root = Path(workdir)
    remedy = "Name the workdir of experiments.race, or run it again to mend this one"
    if not (root / FILE).is_file():
        raise InputError("workdir", str(workdir), f"holds no {FILE}", remedy)
    try:
        rows = json.loads((root / FILE).read_text(encoding="utf-8"))["runs"]
        return [Run(**row, **_read_run(root / row["folder"])) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        problem = f"its {FILE} or a run is damaged ({type(error).__name__})"
        raise InputError("workdir", str(workdir), problem, remedy) from error


def _read_run(folder: Path) -> dict[str, Any]:
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return {"summary": summary, "record": load_run(folder)}


def read_run(policy: str, rate: float, seed: int, headline: str, workdir: Path) -> Run:
    """A run that has just ended; as :class:`Run`, from its workdir."""
    return Run(policy, rate, seed, workdir.name, headline, **_read_run(workdir))
