"""Results of experiments and training runs as labelled datasets of xarray.

Axes have names, policies and swept values are coordinates, and units are attributes. Where one
policy lacks a quantity that another has, or a part is not written yet, it is nan.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.quantity import unit_of
from collapipe_jax.edge.cost.latency import LatencyParts
from collapipe_jax.runs.results.checkpoints import RunRecord, load_run
from collapipe_jax.runs.results.experiment import Results, Variable, nothing_there, read_settings

if TYPE_CHECKING:
    import xarray

_TABLES = {"race": "runs", "convergence": "runs"}
"""Experiments that open as a table, and its name."""
_LAST_AXES = {"forward_flow_s": "forward_stage", "backward_flow_s": "backward_stage"}
_LAST_AXES |= {"parts_s": "part", "client_parts_s": "client_part"}
"""Last axes of a training run's history that are not of clusters or nodes."""


def open_results(workdir: str | os.PathLike, table: str = "") -> "xarray.Dataset":
    """Results on file as one dataset; settings are its attributes, as JSON.

    A comparison or closed loop has the axes ``policy`` and ``realisation``, and ``v`` if it has
    several weights of latency. A sweep or map also has those of its swept values. A race or
    study of convergence has the axis ``run``, a training run ``round``. Arrays are read when
    they are used. Integers and booleans of comparisons are floating-point numbers, so that
    those that are missing can be nan.

    Args:
      workdir: of ``collapipe compare``, ``sweep``, ``map`` or ``train``, or of a study.
      table: name of a table of a study (docs/file-formats.md).

    Raises:
      InputError: if the folder has no such results.

    Example:
      >>> import tempfile
      >>> import collapipe_jax as cp
      >>> tiny = {"network.clusters": 2, "network.devices": 2, "policy.name": "static_pipeline"}
      >>> tiny |= {"model.width": 16, "model.heads": 2, "model.feed_forward_width": 32}
      >>> tiny |= {"task.pairs": 400, "training.rounds": 2, "training.warmup_steps": 2}
      >>> workdir = tempfile.mkdtemp()
      >>> run = cp.train(cp.read_config("quickstart", tiny), workdir, quiet=True)
      >>> energy_j = cp.open_results(workdir).energy_j
      >>> dict(energy_j.sizes), energy_j.attrs["units"]
      ({'round': 2, 'cluster': 2, 'node': 3}, 'J')
    """
    settings = read_settings(workdir)
    if not (Path(workdir) / "config.json").is_file():
        kinds = ["train", "compare", "sweep", "map", *_TABLES]
        raise nothing_there(workdir, "holds no results", kinds, key="workdir")
    experiment = settings.get("experiment")
    if experiment is None:
        return _training(workdir)
    store, table = Results.open(workdir, experiment).store, table or _TABLES.get(experiment, "")
    if not (store / table / "zarr.json").exists():
        known = ", ".join(sorted(path.parent.name for path in store.glob("*/zarr.json")))
        remedy = f"Choose among: {known}" if known and table else "Run it again"
        raise InputError("workdir", str(workdir), f"holds no results {table}".strip(), remedy)
    import xarray

    found = xarray.open_dataset(
        store,
        engine="zarr",
        consolidated=False,
        chunks=None,
        decode_times=False,
        group=table or None,
    )
    return _indexed(found).assign_attrs(_attributes(settings)).drop_encoding()


def _training(workdir: str | os.PathLike) -> "xarray.Dataset":
    """History of a training run, and its constants."""
    record = load_run(workdir)
    found = _dataset(label_run(record), {"config": record.config})
    return found.assign_coords(part=list(LatencyParts._fields))


def label_run(record: RunRecord) -> dict[str, Variable]:
    """History and constants of a training run, with the names of their axes."""
    nodes = record.constants["energy_budget_j"].shape[1]
    by_size = {1: "client", nodes - 1: "device", nodes: "node"}  # control units may be clients

    def label(name: str, values: np.ndarray, leading: str) -> Variable:
        first = [*leading.split(), "cluster"]
        last = [_LAST_AXES[name]] if name in _LAST_AXES else []
        middle = [by_size[size] for size in values.shape[len(first) : values.ndim - len(last)]]
        return Variable(" ".join((first + middle + last)[: values.ndim]), values)

    constants = {name: label(name, values, "") for name, values in record.constants.items()}
    history = {name: label(name, values, "round") for name, values in record.history.items()}
    return constants | history


def _dataset(variables: Mapping[str, Variable], settings: Mapping[str, Any]) -> "xarray.Dataset":
    """A dataset of arrays with named axes; the suffix of a name says its unit."""
    import xarray

    data = {
        name: (variable.axes.split(), variable.values, {"units": unit_of(name)})
        for name, variable in variables.items()
    }
    return _indexed(xarray.Dataset(data, attrs=_attributes(settings)))


def _indexed(found: "xarray.Dataset") -> "xarray.Dataset":
    """A dataset whose axes all have coordinates."""
    return found.assign_coords(
        {axis: np.arange(size) for axis, size in found.sizes.items() if axis not in found.coords}
    )


def _attributes(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as attributes that every format of files can hold."""
    return {name: json.dumps(value, allow_nan=False) for name, value in settings.items()}
