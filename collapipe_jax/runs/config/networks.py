"""Networks on file that a configuration names, in place of drawn ones."""

import functools
import hashlib
import os
from pathlib import Path

import numpy as np

from collapipe_jax.core.batch_axis import stack
from collapipe_jax.core.errors import InputError, Known
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.network.channel import Radio
from collapipe_jax.edge.network.devices import Compute
from collapipe_jax.edge.system import NetworksOnFile
from collapipe_jax.runs.documents import read_network

_KEY = "network.file"
FOLLOWING = frozenset(f"network.{name}" for name in ("clusters", "devices", "file_digest"))
"""Keys that follow from networks on file."""


def follow_networks(fine: Known) -> NetworksOnFile | None:
    """Networks on file, if any; set what follows from them in values by ``"section.key"``.

    Raises:
      InputError: if they cannot be read, or devices are to walk, whose positions no file has.
    """
    fine["network.file_digest"] = ""
    if not (place := fine[_KEY]):
        return None
    if speed := fine["dynamics.speed_m_per_s"]:
        problem, remedy = f"no positions are in {_KEY}", f"Give 0, or clear {_KEY}"
        raise InputError("dynamics.speed_m_per_s", speed, problem, remedy)
    networks, fine["network.file_digest"] = read_networks(place)
    _, clusters, devices = networks.compute.memory_bytes.shape
    fine |= {"network.clusters": clusters, "network.devices": devices}
    return networks


def read_networks(place: str) -> tuple[NetworksOnFile, str]:
    """Read a network, or all of a folder in the order of their names, and their digest.

    Clusters are padded to the devices of the largest one, see :func:`.read_network`.

    Raises:
      InputError: if there is none, one is wrong, or they differ in the number of clusters.
    """
    path = Path(place)
    files = sorted(path.glob("*.json")) if os.path.isdir(path) else [path]
    if not files:
        problem = "a folder without *.json"
        raise InputError(_KEY, place, problem, "Put networks there, as collapipe sample writes")
    try:
        digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    except (OSError, ValueError) as error:  # ValueError: no name of a file
        problem = getattr(error, "strerror", None) or "unreadable"
        remedy = "Name a network, or a folder of them"
        raise InputError(_KEY, place, problem, remedy) from None
    # Of one file this is what sha256sum shows.
    joined = hashlib.sha256("".join(digests).encode()).hexdigest()
    digest = joined if len(digests) > 1 else digests[0]
    return _read_all(tuple(files), digest), digest


@functools.lru_cache(maxsize=8)
def _read_all(files: tuple[Path, ...], digest: str) -> NetworksOnFile:
    """Networks of files that have this digest."""
    problems = [_read(file) for file in files]
    for file, problem in zip(files, problems, strict=True):
        if problem.clusters != problems[0].clusters:
            why = f"it has {problem.clusters} clusters, and {files[0]} has {problems[0].clusters}"
            raise InputError(_KEY, str(file), why, "Keep networks of one number in a folder")
    most = max(problem.devices for problem in problems)
    for place, problem in enumerate(problems):
        if problem.devices < most:
            problems[place] = _read(files[place], most)
    networks = [NetworksOnFile(radio=_radio(each), compute=_compute(each)) for each in problems]
    if any(each.compute.receive_power_w is not None for each in networks):
        networks = [_with_receive_power(each) for each in networks]
    return stack(networks)


def _radio(problem: RoundProblem) -> Radio:
    """The radio of a document, with its gains inside clusters also among those between nodes.

    Fading reads them there; in a document these entries mean nothing.
    """
    radio, own = problem.radio, np.arange(problem.clusters)
    return radio.replace(cross_gain=radio.cross_gain.at[own, :, own, :].set(radio.d2d_gain))


def _compute(problem: RoundProblem) -> Compute:
    """Devices of a document; a control unit without a limit of memory has an infinite one."""
    compute = problem.compute
    if compute.control_unit_memory_bytes is not None:
        return compute
    unlimited = np.full(problem.clusters, np.inf, np.float32)
    return compute.replace(control_unit_memory_bytes=unlimited)


def _with_receive_power(network: NetworksOnFile) -> NetworksOnFile:
    """A network whose document may lack a receive power, 0 then."""
    compute = network.compute
    if compute.receive_power_w is not None:
        return network
    return network.replace(compute=compute.replace(receive_power_w=np.zeros((), np.float32)))


def _read(file: Path, devices: int = 0) -> RoundProblem:
    try:
        return read_network(file, devices)
    except InputError as error:
        problem = f"{error.key} = {error.value!r}: {error.problem}"
        raise InputError(_KEY, str(file), problem, error.remedy) from None
