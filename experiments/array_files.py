"""Arrays by name in a file that is whole or not there."""

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import partial_path


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays at once or not at all; the same arrays give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    with partial.open("wb") as stream:
        np.savez(stream, **arrays)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Arrays on file.

    Raises:
      InputError: if the file is missing or damaged.
    """
    try:
        # NumPy leaves a file open that it finds damaged, unless it is given an open one.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as found:
            return dict(found)
    except FileNotFoundError:
        raise InputError(
            "workdir", str(path), "is missing", "Let its run go on with the same arguments"
        ) from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            "workdir", str(path), f"is damaged ({error})", "Delete it and let its run go on"
        ) from None
