"""The checkpoints of a run: the only file that knows Orbax.

A workdir holds ``config.json``, ``metrics.jsonl`` (one line a round), ``checkpoints/`` with
the last two, ``checksums.json`` with the digests of their files, and ``history/``. A checkpoint
carries the state and the constants of the figures. The newest checkpoint is the truth: resuming
writes the metrics file again from the history of its rounds.
"""

import contextlib
import errno
import hashlib
import io
import itertools
import json
import os
import re
import resource
import shutil
import threading
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from collapipe_jax.core.errors import InputError, shortened
from collapipe_jax.core.files import read_object, sync_folder, write_bytes, write_text
from collapipe_jax.learning.tasks.registry import find_task
from collapipe_jax.learning.tasks.task import Task
from collapipe_jax.runs import hosts
from collapipe_jax.runs.results.experiment import (
    Results,
    as_columns,
    as_rows,
    read_config,
    read_summary,
    wrong_workdir,
)
from collapipe_jax.runs.results.record import RunRecord

_KEPT = 2
_OVERHEAD_BYTES = 1 << 20  # what Orbax writes beside arrays, at most
# Name of a folder that Orbax has not renamed yet
_HALF_WRITTEN = re.compile(r"\d+\.orbax-checkpoint-tmp.*")
_ROUNDS = "rounds"  # done, in the record: folders can be renamed
_orbax_in_use = threading.Lock()  # Orbax numbers its operations for all threads as one


class Checkpoints:
    """The checkpoints of one workdir; use as a context manager.

    Several hosts all open the same folder and call the same methods; the state and the record
    of the first one are written.

    Args:
      workdir: with a run.
      writable: whether to remove half-written files of a killed run; a reader must not,
        since the run may still be writing them.

    Raises:
      InputError: if the newest checkpoint is damaged, or another one so that Orbax cannot start.
    """

    def __init__(self, workdir: Path, *, writable: bool = True):
        self._directory = workdir / "checkpoints"
        self._checksums = workdir / "checksums.json"
        self._history = workdir / "history"
        if (newest := newest_step(self._directory)) is not None:
            self._check(newest)
        if writable:
            hosts.on_first(self._remove_half_written)
        # Orbax annotates both arguments by narrower types than it takes.
        directory: Any = self._directory
        latest: Any = ocp.training.preservation_policies.LatestN(_KEPT)
        try:
            with _orbax_in_use:
                self._orbax = ocp.training.Checkpointer(directory, preservation_policy=latest)
        except Exception:  # Orbax reads a file of the older ones too
            for step in _steps(self._directory):
                self._check(step)
            raise

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error Orbax may raise that of its last checkpoint once more.
        with contextlib.suppress(*([Exception] if kind else [])), _orbax_in_use:
            self._orbax.close()

    def save(self, step: int, state: Any, record: Mapping[str, Any]) -> None:
        """Save the state after so many rounds, and arrays for the figures, or nothing at all.

        The ``history`` of the record may start with the first round that is not on file yet.
        """
        rest = {name: value for name, value in record.items() if name != "history"}
        rest[_ROUNDS] = np.asarray(step, np.int32)
        hosts.on_first(lambda: write_rounds(self._history, step, record.get("history", {})))
        # Forget deleted checkpoints: this one may take the place of one.
        hosts.on_first(lambda: self._keep_digests({}))
        # Arrays of NumPy are written by the first host, whatever the others have.
        state = hosts.fetch(state)
        hosts.on_first(lambda: _check_room(self._directory, state))
        folder = self._directory / str(step)
        try:
            with _orbax_in_use:
                self._orbax.save_checkpointables(step, {"state": state, "record": rest})
        except Exception as error:  # Orbax tells what a disk refuses by errors of many kinds
            problem = f"no checkpoint was written ({type(error).__name__}: {error})"
            raise OSError(errno.EIO, shortened(problem), str(folder)) from error
        sync_folder(self._directory)
        hosts.on_first(lambda: self._keep_digests({str(step): _file_digests(folder)}))

    def latest(self) -> int | None:
        """Rounds done at the newest checkpoint, or None."""
        found = self._orbax.latest
        return None if found is None else int(found.step)

    def load(self, step: int, state_like: Any = None) -> tuple[Any, dict[str, Any]]:
        """State, in the structure and in the places of ``state_like``, and record of a step.

        Without ``state_like`` the state is not read. A damaged checkpoint is an ``InputError``.
        """
        wanted: dict[str, Any] = {"record": None}
        if state_like is not None:
            wanted["state"] = jax.device_get(state_like)
        try:
            with _orbax_in_use:
                found = self._orbax.load_checkpointables(step, wanted)
        except Exception as error:  # Orbax tells damage by errors of many kinds
            raise self.damaged(step, f"cannot be read ({type(error).__name__})") from error
        record = dict(found["record"] or {})
        if (rounds := int(record.pop(_ROUNDS, step))) != step:
            raise self.damaged(step, f"is that of {rounds} rounds")
        places = jax.tree.map(lambda leaf: leaf.sharding, state_like)
        record["history"] = read_rounds(self._history, step)
        return jax.device_put(found.get("state"), places), record

    def _remove_half_written(self) -> None:
        """Here rather than in a thread of Orbax, which could make the first save fail."""
        for path in self._directory.glob("*"):
            if _HALF_WRITTEN.fullmatch(path.name):
                shutil.rmtree(path)

    def _check(self, step: int) -> None:
        """Find damage before Orbax does, which may read zeros or print its own errors.

        A run killed right after a checkpoint leaves it without digests: it is trusted, for Orbax
        renames complete ones only.
        """
        if (expected := self._known_digests().get(str(step))) is None:
            return
        found = _file_digests(self._directory / str(step))
        for name in sorted(set(found) | set(expected)):
            if found.get(name) != expected.get(name):
                raise self.damaged(step, f"its file {name} is damaged")

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

    def damaged(self, step: int, problem: str) -> InputError:
        """The error of a checkpoint that no run can go on from."""
        folder = str(self._directory / str(step))
        remedy = "Delete this folder to go on from the checkpoint before it"
        return InputError("checkpoint", folder, problem, remedy)


def _check_room(directory: Path, state: Any) -> None:
    """Refuse to start a checkpoint that has no room; Orbax would fail in the middle, verbosely."""
    needed = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(state)) + _OVERHEAD_BYTES
    free, (limit, _) = shutil.disk_usage(directory).free, resource.getrlimit(resource.RLIMIT_FSIZE)
    for code, room in ((errno.ENOSPC, free), (errno.EFBIG, limit)):
        if 0 <= room < needed:  # no limit is -1
            problem = f"{os.strerror(code)}: a checkpoint takes {needed} bytes, of {room}"
            raise OSError(code, problem, str(directory))


def newest_step(directory: Path) -> int | None:
    """Largest step among the checkpoints of a folder, if there is any."""
    return max(_steps(directory), default=None)


def _steps(directory: Path) -> list[int]:
    return [int(entry.name) for entry in directory.glob("*") if entry.name.isdigit()]


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
    config = read_config(path)
    if (kind := config.get("experiment")) is not None:
        kind = {"train": "train --sweep"}.get(kind, kind)
        remedy = "Name the workdir of a single training run"
        raise wrong_workdir(workdir, f"holds results of {kind}", remedy)
    step = newest_step(path / "checkpoints")
    if step is None:
        raise wrong_workdir(workdir, "has no checkpoint yet", "Let its run go on with --resume")
    with Checkpoints(path, writable=False) as checkpoints:
        _, record = checkpoints.load(step)
    return RunRecord(
        config=config,
        constants=record["constants"],
        history=record["history"],
    )


Arrays = dict[str, np.ndarray]
"""Arrays by name, first axis the rounds."""


def write_rounds(folder: Path, end: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the rounds before ``end``, as many as the arrays have."""
    if not arrays:
        return
    content, columns = io.BytesIO(), dict[str, Any](arrays)
    np.savez(content, **columns)
    first = end - len(next(iter(arrays.values())))
    write_bytes(folder / f"{first:08d}.npz", content.getvalue())


def read_rounds(folder: Path, end: int) -> Arrays:
    """The rounds from 0 to ``end - 1``; files of later ones are not read.

    Raises:
      InputError: if rounds are missing, or a file is damaged.
    """
    firsts = sorted(int(path.stem) for path in folder.glob("*.npz") if path.stem.isdigit())
    starts = [first for first in firsts if first < end]
    parts, done = [], 0
    for first, stop in itertools.pairwise([*starts, end]):
        path = folder / f"{first:08d}.npz"
        # A run that went on from an older checkpoint wrote some rounds again, in other files.
        part = {name: values[: stop - first] for name, values in _read(path).items()}
        if first != done or any(len(values) != stop - first for values in part.values()):
            break
        parts.append(part)
        done = stop
    if done != end:
        raise _damaged(folder, f"lacks rounds from {done} on", done)
    if not parts:
        return {}
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _read(path: Path) -> Arrays:
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise _damaged(path, f"is damaged ({type(error).__name__})", int(path.stem)) from error


def _damaged(path: Path, problem: str, first: int) -> InputError:
    """The error of a history whose rounds before the ``first`` are whole."""
    remedy = (
        f"Restore it from a copy; or delete it and all checkpoints above {first}, and --resume "
        "computes the same rounds again"
    )
    return InputError("history", str(path), problem, remedy)


# Races of policies, which are made of training runs on file.


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
