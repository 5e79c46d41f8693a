"""The files of a sweep: one comparison a point, in folders of their own."""

import os
from pathlib import Path
from typing import NamedTuple

from experiments.compare_files import Comparison, load_comparison
from experiments.settings_file import read_settings


class SweepResult(NamedTuple):
    """A sweep as it stands on file.

    Attributes:
      axis: what is swept, with its unit.
      log: whether the values are best drawn on a logarithmic axis.
      values: of the points, in their order; names where the points have no number.
      points: comparisons.
    """

    axis: str
    log: bool
    values: list[float] | list[str]
    points: list[Comparison]


def point_folder(workdir: Path, index: int) -> Path:
    """Where a point's comparison stands."""
    return workdir / "points" / f"{index:02d}"


def load_sweep(workdir: str | os.PathLike) -> SweepResult:
    """Everything that a finished sweep left.

    Raises:
      InputError: if there is no sweep, or a file is missing or damaged.
    """
    folder = Path(workdir)
    settings = read_settings(folder, "sweep", "sweep", "experiments.sweep")["sweep"]
    values = settings["values"]
    points = [load_comparison(point_folder(folder, i)) for i in range(len(values))]
    return SweepResult(settings["axis"], settings["log"], values, points)
