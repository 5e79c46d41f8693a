"""Several hosts that run one program: the first decides, reads and writes, and tells the others.

JAX runs the same program on every host, and all must launch the same computations in the same
order. So the results of the first host's own work are broadcast here.
"""

import contextlib
import ipaddress
import os
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from collapipe_jax.core.errors import HostError, InputError, TrainingError
from collapipe_jax.runs import host_messages as messages
from collapipe_jax.runs.heartbeat import watched
from collapipe_jax.stopping import restore_sigterm

_CHUNK_BYTES = 1 << 16  # lengths are rounded up to these, so that few programs are compiled
_BIND_VARIABLE = "JAX_COORDINATOR_BIND_ADDRESS"  # which JAX reads where none is given
_Value = TypeVar("_Value")


def join(
    coordinator: str, count: int | None = None, index: int | None = None, bind: str | None = None
) -> contextlib.AbstractContextManager[None]:
    """Join several hosts; to be called before anything else of JAX.

    The block that is entered with the result is what they do together: a host that dies in it ends
    the others.

    Args:
      coordinator: ``ADDRESS:PORT`` of the first host, or "auto" where Slurm, Open MPI or a cloud
        TPU tell JAX all three.
      count: number of hosts.
      index: number of this one, from 0.
      bind: ``ADDRESS:PORT`` that the first host listens at; by default that of the environment
        variable of JAX, else ``coordinator`` if it is an address in digits, and the port at all
        addresses if it is a name.

    Raises:
      InputError: if something is missing, the hosts do not find each other, or have different
        numbers of devices.
    """
    if coordinator == "auto":
        if count is not None or index is not None:
            raise InputError("--coordinator", coordinator, "knows the hosts", "Drop the others")
        where, remedy = {}, "Give ADDRESS:PORT of the first host, --hosts and --host"
    else:
        address, _, port = coordinator.rpartition(":")
        if not address or not port.isdigit() or (":" in address and address[0] != "["):
            problem, remedy = (
                "is no address with a port",
                "Write it like 10.0.0.1:8476 or [::1]:8476",
            )
            raise InputError("--coordinator", coordinator, problem, remedy)
        if count is None or index is None or not 0 <= index < count:
            problem = f"needs a number of hosts and which this one is, not {count} and {index}"
            remedy = "Give --hosts=COUNT and --host=INDEX, from 0"
            raise InputError("--coordinator", coordinator, problem, remedy)
        where = {"coordinator_address": coordinator, "num_processes": count, "process_id": index}
        if bind is None and _BIND_VARIABLE not in os.environ and _is_in_digits(address):
            bind = coordinator
        remedy = "Start all of them within 5 minutes, with the address of the first"
        if index == 0:
            remedy += "; where that is none of this machine's own, give --bind=0.0.0.0:PORT"
    try:
        jax.distributed.initialize(**where, coordinator_bind_address=bind)
    except (RuntimeError, ValueError) as error:
        problem = f"the hosts did not find each other ({error})"
        raise InputError("--coordinator", coordinator, problem, remedy) from error
    restore_sigterm()  # JAX has put its notice of preemption in its place
    devices = Counter(device.process_index for device in jax.devices())
    if len(set(devices.values())) > 1:
        problem = f"they have {sorted(devices.values())} devices"
        raise InputError("--hosts", len(devices), problem, "Give all hosts as many")
    return watched(jax.process_index(), jax.process_count())


def _is_in_digits(address: str) -> bool:
    """Whether an address is one of IP, which may be in brackets, instead of a name."""
    try:
        ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        return False
    return True


def is_first() -> bool:
    """Whether this host decides, reads and writes."""
    return jax.process_index() == 0


def from_first(value: _Value) -> _Value:
    """The value of the first host, on every host; those of the others are not read.

    It arrives as :mod:`.messages` has it, arrays of JAX as those of NumPy.
    """
    if jax.process_count() == 1:
        return value
    data = np.frombuffer(messages.encode(jax.device_get(value) if is_first() else None), np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(data.size)))
    padded = np.zeros(-(-length // _CHUNK_BYTES) * _CHUNK_BYTES, np.uint8)
    if is_first():
        padded[:length] = data
    received = np.asarray(multihost_utils.broadcast_one_to_all(padded))
    return messages.decode(received[:length].tobytes())


def fetch(tree: Any) -> Any:
    """All arrays of a tree as those of NumPy, also where other hosts hold parts of them.

    All hosts call it, and each gets the whole.
    """

    def whole(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return multihost_utils.process_allgather(leaf, tiled=True)
        return jax.device_get(leaf)

    return jax.tree.map(whole, tree)


def on_first(work: Callable[[], _Value]) -> _Value:
    """Work on the first host alone; its result or its error reaches all."""
    if jax.process_count() == 1:
        return work()
    value: Any
    value, error = _attempt(work) if is_first() else (None, None)
    told: Any = None if error is None else messages.describe_error(error)
    value, told = from_first((value, told))
    if told is not None:
        raise error or messages.make_error(*told)
    return value


def on_every(work: Callable[[], _Value]) -> _Value:
    """Work on every host without shared computations; continue only if it succeeded on all.

    Raises:
      HostError: if another host failed; its output has the reason.
    """
    if jax.process_count() == 1:
        return work()
    value, error = _attempt(work)
    failed = np.flatnonzero(multihost_utils.process_allgather(np.int32(error is not None)))
    if error is not None:
        raise error
    if failed.size:
        raise HostError(f"host {failed[0]} of {jax.process_count()} has failed; see its output")
    return value


def _attempt(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Result or error."""
    try:
        return work(), None
    except (InputError, OSError, TrainingError) as error:
        return None, error
    except Exception as error:  # the other hosts must learn of it, or they wait forever
        traceback.print_exc()
        return None, HostError(f"a host has failed: {type(error).__name__}: {error}")
