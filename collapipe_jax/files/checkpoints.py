"""The workdir of a run, and its checkpoints: the only file that knows Orbax.

A workdir holds ``config.json``, ``metrics.jsonl`` (one line a round), ``checkpoints/`` with
the last two and ``checksums.json`` with the digests of their files. A checkpoint carries the
state, the whole history and the constants of the figures. The newest checkpoint is the truth:
resuming writes the metrics file again from its history.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from orbax.checkpoint import v1 as ocp

from collapipe_jax import hosts
from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import partial_path, read_object, write_text
from collapipe_jax.tasks.registry import find_task

_KEPT = 2


class RunRecord(NamedTuple):
    """Results of a run, enough to draw it."""

    config: dict[str, Any]  # nested plain dictionary
    constants: dict[str, np.ndarray]  # budgets, limits and baselines by name
    history: dict[str, np.ndarray]  # arrays by name, first axis the rounds
    policy: str  # name of the policy
    score_name: str  # name of the score in ``history["score"]``


def open_workdir(workdir: str | os.PathLike, config: Mapping[str, Any], resume: bool) -> Path:
    """Take possession of a workdir for a configuration; it is made if it does not exist.

    Raises:
      InputError: if foreign files or another configuration's results are there, or results of
        this one and ``resume`` is not set, or if no such folder can be made.
    """
    path = Path(workdir).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"no folder ({error.strerror})"
        raise _wrong_workdir(path, problem, "Choose a path for a folder") from None
    saved = path / "config.json"
    config = json.loads(json.dumps(config))
    if saved.exists():
        found = _read_config(path)
        if found != config:
            problem = f"belongs to another configuration ({_first_difference(found, config)})"
            remedy = "Choose another workdir, or restore that configuration"
            raise _wrong_workdir(workdir, problem, remedy)
        if not resume:
            remedy = "Add --resume, or choose another"
            raise _wrong_workdir(workdir, "holds results already", remedy)
    elif any(entry != partial_path(saved) for entry in path.iterdir()):
        raise _wrong_workdir(workdir, "holds files that no run wrote", "Choose an empty folder")
    else:
        write_text(saved, json.dumps(config, indent=1, sort_keys=True) + "\n")
    return path


def _wrong_workdir(workdir: str | os.PathLike, problem: str, remedy: str) -> InputError:
    return InputError("workdir", str(workdir), problem, remedy)


def _read_config(workdir: Path) -> dict[str, Any]:
    saved = workdir / "config.json"
    if not saved.is_file():
        raise _wrong_workdir(workdir, "holds no run", "Name the workdir of a training run")
    found = read_object(saved)
    if found is None:
        raise _wrong_workdir(workdir, "its config.json is damaged", "Start anew in another workdir")
    return found


def _first_difference(found: Mapping, wanted: Mapping) -> str:
    """First key in which two nested dictionaries differ, with both values."""
    there, here = (flatten_dict(each, keep_empty_nodes=True, sep=".") for each in (found, wanted))
    keys = sorted({*there, *here})
    key = next(key for key in keys if there.get(key, "nothing") != here.get(key, "nothing"))
    return f"{key} is {there.get(key, 'nothing')!r} there and {here.get(key, 'nothing')!r} here"


class Checkpoints:
    """The checkpoints of one workdir; use as a context manager.

    Several hosts all open the same folder and call the same methods; the state and the record
    of the first one are written.

    Args:
      workdir: with a run.
      writable: whether to remove half-written files of a killed run; a reader must not,
        since the run may still be writing them.

    Raises:
      InputError: if the newest checkpoint is damaged.
    """

    def __init__(self, workdir: Path, *, writable: bool = True):
        self._directory = workdir / "checkpoints"
        self._checksums = workdir / "checksums.json"
        self._check_newest()
        # Orbax annotates both arguments by narrower types than it takes.
        directory: Any = self._directory
        latest: Any = ocp.training.preservation_policies.LatestN(_KEPT)
        self._orbax = ocp.training.Checkpointer(
            directory, preservation_policy=latest, cleanup_tmp_directories=writable
        )

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self._orbax.close()

    def save(self, step: int, state: Any, record: Mapping[str, Any]) -> None:
        """Save the state after so many rounds, and arrays for the figures, or nothing at all."""
        # Not those of a folder of this name that was deleted since.
        hosts.on_first(lambda: self._keep_digests({}))
        # Arrays of NumPy are written by the first host, whatever the others have.
        state = jax.device_get(state)
        self._orbax.save_checkpointables(step, {"state": state, "record": dict(record)})
        folder = self._directory / str(step)
        hosts.on_first(lambda: self._keep_digests({str(step): _file_digests(folder)}))

    def latest(self) -> int | None:
        """Rounds done at the newest checkpoint, or None."""
        found = self._orbax.latest  # waits until half-written files are removed
        return None if found is None else int(found.step)

    def load(self, step: int, state_like: Any = None) -> tuple[Any, dict[str, Any]]:
        """State, in the structure and in the places of ``state_like``, and record of a step.

        Without ``state_like`` the state is not read. A damaged checkpoint is an ``InputError``.
        """
        wanted: dict[str, Any] = {"record": None}
        if state_like is not None:
            wanted["state"] = jax.device_get(state_like)
        try:
            found = self._orbax.load_checkpointables(step, wanted)
        except Exception as error:  # Orbax tells damage by errors of many kinds
            raise self._damaged(step, f"cannot be read ({type(error).__name__})") from error
        places = jax.tree.map(lambda leaf: leaf.sharding, state_like)
        return jax.device_put(found.get("state"), places), found["record"]

    def _check_newest(self) -> None:
        """Find damage before Orbax does, which may read zeros or print its own errors.

        A run killed right after a checkpoint leaves it without digests: it is trusted, for Orbax
        renames complete ones only.
        """
        step = _newest_step(self._directory)
        expected = None if step is None else self._known_digests().get(str(step))
        if step is None or expected is None:
            return
        found = _file_digests(self._directory / str(step))
        for name in sorted(set(found) | set(expected)):
            if found.get(name) != expected.get(name):
                raise self._damaged(step, f"its file {name} is damaged")

    def _keep_digests(self, new: Mapping[str, dict[str, str]]) -> None:
        """Write the digests of the existing checkpoints, with new ones."""
        known = self._known_digests()
        kept = {name: known[name] for name in known if (self._directory / name).exists()}
        kept |= new
        if kept != known:
            write_text(self._checksums, json.dumps(kept, indent=1) + "\n")

    def _known_digests(self) -> dict[str, dict[str, str]]:
        if not self._checksums.exists():
            return {}
        digests = read_object(self._checksums)
        if digests is None:
            remedy = "Delete it to do without checks"
            raise InputError("checkpoint", str(self._checksums), "is damaged", remedy)
        return digests

    def _damaged(self, step: int, problem: str) -> InputError:
        folder = str(self._directory / str(step))
        remedy = "Delete this folder to go on from the checkpoint before it"
        return InputError("checkpoint", folder, problem, remedy)


def _newest_step(directory: Path) -> int | None:
    """Largest step among the checkpoints of a folder, if there is any."""
    steps = [int(entry.name) for entry in directory.glob("*") if entry.name.isdigit()]
    return max(steps, default=None)


def _file_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, by relative path."""
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def load_run(workdir: str | os.PathLike) -> RunRecord:
    """Results of a run so far, from its newest checkpoint alone; an ``InputError`` without one."""
    path = Path(workdir).absolute()
    config = _read_config(path)
    step = _newest_step(path / "checkpoints")
    if step is None:
        raise _wrong_workdir(workdir, "has no checkpoint yet", "Let its run go on with --resume")
    with Checkpoints(path, writable=False) as checkpoints:
        _, record = checkpoints.load(step)
    return RunRecord(
        config=config,
        constants=record["constants"],
        history=record["history"],
        policy=config["policy"]["name"],
        score_name=find_task(config["task"]["kind"]).score_name,
    )
