"""The files of a closed-loop run, which a killed run goes on with.

``config.json`` holds the settings, ``networks.npz`` the networks, ``chunks/`` the
realisations of every policy and V, some at a time. A file is whole or not there.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.array_files import read_arrays
from experiments.settings_file import read_settings


class Case(NamedTuple):
    """All realisations of one policy and V.

    Attributes:
      policy: its name.
      v: weight of latency.
      values: arrays by field of ``Realisation`` in :mod:`experiments.closed_loop`, ``[R, ...]``.
    """

    policy: str
    v: float
    values: dict[str, np.ndarray]


class ClosedLoop(NamedTuple):
    """A closed-loop run as it stands on file.

    Attributes:
      settings: ``config``, and ``closed_loop`` with rounds, realisations, policies and V.
      networks: arrays by field of ``Network`` in :mod:`experiments.closed_loop`, ``[R, ...]``.
      cases: in the order of policies, then of V.
    """

    settings: dict[str, Any]
    networks: dict[str, np.ndarray]
    cases: list[Case]

    @property
    def rounds(self) -> int:
        """Length of the horizon."""
        return self.settings["closed_loop"]["rounds"]


def networks_file(workdir: Path) -> Path:
    """Where the networks stand."""
    return workdir / "networks.npz"


def chunk_file(workdir: Path, policy: str, v: float, start: int) -> Path:
    """Where realisations of a policy and V stand, the first of them ``start``."""
    return workdir / "chunks" / f"{policy}_v{v!r}_{start:06d}.npz"


def chunk_starts(realisations: int, chunk: int) -> range:
    """First realisation of every chunk."""
    return range(0, realisations, chunk)


def load_closed_loop(workdir: str | os.PathLike) -> ClosedLoop:
    """Everything that a finished run left.

    Raises:
      InputError: if there is no such run, or a file is missing or damaged.
    """
    folder = Path(workdir)
    settings = read_settings(folder, "closed_loop", "closed-loop run", "experiments.closed_loop")
    asked = settings["closed_loop"]
    starts = chunk_starts(asked["realisations"], asked["chunk"])
    cases = []
    for policy in asked["policies"]:
        for v in asked["v"]:
            chunks = [read_arrays(chunk_file(folder, policy, v, start)) for start in starts]
            cases.append(Case(policy, v, _joined(chunks)))
    return ClosedLoop(settings, read_arrays(networks_file(folder)), cases)


def _joined(chunks: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
