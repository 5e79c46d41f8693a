"""Writing files that are whole or not there."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8 as ``write_bytes`` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file at once or not at all, also when the program is killed."""
    partial = partial_path(path)
    with partial.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write a value as strict JSON, its folder made; numbers that are not finite become null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(finite(value), indent=1, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """The same nested value, with null for infinities and nan."""
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def partial_path(path: Path) -> Path:
    """Where a file stands while it is written."""
    return path.with_name(path.name + ".partial")
