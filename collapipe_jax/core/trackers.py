"""Trackers: where metrics of rounds go besides the workdir, chosen by the key ``tracker``."""

import hashlib
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from collapipe_jax.core.plugins import find

_PROJECT = "collapipe"


class Tracker(Protocol):
    """What takes metrics of rounds."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take the metrics of a round."""

    def close(self) -> None:
        """Pass on what is still in memory."""


MakeTracker = Callable[[Path, int, Mapping[str, Any]], Tracker]
"""A tracker from the workdir of a run, its rounds so far, and its configuration."""


class TensorBoard:
    """Event files in ``tensorboard/`` of the workdir; extra ``tensorboard``.

    What an interrupted run wrote after its rounds so far is hidden.
    """

    def __init__(self, folder: Path, done: int, config: Mapping[str, Any]):
        from tensorboardX import SummaryWriter

        del config
        path = str(folder / "tensorboard")
        self._writer: Any = SummaryWriter(path, purge_step=done if done else None)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write the metrics of a round."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is still in memory."""
        self._writer.close()


class _Run:
    """A run of a package with the interface of wandb, in the project ``collapipe``."""

    def __init__(self, run: Any):
        self._run = run

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


def _begin(package: str, folder: Path, **settings: Any) -> Tracker:
    module = importlib.import_module(package)
    return _Run(module.init(project=_PROJECT, name=folder.name, **settings))


def _weights_and_biases(folder: Path, done: int, config: Mapping[str, Any]) -> Tracker:
    """A run of the package ``wandb``; a resumed training goes on with it."""
    del done
    digest = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    settings = {"config": dict(config), "resume": "allow"}
    return _begin("wandb", folder, id=digest, dir=str(folder), **settings)


def _trackio(folder: Path, done: int, config: Mapping[str, Any]) -> Tracker:
    """A run of the package ``trackio``; a resumed training goes on with it."""
    del done
    return _begin("trackio", folder, config=dict(config), resume="allow")


NO_TRACKER = "none"
TRACKERS: dict[str, MakeTracker | None] = {
    NO_TRACKER: None,
    "tensorboard": TensorBoard,
    "wandb": _weights_and_biases,
    "trackio": _trackio,
}


def find_tracker(name: str) -> MakeTracker | None:
    """What makes the tracker of a name, of the registry or as ``package.module:name``.

    Raises:
      InputError: if there is no such name.
    """
    return find("tracker", name, TRACKERS)


def finite_means(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a round, and means of its arrays."""
    means = {name: float(np.mean(values)) for name, values in metrics.items() if name != "round"}
    return {name: mean for name, mean in means.items() if np.isfinite(mean)}
