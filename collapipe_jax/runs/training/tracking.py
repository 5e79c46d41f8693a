"""Speed of a run on this machine, and its metrics for TensorBoard: beside what resumes exactly."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from collapipe_jax.core.io.atomic import append_line
from collapipe_jax.learning.models.config import PAD_ID
from collapipe_jax.learning.models.split_model import Batch
from collapipe_jax.runs.training.history import Metrics

_SPEED = "speed.jsonl"


def count_tokens(batches: Batch) -> int:
    """Tokens that the encoder reads, without padding."""
    return int(np.count_nonzero(np.asarray(jax.tree.leaves(batches)[0]) != PAD_ID))


def log_speed(folder: Path, done: int, rounds: int, seconds: float, tokens: int) -> None:
    """Add a line to ``speed.jsonl``.

    Args:
      folder: workdir of a run.
      done: rounds of the run so far.
      rounds: of them, those of this call.
      seconds: wall time of the call. Runs that train together share it.
      tokens: in these rounds, without padding.
    """
    row = {
        "round": done - 1,
        "rounds": rounds,
        "wall_time_s": round(seconds, 6),
        "tokens_per_s": round(tokens / seconds, 1),
        "device": jax.devices()[0].device_kind,
    }
    append_line(folder / _SPEED, json.dumps(row, allow_nan=False) + "\n")


class TensorBoard:
    """Scalars of every round in ``tensorboard/`` of a workdir (extra ``tensorboard``).

    Args:
      folder: workdir of a run.
      done: rounds so far; what an interrupted run wrote after them is hidden.
    """

    def __init__(self, folder: Path, done: int):
        from tensorboardX import SummaryWriter

        path = str(folder / "tensorboard")
        self._writer: Any = SummaryWriter(path, purge_step=done if done else None)

    def add(self, metrics: Metrics) -> None:
        """Write the finite numbers of a round, and means of its arrays."""
        step = int(metrics["round"])
        for name, values in metrics.items():
            mean = float(np.mean(values))
            if name != "round" and np.isfinite(mean):
                self._writer.add_scalar(name, mean, step)

    def close(self) -> None:
        """Write what is still in memory."""
        self._writer.close()
