"""Checks of a configuration before anything is built from it."""

import functools
import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import unflatten_dict
from ml_collections import ConfigDict

from collapipe_jax.core.batch_axis import stack
from collapipe_jax.core.errors import InputError, Step, ValidValues, collect, nearest
from collapipe_jax.core.quantity import Quantity, check_product
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.network.channel import Radio
from collapipe_jax.edge.network.devices import Compute
from collapipe_jax.edge.policies.client_policies import find_count, find_cut
from collapipe_jax.edge.system import NetworksOnFile
from collapipe_jax.learning.models.counts import NUMBER_BYTES, block_parameters
from collapipe_jax.learning.tasks.registry import find_task
from collapipe_jax.learning.tasks.scores import check_installed
from collapipe_jax.runs.config.default import DEFAULTS, KEYS, RENAMED
from collapipe_jax.runs.config.keys import Key
from collapipe_jax.runs.config.rules import (
    NETWORK_RULES,
    PIPELINE_RULES,
    ROW_RULES,
    SECURE_RULES,
    TRAINING_RULES,
    check_rules,
    task_rules,
)
from collapipe_jax.runs.documents import read_network

_REFERENCE = "docs/reference/configuration.md"
"""Page with all keys."""


def check_config(config: ConfigDict, unknown: Mapping[str, Any] | None = None) -> ConfigDict:
    """Check all of a configuration that needs neither a corpus nor a network.

    Args:
      config: the configuration.
      unknown: keys that it has no place for, reported with what else is wrong.

    Returns:
      The configuration as :func:`typed_values` has it.

    Raises:
      InputError: naming the key that is wrong, or all of them.
    """
    with collect() as step:
        values = check_values(config.to_dict(), step, unknown)
    return ConfigDict(unflatten_dict(values, sep="."))


def check_values(
    found: Mapping[str, Any], step: Step, unknown: Mapping[str, Any] | None = None
) -> ValidValues:
    """The values of a nested configuration that are fine, as ``"section.key"``.

    Steps report the others, and keys that contradict each other. A check is left out
    where one of its keys is wrong.
    """
    for name, value in (unknown or {}).items():
        with step():
            raise _unknown_key(name, value)
    fine = _fine_values(found, step)
    with step():
        _follow_networks(fine)
    with step():
        _check_sizes(fine, step)
    rules = NETWORK_RULES, task_rules(), PIPELINE_RULES, TRAINING_RULES, SECURE_RULES, ROW_RULES
    for group in rules:
        check_rules(group, fine, step)
    return fine


def check_needs(fine: ValidValues, step: Step) -> None:
    """Report keys that training needs and that are empty; take them out of the fine ones."""
    kind = fine["task.kind"]
    for name, remedy in find_task(kind).needs.items():
        with step():
            if not (value := fine[name]):
                del fine[name]
                raise InputError(name, value, f"{kind} needs it", remedy)


def typed_values(found: Mapping[str, Any]) -> tuple[dict[str, Any], NetworksOnFile | None]:
    """The values of a configuration with the types of the defaults, each within its bounds.

    They have what follows from networks on file, which come with them.

    Raises:
      InputError: on an unknown or missing key, a wrong type or a value out of bounds; or on all.
    """
    with collect() as step:
        fine = _fine_values(found, step)
        networks = _follow_networks(fine)
    return unflatten_dict(fine, sep="."), networks


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
    remedy = f"Did you mean {near}" if near else f"All keys are in {_REFERENCE}"
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


def _check_sizes(config: ValidValues, step: Step) -> None:
    """Products of sizes have room in memory and in 32 bits, and a cut is of the encoder."""
    with step():
        _check_network_memory(config, step)
    for name in ("training.batch", "training.rounds"):
        with step():
            names = name, "training.local_steps"
            check_product({each: config[each] for each in names})
    with step():
        find_cut(config["policy.cut"], config["model.encoder_blocks"])
    with step():
        samples = range(1, config["training.batch"] + 1)
        find_count("policy.accumulation", config["policy.accumulation"], samples)
    with step():
        samples = range(1, config["training.batch"] + 1)
        name = "policy.client_micro_batches"
        find_count(name, config[name], samples)
    with step():
        devices = range(1, config["network.devices"] + 1)
        find_count("policy.clients", config["policy.clients"], devices)
    with step():
        check_installed("evaluation.bleu_tokenizer", config["evaluation.bleu_tokenizer"])


_PAIR_BYTES = 200  # of a synthetic pair of sentences, as Python holds it


def check_array(what: str, sizes: Mapping[str, int], entries: int | None = None) -> None:
    """Refuse an array that is larger than the memory of this machine.

    Args:
      what: what it holds.
      sizes: what its size depends on, by key; the largest one is named.
      entries: of 4 bytes each; the product of the sizes by default.

    Raises:
      InputError: naming the key of the largest size.
    """
    needed = NUMBER_BYTES * (math.prod(sizes.values()) if entries is None else entries)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        key = max(sizes, key=lambda name: sizes[name])
        problem = f"{what} would take {needed / 2**30:.3g} GiB, of {there / 2**30:.3g} there are"
        raise InputError(key, sizes[key], problem, "Lower it")


def _check_network_memory(fine: ValidValues, step: Step) -> None:
    """Refuse networks whose gains, or whose partitions, have no room."""
    sizes = {name: fine[name] for name in ("network.clusters", "network.devices")}
    nodes = fine["network.clusters"] * (fine["network.devices"] + 1)
    with step():
        check_array("gains between all nodes", sizes, nodes**2)
    with step():
        sizes |= {"model.encoder_blocks": fine["model.encoder_blocks"]}
        check_array("partitions of all clusters", sizes)


def check_training_memory(fine: ValidValues, step: Step) -> None:
    """Refuse training whose texts of a round, or whose model, have no room."""
    with step():
        texts = ("training.local_steps", "training.batch", "network.clusters", "task.source_length")
        check_array("the texts of a round", {name: fine[name] for name in texts})
    with step():
        names = ("model.width", "model.feed_forward_width", "model.encoder_blocks")
        sizes = {name: fine[name] for name in names}
        width, inner, blocks = sizes.values()
        check_array("the encoder", sizes, blocks * block_parameters(width, inner))
    with step():
        rows = {name: fine[name] for name in ("task.vocabulary_size", "model.ngram_buckets")}
        check_array("the table of tokens", rows, sum(rows.values()) * fine["model.width"])
    with step():
        if fine["task.corpus"] == "synthetic" and not fine["task.train"]:
            pairs = {"task.pairs": fine["task.pairs"]}
            check_array("the corpus", pairs, pairs["task.pairs"] * _PAIR_BYTES // NUMBER_BYTES)


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
