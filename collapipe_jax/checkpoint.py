"""Checkpoints of a run: the only file that knows Orbax.

A workdir holds ``config.json``, ``metrics.jsonl`` (one line a round) and
``checkpoints/`` with the last two. A checkpoint carries the state, the whole history and
the constants that the figures need, so a figure is drawn from it alone. The newest
checkpoint is the truth; the metrics file is written again from its history on resuming.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from orbax.checkpoint import v1 as ocp

from collapipe_jax.errors import InputError

_KEPT = 2


class RunRecord(NamedTuple):
    """What a run leaves, enough to draw it.

    Attributes:
      config: nested plain dictionary.
      constants: budgets, limits and baselines by name.
      history: arrays by name, first axis the rounds.
      policy: name of the policy.
      score_name: what ``history["score"]`` is.
    """

    config: dict[str, Any]
    constants: dict[str, np.ndarray]
    history: dict[str, np.ndarray]
    policy: str
    score_name: str


def open_workdir(workdir: str | os.PathLike, config: Mapping[str, Any], resume: bool) -> Path:
    """Take possession of a workdir for a configuration; touch nothing that is not ours.

    Args:
      workdir: made if it does not exist.
      config: nested plain dictionary, as saved beside the results.
      resume: whether to go on with what is there.

    Raises:
      InputError: if another configuration's results are there, or results of this one
        and ``resume`` is not set.
    """
    path = Path(workdir).absolute()
    saved = path / "config.json"
    config = json.loads(json.dumps(config))
    if saved.exists():
        found = _read_config(path)
        if found != config:
            raise InputError(
                "workdir",
                str(workdir),
                f"belongs to another configuration ({_first_difference(found, config)})",
                "Choose another workdir, or restore that configuration",
            )
        if not resume:
            raise InputError(
                "workdir", str(workdir), "holds results already", "Add --resume, or choose another"
            )
    elif path.exists() and any(path.iterdir()):
        raise InputError(
            "workdir", str(workdir), "holds files that no run wrote", "Choose an empty folder"
        )
    else:
        path.mkdir(parents=True, exist_ok=True)
        write_text(saved, json.dumps(config, indent=1, sort_keys=True) + "\n")
    return path


def _read_config(workdir: Path) -> dict[str, Any]:
    saved = workdir / "config.json"
    try:
        return json.loads(saved.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            "workdir", str(workdir), "holds no run", "Name the workdir of a training run"
        ) from None
    except json.JSONDecodeError:
        raise InputError(
            "workdir", str(workdir), "its config.json is damaged", "Start anew in another workdir"
        ) from None


def _first_difference(found: Mapping, wanted: Mapping, prefix: str = "") -> str:
    """First key in which two nested dictionaries differ, with both values."""
    for key in sorted(set(found) | set(wanted)):
        here, there = found.get(key, "nothing"), wanted.get(key, "nothing")
        if here == there:
            continue
        if isinstance(here, dict) and isinstance(there, dict):
            return _first_difference(here, there, f"{prefix}{key}.")
        return f"{prefix}{key} is {here!r} there and {there!r} here"
    return "no difference"


def write_text(path: Path, text: str) -> None:
    """Write a file at once or not at all, also when the program is killed."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)


class Checkpoints:
    """The checkpoints of one workdir; use as a context manager."""

    def __init__(self, workdir: Path):
        self._directory = workdir / "checkpoints"
        self._orbax = ocp.training.Checkpointer(
            self._directory,
            preservation_policy=ocp.training.preservation_policies.LatestN(_KEPT),
            cleanup_tmp_directories=True,
        )

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self._orbax.close()

    def save(self, step: int, state: Any, record: Mapping[str, Any]) -> None:
        """Save after a round; whole or not at all.

        Args:
          step: rounds done.
          state: what the next round needs.
          record: nested dictionary of arrays for the figures.
        """
        self._orbax.save_checkpointables(step, {"state": state, "record": dict(record)})

    def latest(self) -> int | None:
        """Rounds done at the newest checkpoint, or None."""
        found = self._orbax.latest
        return None if found is None else int(found.step)

    def load(self, step: int, state_like: Any) -> tuple[Any, dict[str, Any]]:
        """State, in the structure of ``state_like``, and record of a step.

        Raises:
          InputError: if the checkpoint is damaged.
        """
        found = self._load(step, {"state": state_like, "record": None})
        return found["state"], found["record"]

    def load_record(self, step: int) -> dict[str, Any]:
        """Record of a step alone.

        Raises:
          InputError: if the checkpoint is damaged.
        """
        return self._load(step, {"record": None})["record"]

    def _load(self, step: int, wanted: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._orbax.load_checkpointables(step, wanted)
        except Exception as error:  # Orbax tells damage by errors of many kinds
            raise InputError(
                "checkpoint",
                str(self._directory / str(step)),
                f"cannot be read, some of its files are damaged ({type(error).__name__})",
                "Delete this folder to go on from the checkpoint before it",
            ) from error


def load_run(workdir: str | os.PathLike) -> RunRecord:
    """What a run has left so far, from its newest checkpoint alone.

    Raises:
      InputError: if there is no run, no checkpoint yet, or a damaged one.
    """
    path = Path(workdir).absolute()
    config = _read_config(path)
    with Checkpoints(path) as checkpoints:
        step = checkpoints.latest()
        if step is None:
            raise InputError(
                "workdir", str(workdir), "has no checkpoint yet", "Let its run go on with --resume"
            )
        record = checkpoints.load_record(step)
    return RunRecord(
        config=config,
        constants=record["constants"],
        history=record["history"],
        policy=config["policy"]["name"],
        score_name="BLEU",
    )
