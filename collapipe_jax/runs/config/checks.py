"""Checks of a configuration before anything is built from it."""

import functools
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import unflatten_dict
from ml_collections import ConfigDict

from collapipe_jax.core.batch_axis import stack
from collapipe_jax.core.errors import InputError, Step, ValidValues, collect, nearest, require_kind
from collapipe_jax.core.quantity import Quantity
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.network.channel import Radio
from collapipe_jax.edge.network.devices import Compute
from collapipe_jax.edge.system import NetworksOnFile
from collapipe_jax.runs.config.default import DEFAULTS, KEYS, RENAMED, Config
from collapipe_jax.runs.config.keys import Key
from collapipe_jax.runs.config.rules import check_rules, common_rules
from collapipe_jax.runs.documents import read_network

_REFERENCE = "docs/reference/configuration.md"
"""Page with all keys."""


class CheckedConfig(NamedTuple):
    """A configuration that was judged: all that is built from one reads this."""

    config: Config  # values with the types of the defaults, and what follows from networks on file
    networks: NetworksOnFile | None

    @classmethod
    def from_values(cls, values: ValidValues, networks: NetworksOnFile | None) -> "CheckedConfig":
        """The configuration of values by ``"section.key"`` of which none is wrong."""
        return cls(ConfigDict(unflatten_dict(values, sep=".")), networks)


def check_config(config: ConfigDict, unknown: Mapping[str, Any] | None = None) -> ConfigDict:
    """Check all of a configuration that needs neither a corpus nor a network.

    Args:
      config: the configuration.
      unknown: keys that it has no place for, reported with what else is wrong.

    Returns:
      The configuration with the types of the defaults, and what follows from networks on file.

    Raises:
      InputError: naming the key that is wrong, or all of them.
    """
    with collect() as step:
        values, networks = check_values(config, step, unknown)
        check_rules(common_rules(), values, step)
    return CheckedConfig.from_values(values, networks).config


def typed_config(config: Config) -> CheckedConfig:
    """A configuration with the types of the defaults, without the rules across its keys.

    Raises:
      InputError: on an unknown or missing key, a wrong type or a value out of bounds; or on all.
    """
    with collect() as step:
        values, networks = check_values(config, step)
    return CheckedConfig.from_values(values, networks)


def check_values(
    config: Config, step: Step, unknown: Mapping[str, Any] | None = None
) -> tuple[ValidValues, NetworksOnFile | None]:
    """Right values of a configuration, as ``"section.key"``, and networks on file.

    Steps report the others. A check is left out where one of its keys is wrong.
    """
    require_kind("config", config, ConfigDict, "Give what read_config returns")
    for name, value in (unknown or {}).items():
        with step():
            raise _unknown_key(name, value)
    fine, networks = _fine_values(config.to_dict(), step), None
    with step():
        networks = _follow_networks(fine)
    return fine, networks


def sections_of(fine: ValidValues) -> tuple[ValidValues, ValidValues]:
    """The right values by section; and of these the sections without a wrong one."""
    nested = unflatten_dict(fine, sep=".")
    partial = ValidValues(
        {n: ValidValues(part) if isinstance(part, dict) else part for n, part in nested.items()}
    )
    sizes = {name: len(keys) for name, keys in KEYS.items() if not isinstance(keys, Key)}
    wrong = {name for name, size in sizes.items() if len(nested.get(name, ())) < size}
    return partial, ValidValues({name: part for name, part in partial.items() if name not in wrong})


def _fine_values(
    found: Mapping[str, Any], step: Step, keys: Mapping[str, Any] = KEYS, prefix: str = ""
) -> ValidValues:
    """Right values of a section as ``"section.key"``; the others are reported."""
    fine = ValidValues()
    for name in found:
        if name not in keys:
            with step():
                raise _unknown_key(prefix + name, found[name])
    for name, key in keys.items():
        full = prefix + name
        with step():
            if name not in found:
                hint = f"; its default is {key.default!r}" if isinstance(key, Key) else ""
                raise InputError(full, None, "the key is missing", f"Add it{hint}")
            if isinstance(key, Key):
                fine[full] = _typed_value(full, found[name], key.default, key.quantity)
            elif isinstance(found[name], Mapping):
                fine |= _fine_values(found[name], step, key, f"{full}.")
            else:
                raise InputError(full, found[name], "not a section", "Give its keys")
    return fine


def _unknown_key(name: str, value: object) -> InputError:
    """The error of a key that does not exist, with its new or the nearest name."""
    if name in RENAMED:
        return InputError(name, value, "the key has another name now", f"Use {RENAMED[name]}")
    names = list(DEFAULTS)
    last = name.rpartition(".")[2]
    elsewhere = [other for other in names if other.rpartition(".")[2] == last]
    near = elsewhere[0] if elsewhere else nearest(name, names)
    remedy = f"Did you mean {near}?" if near else f"All keys are in {_REFERENCE}"
    return InputError(name, value, "unknown key", remedy)


def _typed_value(name: str, found: Any, default: Any, quantity: Quantity) -> Any:
    """A value as the type of its default, within its bounds."""
    kinds = {float: (int, float), tuple: (tuple, list)}
    kind = type(default)
    is_bool_mixed = isinstance(found, bool) != (kind is bool)
    if is_bool_mixed or not isinstance(found, kinds.get(kind, kind)):
        problem = f"not of type {kind.__name__}"
        raise InputError(name, found, problem, f"Give a value like {default!r}")
    if kind is tuple:
        if not found:
            problem = f"empty ({quantity.meaning})"
            raise InputError(name, found, problem, f"Give a value like {default!r}")
        return tuple(_typed_value(name, item, default[0], quantity) for item in found)
    if kind in (int, float) or quantity.choices:
        quantity.check(name, found, default)
    return kind(found)


# Networks on file that a configuration names, in place of drawn ones.

_KEY = "network.file"
FOLLOWING = frozenset(f"network.{name}" for name in ("clusters", "devices", "file_digest"))
"""Keys that follow from networks on file."""


def _follow_networks(fine: ValidValues) -> NetworksOnFile | None:
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


def _read(file: Path, devices: int = 0) -> RoundProblem:
    try:
        return read_network(file, devices)
    except InputError as error:
        problem = f"{error.key} = {error.value!r}: {error.problem}"
        raise InputError(_KEY, str(file), problem, error.remedy) from None
