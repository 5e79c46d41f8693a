"""Several hosts that run one program: the first decides, reads and writes, and tells the others.

JAX runs the same program on every host, and all must launch the same computations in the same
order. What happens on the first host alone is told to the others here, so that they cannot part.
"""

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from collapipe_jax.errors import InputError

_CHUNK_BYTES = 1 << 16  # lengths are rounded up to these, so that few programs are compiled
_Value = TypeVar("_Value")


def join(coordinator: str, count: int | None = None, index: int | None = None) -> None:
    """Become one of several hosts; to be called before anything else of JAX.

    Args:
      coordinator: ``ADDRESS:PORT`` of the first host, or "auto" where Slurm, Open MPI or a cloud
        TPU tell JAX all three.
      count: number of hosts.
      index: of this one, from 0.

    Raises:
      InputError: if something is missing, or the hosts do not find each other.
    """
    if coordinator == "auto":
        where = {}
    elif count is None or index is None or not 0 <= index < count:
        raise InputError(
            "--coordinator",
            coordinator,
            f"needs a number of hosts and which this one is, not {count} and {index}",
            "Give --hosts=COUNT and --host=INDEX, from 0",
        )
    else:
        where = {"coordinator_address": coordinator, "num_processes": count, "process_id": index}
    try:
        jax.distributed.initialize(**where)
    except (RuntimeError, ValueError) as error:
        problem = f"the hosts did not find each other ({str(error).splitlines()[0]})"
        remedy = "Start all of them within 5 minutes, with the address of the first"
        raise InputError("--coordinator", coordinator, problem, remedy) from error


def is_first() -> bool:
    """Whether this host decides, reads and writes."""
    return jax.process_index() == 0


def from_first(value: _Value) -> _Value:
    """What the first host has, on every host; what the others give is not read.

    Args:
      value: anything that can be pickled; arrays of JAX arrive as those of NumPy.
    """
    if jax.process_count() == 1:
        return value
    data = np.frombuffer(pickle.dumps(jax.device_get(value) if is_first() else None), np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(data.size)))
    padded = np.zeros(-(-length // _CHUNK_BYTES) * _CHUNK_BYTES, np.uint8)
    if is_first():
        padded[:length] = data
    told = np.asarray(multihost_utils.broadcast_one_to_all(padded))
    return pickle.loads(told[:length].tobytes())


def on_first(work: Callable[[], _Value]) -> _Value:
    """Do something on the first host alone; its result, or its error, reaches all.

    Args:
      work: what to do.
    """
    if jax.process_count() == 1:
        return work()
    result: tuple[Any, Exception | None] = None, None
    if is_first():
        try:
            result = work(), None
        except (InputError, OSError) as error:
            result = None, error
    value, error = from_first(result)
    if error is not None:
        raise error
    return value
