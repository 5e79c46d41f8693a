"""Studies of convergence on file: training runs around a setting, one cause at a time."""

import os
from typing import Any, NamedTuple

from collapipe_jax.files.results import Results, as_columns, as_rows

Row = dict[str, Any]


class ConvergenceStudy(NamedTuple):
    """Runs around a setting.

    Attributes:
      base: values of the setting by axis.
      axes: values by the axis that varies.
      rows: a run each, with its values on the axes and its ``seed``; its ``simulated_time_s``
        and ``score`` in every round, nan without evaluation.
    """

    base: dict[str, float]
    axes: dict[str, list[float]]
    rows: list[Row]

    def of(self, axis: str, value: float) -> list[Row]:
        """Runs at the base but for the value on an axis, by seed."""
        wanted = self.base | {axis: value}
        found = [row for row in self.rows if all(row[key] == wanted[key] for key in wanted)]
        return sorted(found, key=lambda row: row["seed"])


def save_study(study: ConvergenceStudy, results: Results) -> None:
    """Write the runs of a study."""
    results.write("runs", as_columns(study.rows, "run", then="round"))


def load_study(workdir: str | os.PathLike) -> ConvergenceStudy:
    """A study on file.

    Raises:
      InputError: if there is none.
    """
    results = Results.open(workdir, "convergence")
    return ConvergenceStudy(**results.options, rows=as_rows(results.read("runs")))
