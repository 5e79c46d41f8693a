"""Writing files that are whole or not there."""

import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write a file at once or not at all, also when the program is killed."""
    partial = partial_path(path)
    with partial.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)


def partial_path(path: Path) -> Path:
    """Where a file stands while it is written."""
    return path.with_name(path.name + ".partial")
