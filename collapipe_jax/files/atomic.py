"""Writing files that are whole or not there."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file at once or not at all, its folder made, also when the program is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    with partial.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8 as ``write_bytes`` does."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write a value as strict JSON; numbers that are not finite become null."""
    write_text(path, json.dumps(finite(value), indent=1, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """The same nested value, with null for infinities and nan."""
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object on file; None if it is missing or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # ValueError: not UTF-8, or not JSON
        return None
    return found if isinstance(found, dict) else None


def partial_path(path: Path) -> Path:
    """Path of a file while it is being written."""
    return path.with_name(path.name + ".partial")
