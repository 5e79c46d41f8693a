"""A measurement on file: its figures, and where they come from."""

import dataclasses
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from collapipe_jax.core.files import loads, write_json

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "results"


@dataclasses.dataclass(frozen=True)
class Record:
    """What a measurement found, and the sources, day and machine that it had."""

    shows: str
    commands: tuple[str, ...]
    commit: str  # at which it began
    date: str
    machine: dict[str, Any] | None  # None: not on file
    seconds: float | None
    figures: dict[str, Any]
    recorded: bool = False  # by hand, from a page of the commit

    def write(self, name: str, folder: Path = FOLDER) -> None:
        """Write it as a file of its own."""
        write_json(folder / f"{name}.json", _short(dataclasses.asdict(self)))


def read_record(name: str, folder: Path = FOLDER) -> Record:
    """A measurement by its name."""
    found = loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return Record(**found | {"commands": tuple(found["commands"])})


def _short(value: Any) -> Any:
    """Nested numbers to six digits."""
    if isinstance(value, dict):
        return {key: _short(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_short(entry) for entry in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def this_machine() -> dict[str, Any]:
    """Processor, its cores, and the version of JAX."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "jax": importlib.metadata.version("jax"),
    }


def _cpu() -> str:
    """Name of the processor, as Linux has it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def git(*arguments: str) -> str | None:
    """What git answers about these sources; None where it knows nothing of them."""
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
