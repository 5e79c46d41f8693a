"""The history of a run on file: arrays of its rounds, in one file for every checkpoint.

A checkpoint adds the rounds since the last one, so a round takes as long after ten thousand as at
the start.
"""

import io
import itertools
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.io.atomic import write_bytes

Arrays = dict[str, np.ndarray]
"""Arrays by name, first axis the rounds."""


def write_rounds(folder: Path, end: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the rounds before ``end``, as many as the arrays have."""
    if not arrays:
        return
    content, columns = io.BytesIO(), dict[str, Any](arrays)
    np.savez(content, **columns)
    first = end - len(next(iter(arrays.values())))
    write_bytes(folder / f"{first:08d}.npz", content.getvalue())


def read_rounds(folder: Path, end: int) -> Arrays:
    """The rounds from 0 to ``end - 1``; files of later ones are not read.

    Raises:
      InputError: if rounds are missing, or a file is damaged.
    """
    firsts = sorted(int(path.stem) for path in folder.glob("*.npz") if path.stem.isdigit())
    starts = [first for first in firsts if first < end]
    parts, done = [], 0
    for first, stop in itertools.pairwise([*starts, end]):
        path = folder / f"{first:08d}.npz"
        # A run that went on from an older checkpoint wrote some rounds again, in other files.
        part = {name: values[: stop - first] for name, values in _read(path).items()}
        if first != done or any(len(values) != stop - first for values in part.values()):
            break
        parts.append(part)
        done = stop
    if done != end:
        raise _damaged(folder, f"lacks rounds from {done} on", done)
    if not parts:
        return {}
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _read(path: Path) -> Arrays:
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise _damaged(path, f"is damaged ({type(error).__name__})", int(path.stem)) from error


def _damaged(path: Path, problem: str, first: int) -> InputError:
    """The error of a history whose rounds before the ``first`` are whole."""
    remedy = (
        f"Restore it from a copy; or delete it and all checkpoints above {first}, and --resume "
        "computes the same rounds again"
    )
    return InputError("history", str(path), problem, remedy)
