"""Results of an experiment on file: settings as JSON, labelled arrays in parts.

A folder holds ``config.json``, with the name of the ``experiment``, its ``options`` and its
``config``; ``results/PART.npz``; and ``summary.json``. A file is whole or not there, so a
killed experiment goes on with the parts that are missing and ends with the same bytes. As in
xarray an array has named axes; its unit is the suffix of its name.
"""

import dataclasses
import io
import json
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import struct
from jax.typing import ArrayLike

from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import read_object, write_bytes, write_json
from collapipe_jax.files.workdir import open_workdir
from collapipe_jax.units import unit_of

_LABELS = "labels"


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
    ) -> "Results":
        """Take possession of a workdir, or go on with the same experiment there.

        The options are all that the numbers depend on besides the configuration.

        Raises:
          InputError: if the folder holds results of other settings, or foreign files.
        """
        settings = {"experiment": experiment, "options": dict(options)}
        settings |= {} if config is None else {"config": dict(config)}
        return cls(open_workdir(workdir, settings, resume=True), settings)

    @classmethod
    def open(cls, workdir: str | os.PathLike, experiment: str) -> "Results":
        """Open the results of an experiment for reading; an ``InputError`` if there are none."""
        settings = read_settings(workdir)
        if settings.get("experiment") != experiment:
            problem = f"holds no results of {experiment}"
            raise InputError("workdir", str(workdir), problem, f"Name a workdir of {experiment}")
        return cls(Path(workdir), settings)

    @property
    def options(self) -> dict[str, Any]:
        """Those that it was created with."""
        return self.settings["options"]

    @property
    def config(self) -> dict[str, Any]:
        """The configuration."""
        return self.settings["config"]

    def path(self, part: str) -> Path:
        """File of a part."""
        return self.folder / "results" / f"{part}.npz"

    def missing(self, parts: Iterable[str]) -> list[str]:
        """Parts that are not on file."""
        return [part for part in parts if not self.path(part).exists()]

    def write(self, part: str, data: Mapping[str, Variable]) -> None:
        """Write a part at once or not at all; the same data give the same bytes."""
        labels = {
            name: {"axes": variable.axes.split(), "unit": unit_of(name.partition(".")[0])}
            for name, variable in data.items()
        }
        arrays: dict[str, Any] = {name: variable.values for name, variable in data.items()}
        content = io.BytesIO()
        np.savez(content, **{_LABELS: json.dumps(labels)}, **arrays)
        write_bytes(self.path(part), content.getvalue())

    def read(self, *parts: str) -> dict[str, np.ndarray]:
        """Arrays of parts, joined along their first axis; an ``InputError`` without a file."""
        found = self.read_labelled(*parts)
        return {name: np.asarray(variable.values) for name, variable in found.items()}

    def read_labelled(self, *parts: str) -> dict[str, Variable]:
        """As ``read``, with the names of axes."""
        found = [self._load(part) for part in parts]
        if len(found) == 1:  # its arrays may have no axis
            return found[0]
        return {
            name: variable.replace(values=np.concatenate([one[name].values for one in found]))
            for name, variable in found[0].items()
        }

    def _load(self, part: str) -> dict[str, Variable]:
        path = self.path(part)
        try:
            # NumPy leaves a damaged file open unless it is given an open one.
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as found:
                labels = json.loads(str(found[_LABELS]))
                return {
                    name: Variable(" ".join(label["axes"]), found[name])
                    for name, label in labels.items()
                }
        except FileNotFoundError:
            problem, remedy = "is missing", "Let its run go on with the same arguments"
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            problem, remedy = f"is damaged ({error})", "Delete it and let its run go on"
        raise InputError("workdir", str(path), problem, remedy)

    def write_summary(self, summary: Mapping[str, Any]) -> Path:
        """Write ``summary.json``; a number that is infinite or unknown becomes null."""
        write_json(self.folder / "summary.json", summary)
        return self.folder / "summary.json"


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
