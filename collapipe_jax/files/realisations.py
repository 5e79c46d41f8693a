"""Realisations of policies on file: comparisons, sweeps of them, and closed loops."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from collapipe_jax.files.atomic import read_object
from collapipe_jax.files.results import Results
from collapipe_jax.files.workdir import wrong_workdir


class Case(NamedTuple):
    """All realisations of one policy and V."""

    policy: str  # its name
    v: float  # weight of latency
    values: dict[str, np.ndarray]  # arrays by name, ``[R, ...]``


class Realisations(NamedTuple):
    """Realisations of policies on the same networks."""

    # ``config``, and ``options`` with rounds, realisations, chunk, policies and V
    settings: dict[str, Any]
    networks: dict[str, np.ndarray]  # arrays by name, ``[R, ...]``
    cases: list[Case]  # in the order of policies, then of V

    @property
    def rounds(self) -> int:
        """Length of the horizon."""
        return self.settings["options"]["rounds"]

    @property
    def policies(self) -> dict[str, dict[str, np.ndarray]]:
        """Arrays by policy, where there is one V."""
        return {case.policy: case.values for case in self.cases}

    def only(self, kept: np.ndarray) -> "Realisations":
        """The realisations of some networks, ``kept`` booleans ``[R]``."""
        cases = [case._replace(values=select(case.values, kept)) for case in self.cases]
        return self._replace(networks=select(self.networks, kept), cases=cases)


def select(values: Mapping[str, np.ndarray], kept: np.ndarray) -> dict[str, np.ndarray]:
    """Arrays by name at some places of their first axis."""
    return {name: value[kept] for name, value in values.items()}


def case_name(policy: str, v: float) -> str:
    """Name of the parts of a policy and V."""
    return f"{policy}_v{v!r}"


def chunk_parts(name: str, options: Mapping[str, Any]) -> dict[str, int]:
    """First realisation of every chunk of a case, by the name of its part."""
    starts = range(0, options["realisations"], options["chunk"])
    return {f"{name}/{start:06d}": start for start in starts}


def load_realisations(workdir: str | os.PathLike, experiment: str) -> Realisations:
    """All that a finished experiment left; an ``InputError`` if it is missing or damaged."""
    results = Results.open(workdir, experiment)
    options = results.options
    cases = [
        Case(policy, v, results.read(*chunk_parts(case_name(policy, v), options)))
        for policy in options["policies"]
        for v in options["v"]
    ]
    return Realisations(results.settings, results.read("networks"), cases)


class Sweep(NamedTuple):
    """A sweep of comparisons."""

    axis: str  # what is swept, with its unit
    log: bool  # whether the values are best drawn on a logarithmic axis
    # Of the points, in their order; names where the points have no number
    values: list[float] | list[str]
    points: list[Realisations]  # comparisons


def point_folder(workdir: str | os.PathLike, index: int) -> Path:
    """Workdir of the comparison at a point of a sweep."""
    return Path(workdir) / "points" / f"{index:02d}"


def load_sweep(workdir: str | os.PathLike) -> Sweep:
    """All that a finished sweep left; an ``InputError`` if it is missing or damaged."""
    options = Results.open(workdir, "sweep").options
    folders = [point_folder(workdir, index) for index in range(len(options["values"]))]
    points = [load_realisations(folder, "compare") for folder in folders]
    return Sweep(options["axis"], options["log"], options["values"], points)


def load_map(workdir: str | os.PathLike) -> dict[str, Any]:
    """The summary of a finished map; an ``InputError`` if it is missing or damaged."""
    folder = Results.open(workdir, "map").folder
    summary = read_object(folder / "summary.json")
    if summary is None:
        remedy = "Run the map again with the same arguments"
        raise wrong_workdir(folder, "its summary.json is missing or damaged", remedy)
    return summary
