"""The files of a training run, in a folder that all hosts see and the first one writes."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from collapipe_jax import hosts
from collapipe_jax.files.atomic import write_json, write_text
from collapipe_jax.files.checkpoints import Checkpoints, RunRecord, load_run, open_workdir
from collapipe_jax.models.layers import Params
from collapipe_jax.tasks.task import Objective
from collapipe_jax.training.history import History, Metrics, metrics_line

_State = TypeVar("_State")


class RunFiles:
    """Opens a workdir; its checkpoints can be saved inside of a ``with``.

    All hosts call all methods, so that an error of the first ends all.

    Args:
      workdir: where metrics and checkpoints go.
      config: nested plain dictionary.
      resume: go on with what is in ``workdir``.

    Raises:
      InputError: if ``workdir`` is not this configuration's, or its checkpoint is damaged.
    """

    def __init__(self, workdir: str | os.PathLike, config: Mapping[str, Any], resume: bool):
        # The others may not look before the first has taken the folder.
        self._path = hosts.on_first(lambda: open_workdir(workdir, config, resume))
        self._checkpoints = Checkpoints(self._path)

    def __enter__(self) -> "RunFiles":
        return self

    def __exit__(self, *error: object) -> None:
        self._checkpoints.__exit__(*error)

    def start(self, fresh: _State, objective: Objective) -> tuple[_State, History, int]:
        """State, history and number of rounds done: fresh, or from the newest checkpoint.

        Args:
          fresh: state before the first round.
          objective: its vocabulary goes beside the metrics file, which is written anew: lines
            after the newest checkpoint are to come again.
        """
        state, history, step = fresh, History({}), self._checkpoints.latest()
        if step is not None:
            state, record = self._checkpoints.load(step, fresh)
            history = History(record["history"])
        hosts.on_first(lambda: self._begin(history, objective))
        return state, history, step or 0

    def _begin(self, history: History, objective: Objective) -> None:
        write_text(self._metrics, "".join(map(metrics_line, history.rounds)))
        objective.save(self._path)

    def add_round(self, metrics: Metrics) -> None:
        """Log a round."""
        hosts.on_first(lambda: self._add_line(metrics_line(metrics)))

    def _add_line(self, line: str) -> None:
        with self._metrics.open("a", encoding="utf-8") as stream:
            stream.write(line)

    def save(self, step: int, state: Any, record: Mapping[str, Any]) -> None:
        """Save a checkpoint; as that of ``Checkpoints``."""
        self._checkpoints.save(step, state, record)

    def lacks_summary(self) -> bool:
        """Whether the run has not been finished yet."""
        return hosts.on_first(lambda: not self._summary.exists())

    def finish(self, summary: dict[str, Any], objective: Objective, params: Params) -> None:
        """Write the trained model and, last of all, the summary."""
        hosts.on_first(lambda: self._finish(summary, objective, params))

    def _finish(self, summary: dict[str, Any], objective: Objective, params: Params) -> None:
        objective.export(params, self._path / "model")
        write_json(self._summary, summary)

    @property
    def _metrics(self) -> Path:
        return self._path / "metrics.jsonl"

    @property
    def _summary(self) -> Path:
        return self._path / "summary.json"

    def read(self) -> RunRecord:
        """The record of the run so far."""
        return load_run(self._path)
