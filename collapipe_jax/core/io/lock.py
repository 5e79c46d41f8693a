"""Locks of folders, so that two processes never write to one."""

import contextlib
import errno
import fcntl
import os
import re
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path

from collapipe_jax.core.errors import InputError, InputWarning
from collapipe_jax.core.io.atomic import remove_partials

LOCK = ".lock"
"""Ending of the files that processes lock."""

_NAMES = re.compile(rf"(run|shard_\d+_of_\d+){re.escape(LOCK)}")
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def alone(folder: Path, name: str = "run", *, shared: bool = False) -> Iterator[None]:
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
    path = folder / f"{name}{LOCK}"
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
        locks.enter_context(alone(folder, shared=count > 1))
        if count == 1:
            remove_partials(folder)
        else:
            locks.enter_context(alone(folder, f"shard_{index}_of_{count}"))
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
