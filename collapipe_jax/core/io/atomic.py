"""Writing files that are whole or not there."""

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from collapipe_jax.core.io.strict_json import loads

PARTIAL = ".partial"
"""Ending of files that are being written, or were when a program was killed."""

_OWN = re.compile(
    rf".*\.[0-9a-f]{{32}}{re.escape(PARTIAL)}", re.DOTALL
)  # as `partial_path` names them

_DIGEST = "sha256"
"""Key of a JSON object on file with the digest of all else in it."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file at once or not at all, its folder made, also when the program is killed."""
    with naming(path):
        partial = _write_partial(path, content)
        partial.replace(path)
        sync_folder(path.parent)


def write_new_text(path: Path, text: str) -> bool:
    """Write a text as ``write_text`` does, unless there is a file; whether it was written.

    Of several processes that call it at once, one writes.
    """
    with naming(path):
        partial = _write_partial(path, text.encode())
        try:
            os.link(partial, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        sync_folder(path.parent)
    return True


def append_line(path: Path, line: str) -> None:
    """Add a line to a file, whole or not at all where the disk is full."""
    with naming(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            end, left = os.fstat(descriptor).st_size, line.encode()
            try:
                while left:
                    left = left[os.write(descriptor, left) :]
            except OSError:
                os.ftruncate(descriptor, end)
                raise
        finally:
            os.close(descriptor)


def remove_partials(folder: Path) -> None:
    """Remove what killed processes left half-written; no other process may be writing there."""
    for path in filter(is_partial, list(folder.rglob(f"*{PARTIAL}"))):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def is_partial(path: Path) -> bool:
    """Whether a file has a name of :func:`partial_path`; those of other programs have not."""
    return _OWN.fullmatch(path.name) is not None


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give every ``OSError`` the name of the file that is written."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _write_partial(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    try:
        with partial.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    return partial


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8 as ``write_bytes`` does."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write a value as strict JSON; numbers that are not finite become null."""
    write_text(path, json.dumps(finite(value), indent=1, allow_nan=False) + "\n")


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object with its digest, which :func:`read_object` checks."""
    write_text(path, sealed(value))


def sealed(value: Mapping[str, Any]) -> str:
    """The text of a JSON object on file with its digest."""
    plain = finite(value)
    return json.dumps(plain | {_DIGEST: _digest(plain)}, indent=1, allow_nan=False) + "\n"


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def finite(value: Any) -> Any:
    """The same nested value, with null for infinities and nan."""
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object on file; None if it is missing, damaged, or has another digest than it says.

    Objects of older versions have no digest.
    """
    try:
        found = loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # ValueError: not UTF-8, or not JSON
        return None
    if not isinstance(found, dict):
        return None
    digest = found.pop(_DIGEST, None)
    return found if digest in (None, _digest(found)) else None


def partial_path(path: Path) -> Path:
    """A path for a file while it is being written, another one in every process and call."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}{PARTIAL}")
