"""Results of an experiment on file: settings as JSON, labelled arrays in one store.

A folder holds ``config.json``, with the name of the ``experiment``, its ``options`` and its
``config``; ``results.zarr``; ``parts/PART.json``; and ``summary.json``. A part is a piece of the
arrays, or a table. Its file in ``parts`` is written last, so it is done where there is one: a
killed experiment goes on with the parts that are missing and ends with the same bytes. As in
xarray an array has named axes; its unit is the suffix of its name.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flax import struct
from jax.typing import ArrayLike

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import read_object, write_sealed
from collapipe_jax.runs.results.workdir import damaged_config, open_workdir, wrong_workdir

if TYPE_CHECKING:
    from collapipe_jax.runs.results.store import Place

_PARTS = "parts"


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
            raise damaged_config(workdir)
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
