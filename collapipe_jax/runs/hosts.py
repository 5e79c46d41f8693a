"""Several hosts that run one program: the first decides, reads and writes, and tells the others.

JAX runs the same program on every host, and all must launch the same computations in the same
order. So the results of the first host's own work are broadcast here, as the plain values and
arrays of ``flax.serialization``: a message can neither name a function nor import a module.

JAX's own heartbeat ends all hosts where one dies, hangs, or leaves before the others.
"""

import contextlib
import ipaddress
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from flax import serialization
from jax.experimental import multihost_utils

from collapipe_jax.core.errors import HostError, InputError, TrainingError, shortened
from collapipe_jax.core.stopping import exit_status, restore_sigterm, stopped_text

DEAD_AFTER_S = 15
"""Time without a sign of life after which JAX takes a host for dead, and ends the others."""
_LEAVING_S = 60  # for the last host to end, once the first one has; the first may still write
_CHUNK_BYTES = 1 << 16  # lengths are rounded up to these, so that few programs are compiled
_BIND_VARIABLE = "JAX_COORDINATOR_BIND_ADDRESS"  # which JAX reads where none is given
_ERRORS = {kind.__name__: kind for kind in (InputError, OSError, TrainingError, HostError)}
"""Errors that all hosts have alike, by name."""
_Value = TypeVar("_Value")


@contextlib.contextmanager
def join(
    coordinator: str, count: int | None = None, index: int | None = None, bind: str | None = None
) -> Iterator[None]:
    """Join several hosts for a block; to be entered before anything else of JAX.

    An unforeseen error or an interrupt in the block ends this process, and so the others.

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
        jax.distributed.initialize(
            **where,
            coordinator_bind_address=bind,
            heartbeat_timeout_seconds=DEAD_AFTER_S,
            shutdown_timeout_seconds=_LEAVING_S,
        )
    except (RuntimeError, ValueError) as error:
        problem = f"the hosts did not find each other ({error})"
        raise InputError("--coordinator", coordinator, problem, remedy) from error
    restore_sigterm()  # JAX has put its notice of preemption in its place
    devices = Counter(device.process_index for device in jax.devices())
    if len(set(devices.values())) > 1:
        problem = f"they have {sorted(devices.values())} devices"
        raise InputError("--hosts", len(devices), problem, "Give all hosts as many")
    try:
        yield
    except tuple(_ERRORS.values()):  # all hosts have it, and say goodbye to each other
        raise
    # This host alone may have any other. It leaves without a goodbye, which would wait for all.
    except KeyboardInterrupt as stop:
        print(stopped_text(stop), file=sys.stderr, flush=True)
        os._exit(exit_status(stop))
    except Exception as error:
        if not isinstance(error, jax.errors.JaxRuntimeError):
            traceback.print_exc()
        print(
            f"error: host {jax.process_index()} of {jax.process_count()} cannot go on "
            f"({shortened(f'{type(error).__name__}: {error}')}). If another host has died, JAX "
            f"names it within {DEAD_AFTER_S} s. Start all hosts again with --resume.",
            file=sys.stderr,
            flush=True,
        )
        time.sleep(DEAD_AFTER_S + 5)  # then JAX has ended this process if another host has died
        os._exit(1)


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


def fetch(tree: Any) -> Any:
    """All arrays of a tree as those of NumPy, also where other hosts hold parts of them.

    All hosts call it, and each gets the whole.
    """

    def whole(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return multihost_utils.process_allgather(leaf, tiled=True)
        return jax.device_get(leaf)

    return jax.tree.map(whole, tree)


def on_first(work: Callable[[], _Value], restore: Callable[[Any], _Value] | None = None) -> _Value:
    """Work on the first host alone; its result or its error reaches all.

    Args:
      work: returns plain values and arrays, in lists and dicts with names.
      restore: makes any other result of its ``flax.serialization.to_state_dict``.
    """
    if jax.process_count() == 1:
        return work()
    value: Any
    value, error = _attempt(work) if is_first() else (None, None)
    message: Any = {
        "value": serialization.to_state_dict(value) if restore else value,
        "error": next((name for name, kind in _ERRORS.items() if isinstance(error, kind)), None),
        "text": str(error),
    }
    received = _from_first(serialization.msgpack_serialize(message))
    if error is not None:
        raise error
    if is_first():
        return value
    message = serialization.msgpack_restore(received)
    if message["error"] is not None:
        kind: Any = _ERRORS[message["error"]]
        error = kind("", "", "", "") if kind is InputError else kind()
        error.args = (message["text"],)
        raise error
    return restore(message["value"]) if restore else message["value"]


def _from_first(message: bytes) -> bytes:
    """The message of the first host, on every host."""
    data = np.frombuffer(message, np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(data.size)))
    padded = np.zeros(-(-length // _CHUNK_BYTES) * _CHUNK_BYTES, np.uint8)
    if is_first():
        padded[:length] = data
    return np.asarray(multihost_utils.broadcast_one_to_all(padded))[:length].tobytes()


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
