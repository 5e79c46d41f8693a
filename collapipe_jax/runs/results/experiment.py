"""Workdirs of runs and of other experiments, and the results of an experiment on file.

Results are settings as JSON, and labelled arrays in one store. A folder holds ``config.json``, with
the name of the ``experiment``, its ``options`` and its ``config``; ``results.zarr``;
``parts/PART.json``; and ``summary.json``. A part is a piece of the arrays, or a table. Its file in
``parts`` is written last, so it is done where there is one: a killed experiment goes on with the
parts that are missing and ends with the same bytes. As in xarray an array has named axes; its unit
is the suffix of its name.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flax import struct
from flax.traverse_util import flatten_dict
from jax.typing import ArrayLike

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import (
    is_lock,
    is_partial,
    read_object,
    sealed,
    write_new_text,
    write_sealed,
    write_text,
)

if TYPE_CHECKING:
    from collapipe_jax.runs.results.store import Place

_CONFIG = "config.json"


def open_workdir(workdir: str | os.PathLike, config: Mapping[str, Any], resume: bool) -> Path:
    """Take possession of a workdir for a configuration; it is made if it does not exist.

    A run that goes on may have more rounds than before; what it ended with is then removed.

    Raises:
      InputError: if foreign files or another configuration's results are there, or results of
        this one and ``resume`` is not set, or if no such folder can be made.
    """
    path = make_workdir(workdir)
    saved = path / _CONFIG
    config = json.loads(json.dumps(config))
    text = sealed(config)
    if saved.exists() or not write_new_text(saved, text):
        found = read_config(path)
        if found != config and not (resume and added_rounds(found, config)):
            problem = f"belongs to another configuration ({_first_difference(found, config)})"
            remedy = "Choose another workdir, or restore that configuration"
            raise wrong_workdir(workdir, problem, remedy)
        if not resume:
            remedy = "Add --resume, or choose another"
            raise wrong_workdir(workdir, "holds results already", remedy)
        if found == config:
            return path
        (path / "summary.json").unlink(missing_ok=True)  # first: a run without is not finished
        write_text(saved, text)
    return path


def make_workdir(workdir: str | os.PathLike) -> Path:
    """A folder for a workdir, made if it does not exist.

    Raises:
      InputError: if foreign files are there, or no such folder can be made.
    """
    path = Path(workdir).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"no folder ({error.strerror})"
        raise wrong_workdir(path, problem, "Choose a path for a folder") from None
    # Another process may be taking possession too: its first files are these.
    foreign = any(not (is_partial(entry) or is_lock(entry)) for entry in path.iterdir())
    if foreign and not (path / _CONFIG).exists():
        raise wrong_workdir(workdir, "holds files that no run wrote", "Choose an empty folder")
    return path


def added_rounds(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> int:
    """Rounds that one configuration of a run has more, where nothing else differs; else 0."""
    if "training" not in found or "training" not in wanted:
        return 0
    before, after = (config["training"]["rounds"] for config in (found, wanted))
    longer = {**found, "training": {**found["training"], "rounds": after}}
    same = longer == json.loads(json.dumps(wanted))  # which has lists for tuples
    return max(0, after - before) if same else 0


def read_config(workdir: Path) -> dict[str, Any]:
    """The configuration of a run; an ``InputError`` where there is none."""
    saved = workdir / _CONFIG
    if not os.path.isfile(saved):
        raise wrong_workdir(workdir, "holds no run", "Name the workdir of a training run")
    found = read_object(saved)
    if found is None:
        raise _damaged_config(workdir)
    return found


def read_summary(folder: Path, name: str = "command") -> dict[str, Any]:
    """``summary.json`` of a finished run or experiment.

    Args:
      folder: its workdir.
      name: of what wrote the folder, for the error.

    Raises:
      InputError: if it is missing or damaged.
    """
    summary = read_object(folder / "summary.json")
    if summary is None:
        remedy = f"Run the {name} again with the same arguments to mend it"
        raise wrong_workdir(folder, "its summary.json is missing or damaged", remedy)
    return summary


def _damaged_config(workdir: str | os.PathLike) -> InputError:
    """The error of a folder whose ``config.json`` cannot be read."""
    remedy = "Restore it from a copy, or start anew in another workdir"
    return wrong_workdir(workdir, "its config.json is damaged", remedy)


def wrong_workdir(workdir: str | os.PathLike, problem: str, remedy: str) -> InputError:
    """The error of a folder that is not the one wanted."""
    return InputError("workdir", str(workdir), problem, remedy)


def nothing_there(
    workdir: str | os.PathLike, problem: str, kinds: Iterable[str], key: str = "--workdir"
) -> InputError:
    """The error of a folder with nothing of these kinds; a ``run`` is what ``train`` writes."""
    names = dict.fromkeys("train" if kind == "run" else kind for kind in kinds)
    remedy = f"Name a folder that one of these wrote: {', '.join(names)}"
    problem = problem if os.path.isdir(workdir) else "no such folder"
    return InputError(key, str(workdir), problem, remedy)


def _first_difference(found: Mapping, wanted: Mapping) -> str:
    """First key in which two nested dictionaries differ, with both values."""
    there, here = (flatten_dict(each, keep_empty_nodes=True, sep=".") for each in (found, wanted))
    keys = sorted({*there, *here})
    key = next(key for key in keys if there.get(key, "nothing") != here.get(key, "nothing"))
    return f"{key} is {there.get(key, 'nothing')!r} there and {here.get(key, 'nothing')!r} here"


_PARTS = "parts"


# Results of an experiment.


class Variable(struct.PyTreeNode):
    """An array, and the names of its axes, separated by blanks."""

    axes: str = struct.field(pytree_node=False)
    values: ArrayLike


@dataclasses.dataclass(frozen=True)
class Results:
    """The results of one experiment."""

    folder: Path  # its workdir
    settings: dict[str, Any]  # ``experiment``, ``options`` and, where there is one, ``config``

    @classmethod
    def create(
        cls,
        workdir: str | os.PathLike,
        experiment: str,
        options: Mapping[str, Any],
        config: Mapping[str, Any] | None = None,
        coordinates: Mapping[str, tuple[str, Sequence[Any]]] | None = None,
    ) -> "Results":
        """Take possession of a workdir, or go on with the same experiment there.

        Several processes may do so at once.

        Args:
          workdir: its folder.
          experiment: its name.
          options: all that the numbers depend on besides the configuration.
          config: the configuration, if there is one.
          coordinates: by name the axis and the values, numbers or names.

        Raises:
          InputError: if the folder holds results of other settings, or foreign files.
        """
        settings = {"experiment": experiment, "options": dict(options)}
        settings |= {} if config is None else {"config": dict(config)}
        _refuse_old(Path(workdir))
        results = cls(open_workdir(workdir, settings, resume=True), settings)
        attributes = {name: json.dumps(value, allow_nan=False) for name, value in settings.items()}
        _store().create_store(results.store, coordinates or {}, attributes)
        return results

    @classmethod
    def open(cls, workdir: str | os.PathLike, experiment: str) -> "Results":
        """Open the results of an experiment for reading; an ``InputError`` if there are none."""
        settings = read_settings(workdir)
        if settings.get("experiment") != experiment:
            problem = f"holds no results of {experiment}"
            raise InputError("workdir", str(workdir), problem, f"Name a workdir of {experiment}")
        if not isinstance(settings.get("options"), dict):
            raise _damaged_config(workdir)
        _refuse_old(Path(workdir))
        return cls(Path(workdir), settings)

    @property
    def options(self) -> dict[str, Any]:
        """Those that it was created with."""
        return self.settings["options"]

    @property
    def config(self) -> dict[str, Any]:
        """The configuration."""
        return self.settings["config"]

    @property
    def store(self) -> Path:
        """Folder of the arrays."""
        return self.folder / "results.zarr"

    def path(self, part: str) -> Path:
        """The file that says that a part is done."""
        return self.folder / _PARTS / f"{part}.json"

    def missing(self, parts: Iterable[str]) -> list[str]:
        """Parts that are not on file."""
        return [part for part in parts if not self.path(part).exists()]

    def write(self, part: str, data: Mapping[str, Variable], place: "Place | None" = None) -> None:
        """Write a part at once or not at all; the same data give the same bytes.

        Args:
          part: its name.
          data: its arrays.
          place: where they lie in arrays of several parts; without one they are a table.
        """
        arrays = {name: (variable.axes, variable.values) for name, variable in data.items()}
        if place is None:
            self.path(part).unlink(missing_ok=True)
            _store().write_table(self.store, part, arrays)
        else:
            _store().write_part(self.store, arrays, place)
        shapes = {name: np.shape(values) for name, (_, values) in arrays.items()}
        write_sealed(self.path(part), shapes)

    def read(self, part: str) -> dict[str, np.ndarray]:
        """Columns of a table by name.

        Raises:
          InputError: if it is missing or damaged.
        """

        def load(shapes: Mapping[str, Any]) -> dict[str, np.ndarray]:
            found = {name: _store().read_array(self.store / part, name)[1] for name in shapes}
            if {name: list(values.shape) for name, values in found.items()} != shapes:
                raise ValueError("other shapes")
            return found

        return self._load(part, load)

    def read_parts(self, places: Mapping[str, "Place"]) -> dict[str, dict[str, np.ndarray]]:
        """Arrays of parts, by the name of the part and their own.

        Raises:
          InputError: if a part is missing or damaged.
        """
        reader = _store().Reader(self.store)
        return {
            part: self._load(part, lambda shapes, place=place: reader.part(place, shapes))
            for part, place in places.items()
        }

    def _load(self, part: str, load: Callable[[Mapping[str, Any]], dict]) -> dict[str, np.ndarray]:
        """Arrays of a part with the shapes on file."""
        path = self.path(part)
        if not path.exists():
            problem, remedy = "is missing", "Let its run go on with the same arguments"
            raise InputError("workdir", str(path), problem, remedy)
        try:
            shapes = read_object(path)
            if not shapes:  # every part has arrays
                raise ValueError("no JSON object with names of arrays")
            return load(shapes)
        except (ValueError, TypeError, KeyError, RuntimeError, OSError) as error:
            problem = f"is damaged ({error})".splitlines()[0]
            raise InputError(
                "workdir", str(path), problem, "Delete it and let its run go on"
            ) from error

    def write_summary(self, summary: Mapping[str, Any]) -> Path:
        """Write ``summary.json``; a number that is infinite or unknown becomes null."""
        write_sealed(self.folder / "summary.json", summary)
        return self.folder / "summary.json"


def _store() -> Any:
    """The module of the store; imported only where arrays are read or written."""
    from collapipe_jax.runs.results import store

    return store


def _refuse_old(folder: Path) -> None:
    """Refuse a folder whose arrays an older version wrote as ``.npz``."""
    if (folder / "results").is_dir() and next((folder / "results").rglob("*.npz"), None):
        problem = "its results are .npz files of an older version"
        raise wrong_workdir(folder, problem, "Run it again in another workdir")


def read_settings(workdir: str | os.PathLike) -> dict[str, Any]:
    """Settings of an experiment or a training run; empty where there are none."""
    return read_object(Path(workdir) / "config.json") or {}


def as_columns(rows: Sequence[Mapping[str, Any]], axis: str, then: str = "") -> dict[str, Variable]:
    """A table, given by its rows, as arrays by column; a column's values are of one shape.

    ``axis`` names the axis of rows, ``then`` the further axes of values that are arrays.
    """
    columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return {
        name: Variable(f"{axis} {then}".strip() if column.ndim > 1 else axis, column)
        for name, column in columns.items()
    }


def as_rows(columns: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """The rows of a table from its columns, as plain values."""
    values = [column.tolist() for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]
