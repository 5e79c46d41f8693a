"""Training from a configuration: one run, or a sweep of runs in batches of one program."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from collapipe_jax.core.errors import TrainingError
from collapipe_jax.core.files import read_object
from collapipe_jax.runs.config.default import Config
from collapipe_jax.runs.config.experiment import Experiment, build_experiment
from collapipe_jax.runs.config.sweeps import SEED, Sweep
from collapipe_jax.runs.results.checkpoints import load_run
from collapipe_jax.runs.results.datasets import label_run
from collapipe_jax.runs.results.experiment import Results, Variable, read_summary
from collapipe_jax.runs.results.realisations import sweep_settings, swept_coordinates
from collapipe_jax.runs.results.store import WHOLE, Place, Shard
from collapipe_jax.runs.training.loop import train as train_experiment
from collapipe_jax.runs.training.loop import train_together
from collapipe_jax.runs.training.ongoing_run import BREAKDOWN, TrainedRun

_EXPERIMENT = "train"
_BY_NODE = ("energy_j", "energy_queue", "memory_bytes")
"""Arrays of nodes that all policies have alike."""


def open_training(workdir: str | os.PathLike, sweep: Sweep) -> Results:
    """Take possession of a workdir for a sweep, or go on there.

    Raises:
      InputError: if the folder holds something else.
    """
    options, config = sweep_settings(sweep)
    rounds = max(point.config.training.rounds for point in sweep.points)
    options["sizes"] = {**options["sizes"], "round": rounds}
    return Results.create(workdir, _EXPERIMENT, options, config, swept_coordinates(options))


def part_names(sweep: Sweep) -> list[str]:
    """Names of the parts: a run each, in the order of the points."""
    return [f"runs/{index:04d}" for index in range(len(sweep.points))]


def _run_folder(results: Results, part: str) -> Path:
    """Workdir of a run."""
    return results.folder / part


def train_points(
    results: Results,
    sweep: Sweep,
    console: Console,
    shard: Shard = WHOLE,
    at_once: int = 0,
) -> int:
    """Train the runs of a shard that are not on file.

    Args:
      results: of :func:`open_training`.
      sweep: all points.
      console: for progress.
      shard: a share of the runs.
      at_once: most runs that train together; 0 is all of a program.

    Returns:
      The number of runs that all shards lack.

    Raises:
      TrainingError: if runs broke down, after all others.
    """
    parts = part_names(sweep)
    own = shard.of(parts)
    # A run whose summary is damaged ends again; it trains no more.
    lacking = set(results.missing(own))
    missing = [
        part
        for part in own
        if part in lacking or read_object(_run_folder(results, part) / "summary.json") is None
    ]
    points = dict(zip(parts, range(len(parts)), strict=True))
    size = at_once or max(len(missing), 1)
    experiments: list[Experiment] = []
    broken: list[str] = []
    for start in range(0, len(missing), size):
        batch, before, experiments = missing[start : start + size], experiments[-1:], []
        for part in batch:
            config = sweep.points[points[part]].config
            experiments.append(build_experiment(config, like=[*experiments, *before]))
        folders = [_run_folder(results, part) for part in batch]
        try:
            train_together(experiments, folders, resume=True, console=console)
        except TrainingError as error:
            broken.append(str(error))
        for part in batch:
            if (_run_folder(results, part) / BREAKDOWN).exists():
                continue
            _write_run(results, part, _place(sweep, points[part], results.options["sizes"]))
    if broken:
        raise TrainingError("\n".join(broken))
    return len(results.missing(parts))


def _write_run(results: Results, part: str, place: Place) -> None:
    """Write the history of a run, and the numbers of its summary, to the store."""
    folder = _run_folder(results, part)
    labelled = label_run(load_run(folder))
    data = {
        name: variable
        for name, variable in labelled.items()
        if name in _BY_NODE or (variable.axes == "round" and name != "round")
    }
    for name, value in read_summary(folder, "sweep").items():
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in data:
            data[name] = Variable("", np.float64(value))
    results.write(part, data, place)


def _place(sweep: Sweep, point: int, sizes: dict[str, int]) -> Place:
    """Place of a run on the axes of a sweep."""
    lengths = [len(axis.values) for axis in sweep.axes]
    indices = np.unravel_index(point, lengths)
    lead = {
        axis.name: (int(index), length)
        for axis, index, length in zip(sweep.axes, indices, lengths, strict=True)
    }
    return Place(lead, start=0, realisations=1, chunk=1, sizes=sizes)


def summarise_points(results: Results, sweep: Sweep) -> dict[str, Any]:
    """Axes, and the summary of every run ``at`` its point."""
    points = [
        {"at": point.labels, **read_summary(_run_folder(results, part), "sweep")}
        for point, part in zip(sweep.points, part_names(sweep), strict=True)
    ]
    return {"axes": results.options["axes"], "points": points}


def by_setting(points: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], list[dict]]]:
    """Points side by side that differ in their seeds alone."""
    groups: dict[str, tuple[dict[str, Any], list[dict]]] = {}
    for point in points:
        at = {name: value for name, value in point["at"].items() if name != SEED}
        groups.setdefault(repr(at), (at, []))[1].append(point)
    return list(groups.values())


# Training from Python: a configuration in, a trained model out.


def train(
    config: Config,
    workdir: str | os.PathLike | None = None,
    *,
    quiet: bool = False,
) -> TrainedRun:
    """Train the model of a configuration over a simulated network.

    The same call again goes on where the first stopped, or returns what it left.

    Args:
      config: as of :func:`read_config`.
      workdir: folder to keep metrics, checkpoints and model in; None keeps nothing.
      quiet: whether to show no progress.

    Returns:
      Parameters, metrics of all rounds, test scores, and what figures are drawn from.

    Raises:
      InputError: naming the key, file or folder that is wrong.

    Example:
      >>> import collapipe_jax as cp
      >>> tiny = {"network.clusters": 2, "network.devices": 2, "policy.name": "static_pipeline"}
      >>> tiny |= {"model.width": 16, "model.heads": 2, "model.feed_forward_width": 32}
      >>> tiny |= {"task.pairs": 400, "task.validation_pairs": 20, "task.test_pairs": 20}
      >>> tiny |= {"training.rounds": 2, "training.warmup_steps": 2}
      >>> run = cp.train(cp.read_config("quickstart", tiny), quiet=True)
      >>> run.history["latency_s"].shape, run.history["energy_j"].shape  # s; J, [rounds, N, K + 1]
      ((2,), (2, 2, 3))
    """
    experiment, console = build_experiment(config), Console(quiet=quiet)
    if workdir is not None:
        return train_experiment(experiment, workdir, resume=True, console=console)
    with tempfile.TemporaryDirectory() as folder:
        try:
            return train_experiment(experiment, folder, console=console)
        except KeyboardInterrupt as stop:
            raise type(stop)("nothing is kept without a workdir") from None
