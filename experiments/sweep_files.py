"""The files of a sweep: one comparison a point, in folders of their own."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from collapipe_jax.errors import InputError
from experiments.compare_files import Comparison, load_comparison


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


def read_sweep_settings(workdir: str | os.PathLike) -> dict[str, Any]:
    """``sweep`` of the settings on file.

    Raises:
      InputError: if there is no sweep.
    """
    folder = Path(workdir)
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        settings = None
    if not isinstance(settings, dict) or "sweep" not in settings:
        raise InputError(
            "workdir", str(folder), "holds no sweep", "Name the workdir of experiments.sweep"
        )
    return settings["sweep"]


def load_sweep(workdir: str | os.PathLike) -> SweepResult:
    """Everything that a finished sweep left.

    Raises:
      InputError: if there is no sweep, or a file is missing or damaged.
    """
    settings = read_sweep_settings(workdir)
    values = settings["values"]
    points = [load_comparison(point_folder(Path(workdir), i)) for i in range(len(values))]
    return SweepResult(settings["axis"], settings["log"], values, points)
