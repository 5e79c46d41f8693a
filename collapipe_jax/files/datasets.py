"""Results of experiments and training runs as labelled datasets of xarray (extra ``results``).

Axes have names, policies and swept values are coordinates, and units are attributes. Where one
policy lacks a quantity that another has, it is nan.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from collapipe_jax.cost.latency import LatencyParts
from collapipe_jax.errors import InputError
from collapipe_jax.files.checkpoints import load_run
from collapipe_jax.files.realisations import case_name, chunk_parts, point_folder
from collapipe_jax.files.results import Results, Variable, read_settings
from collapipe_jax.units import unit_of

if TYPE_CHECKING:
    import xarray

_TABLES = ("race", "convergence")
"""Experiments with one part, ``runs``."""
_LAST_AXES = {"forward_flow_s": "forward_stage", "backward_flow_s": "backward_stage"}
_LAST_AXES |= {"parts_s": "part", "client_parts_s": "client_part"}
"""Last axes of a training run's history that are not of clusters or nodes."""


def open_results(workdir: str | os.PathLike) -> "xarray.Dataset":
    """Results on file as one dataset; settings are its attributes, as JSON.

    A comparison or closed loop has the axes ``policy`` and ``realisation``, and ``v`` if it has
    several weights of latency. A sweep or map also has those of its swept values. A race or
    study of convergence has the axis ``run``, a training run ``round``.

    Args:
      workdir: of ``collapipe compare``, ``sweep``, ``map`` or ``train``, or of such a study.

    Raises:
      InputError: if the folder has no such results, or xarray is not installed.

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
    experiment = settings.get("experiment")
    if experiment is None:
        return _training(workdir)
    if experiment in ("compare", "closed_loop"):
        return _comparison(workdir, experiment)
    results = Results.open(workdir, experiment)
    if experiment in ("sweep", "map"):
        return _points(results, experiment)
    if experiment in _TABLES:
        return _dataset(results.read_labelled("runs"), settings)
    remedy = "Read its parts by collapipe_jax.files.results.Results"
    raise InputError("workdir", str(workdir), f"{experiment} makes no dataset", remedy)


def _comparison(workdir: str | os.PathLike, experiment: str) -> "xarray.Dataset":
    """Policies, and values of V where there are several, side by side."""
    results = Results.open(workdir, experiment)
    options = results.options

    def case(policy: str, v: float):
        return _dataset(results.read_labelled(*chunk_parts(case_name(policy, v), options)))

    by_policy = [
        _stack([case(policy, v) for v in options["v"]], "v", options["v"])
        for policy in options["policies"]
    ]
    found = _stack(by_policy, "policy", options["policies"])
    found = found.squeeze("v") if len(options["v"]) == 1 else found
    networks = _dataset(results.read_labelled("networks"), results.settings)
    return networks.merge(found)


def _points(results: Results, experiment: str) -> "xarray.Dataset":
    """Comparisons along the axis of a sweep, or both axes of a map."""
    options = results.options
    if experiment == "sweep":
        axes = {options["axis"]: options["values"]}
    else:
        axes = {options[axis]: options[f"{axis}_values"] for axis in ("y", "x")}
    count = len(options["points"])
    found = [_comparison(point_folder(results.folder, i), "compare") for i in range(count)]
    for name, values in reversed(axes.items()):  # the last axis runs fastest
        size = len(values)
        groups = [found[start : start + size] for start in range(0, len(found), size)]
        found = [_stack(group, name, values) for group in groups]
    return found[0].assign_attrs(_attributes(results.settings))


def _training(workdir: str | os.PathLike) -> "xarray.Dataset":
    """History of a training run, and its constants."""
    record = load_run(workdir)
    nodes = record.constants["energy_budget_j"].shape[1]
    by_size = {1: "client", nodes - 1: "device", nodes: "node"}  # control units may be clients

    def label(name: str, values: np.ndarray, leading: str) -> Variable:
        first = [*leading.split(), "cluster"]
        last = [_LAST_AXES[name]] if name in _LAST_AXES else []
        middle = [by_size[size] for size in values.shape[len(first) : values.ndim - len(last)]]
        return Variable(" ".join((first + middle + last)[: values.ndim]), values)

    constants = {name: label(name, values, "") for name, values in record.constants.items()}
    history = {name: label(name, values, "round") for name, values in record.history.items()}
    found = _dataset(constants | history, {"config": record.config})
    return found.assign_coords(part=list(LatencyParts._fields))


def _dataset(
    variables: Mapping[str, Variable], settings: Mapping[str, Any] | None = None
) -> "xarray.Dataset":
    """A dataset of arrays with named axes, all indexed; the suffix of a name says its unit."""
    data = {
        name: (variable.axes.split(), variable.values, _unit(name.partition(".")[0]))
        for name, variable in variables.items()
    }
    found = _xarray().Dataset(data, attrs=_attributes(settings or {}))
    return found.assign_coords(
        {axis: np.arange(size) for axis, size in found.sizes.items() if axis not in found.coords}
    )


def _stack(
    datasets: Sequence["xarray.Dataset"], name: str, values: Sequence[Any]
) -> "xarray.Dataset":
    """Datasets along a new axis."""
    xarray = _xarray()
    axis = xarray.IndexVariable(name, values, _unit(name))
    return xarray.concat(
        datasets, axis, data_vars="all", coords="minimal", join="outer", combine_attrs="override"
    )


def _unit(name: str) -> dict[str, str]:
    return {"units": unit_of(name)}


def _attributes(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as attributes that every format of files can hold."""
    return {name: json.dumps(value) for name, value in settings.items()}


def _xarray() -> Any:
    try:
        import xarray
    except ModuleNotFoundError as error:
        remedy = "Install the extra: pip install 'collapipe-jax[results]'"
        raise InputError("xarray", "missing", "datasets need it", remedy) from error
    return xarray
