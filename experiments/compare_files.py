"""The files of a comparison, which a killed run goes on with.

``config.json`` holds the settings, ``networks.npz`` the networks, ``checkpoints/`` the
realisations of every policy, some at a time. A file is whole or not there.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.array_files import read_arrays
from experiments.settings_file import read_settings


class Comparison(NamedTuple):
    """A comparison as it stands on file.

    Attributes:
      settings: ``config``, and ``compare`` with rounds, realisations and policies.
      networks: arrays by field of ``Network`` in :mod:`experiments.compare`, ``[R, ...]``.
      policies: by name, arrays by field of ``Realisation`` there, ``[R, ...]``.
    """

    settings: dict[str, Any]
    networks: dict[str, np.ndarray]
    policies: dict[str, dict[str, np.ndarray]]


def networks_file(workdir: Path) -> Path:
    """Where the networks stand."""
    return workdir / "networks.npz"


def chunk_file(workdir: Path, policy: str, start: int) -> Path:
    """Where realisations of a policy stand, the first of them ``start``."""
    return workdir / "checkpoints" / f"{policy}_{start:06d}.npz"


def load_comparison(workdir: str | os.PathLike) -> Comparison:
    """Everything that a finished comparison left.

    Raises:
      InputError: if there is no such run, or a file is missing or damaged.
    """
    folder = Path(workdir)
    settings = read_settings(folder, "compare", "comparison", "experiments.compare")
    asked = settings["compare"]
    policies = {}
    for name in asked["policies"]:
        starts = range(0, asked["realisations"], asked["chunk"])
        chunks = [read_arrays(chunk_file(folder, name, start)) for start in starts]
        policies[name] = {
            field: np.concatenate([chunk[field] for chunk in chunks]) for field in chunks[0]
        }
    return Comparison(settings, read_arrays(networks_file(folder)), policies)
