"""Files that are whole or not there, strict JSON, and locks of folders."""

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import socket
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from collapipe_jax.core.errors import InputError, InputWarning

_PARTIAL = ".partial"
"""Ending of files that are being written, or were when a program was killed."""

_OWN = re.compile(
    rf".*\.[0-9a-f]{{32}}{re.escape(_PARTIAL)}", re.DOTALL
)  # as `partial_path` names them

_DIGEST = "sha256"
"""Key of a JSON object on file with the digest of all else in it."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file at once or not at all, its folder made, also when the program is killed."""
    with _naming(path):
        partial = _write_partial(path, content)
        partial.replace(path)
        sync_folder(path.parent)


def write_new_text(path: Path, text: str) -> bool:
    """Write a text as ``write_text`` does, unless there is a file; whether it was written.

    Of several processes that call it at once, one writes.
    """
    with _naming(path):
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
    with _naming(path):
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
    for path in filter(is_partial, list(folder.rglob(f"*{_PARTIAL}"))):
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
def _naming(path: Path) -> Iterator[None]:
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
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}{_PARTIAL}")


# JSON that every reader understands alike; ambiguous text is refused.


def loads(text: str, *, is_finite: bool = True) -> Any:
    """Value of a JSON text.

    Args:
      text: of a file.
      is_finite: whether to refuse NaN and infinity here; else the caller does, by name.

    Raises:
      ValueError: if it is not JSON. Numbers that are no finite double, a key that is twice in one
        object, half of a surrogate pair, and nesting of thousands of levels count as that.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object, **(_FINITE if is_finite else {}))
    except RecursionError:
        raise ValueError("nested too deep") from None
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"half a character, {error.object[error.start]!r}") from None
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is beyond double precision")
    return value


_FINITE: dict[str, Any] = {"parse_constant": _refuse_constant, "parse_float": _finite_float}


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(f"the key {twice!r} is there twice")
    return found


# Locks of folders, so that two processes never write to one.

_LOCK = ".lock"
"""Ending of the files that processes lock."""

_NAMES = re.compile(rf"(run|shard_\d+_of_\d+){re.escape(_LOCK)}")
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def lock_folder(folder: Path, name: str = "run", *, shared: bool = False) -> Iterator[None]:
    """Keep other processes from the same lock of a folder until the end of a block.

    The kernel frees the lock of a process that ends, however it ends. So a lock file that a killed
    process left is no lock. Locks hold between hosts where the file system passes ``flock`` on:
    NFS does unless mounted with ``nolock`` or ``local_lock``, Lustre with ``flock``.

    Args:
      folder: must exist.
      name: of the lock.
      shared: whether others may share it; it still keeps those away that do not.

    Raises:
      InputError: if another process has the lock.
    """
    path = folder / f"{name}{_LOCK}"
    descriptor = _lock(path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        with contextlib.suppress(OSError):  # others share it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        os.close(descriptor)


def is_lock(path: Path) -> bool:
    """Whether a file has the name of a lock of a workdir; those of other programs have not."""
    return _NAMES.fullmatch(path.name) is not None


@contextlib.contextmanager
def own_share(folder: Path, index: int, count: int) -> Iterator[None]:
    """Keep other processes from a share of a folder's work, and the whole from its shares.

    Who has the whole first removes what killed processes left half-written.

    Args:
      folder: must exist.
      index: number of the share.
      count: number of shares; 1 is the whole.

    Raises:
      InputError: if another process has the same share, or one of them is the whole.
    """
    with contextlib.ExitStack() as locks:
        locks.enter_context(lock_folder(folder, shared=count > 1))
        if count == 1:
            remove_partials(folder)
        else:
            locks.enter_context(lock_folder(folder, f"shard_{index}_of_{count}"))
        yield


def _lock(path: Path, kind: int) -> int:
    """Descriptor of a lock file that is locked and is still there."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 200, 0).decode(errors="replace")
            os.close(descriptor)
            problem = f"{owner or 'another process'} writes to it"
            remedy = "Wait until that ends, or stop it"
            raise InputError("workdir", str(path.parent), problem, remedy) from None
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
            warnings.warn(
                f"workdir = {str(path.parent)!r}: its file system has no locks "
                f"({error.strerror}). Let one process at a time write to it.",
                InputWarning,
                stacklevel=4,
            )
            return descriptor
        with contextlib.suppress(FileNotFoundError):  # its owner has removed it since
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)
