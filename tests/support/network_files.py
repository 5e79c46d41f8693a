"""Networks on file for tests."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collapipe_jax.cli import sample
from collapipe_jax.runs.documents import NETWORK
from support import SUPPORT


def write_sample(path: Path, *overrides: str) -> Path:
    """A network drawn from the tiny run; overrides are ``section.key=value``."""
    keys = [f"--config.{override}" for override in overrides]
    sample.main([f"--config={SUPPORT / 'tiny_run.py'}", f"--out={path}", *keys])
    return path


def change(path: Path, section: str, key: str, value: object) -> Path:
    """Set a value of a network on file."""
    document = json.loads(path.read_text())
    document[section][key] = value
    path.write_text(json.dumps(document))
    return path


def cut(document: dict, devices: Sequence[int]) -> dict:
    """A network whose clusters have so many devices each, of those that they have."""
    short = {"devices": list(devices)}
    for name in document.keys() & NETWORK:
        keys, values = NETWORK[name], document[name].items()
        short[name] = {key: _cut(value, keys[key].shape, devices) for key, value in values}
    return document | short


def _cut(value: Any, shape: str, devices: Sequence[int], cluster: int = 0) -> Any:
    if not shape:
        return value
    length = {"K": devices[cluster], "J": devices[cluster] + 1}.get(shape[0])
    return [
        _cut(item, shape[1:], devices, index if shape[0] == "N" else cluster)
        for index, item in enumerate(value[:length])
    ]
