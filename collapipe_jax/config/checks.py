"""Checks of a configuration before anything is built from it."""

import difflib
from collections.abc import Mapping
from typing import Any

from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from collapipe_jax.config.default import KEYS, RENAMED, Key
from collapipe_jax.config.networks import follow_networks
from collapipe_jax.errors import InputError
from collapipe_jax.quantity import Quantity
from collapipe_jax.tasks.registry import TASKS, find_task

REFERENCE = "docs/reference/configuration.md"
"""Page with all keys."""

_LONGEST_WALK_M = 1e6

_NOT_ABOVE = {
    "network.d2e_min_distance_m": "network.cell_radius_m",
    "network.d2d_min_distance_m": "network.cluster_radius_m",
}


def check_config(config: ConfigDict) -> ConfigDict:
    """Check all of a configuration that needs neither a corpus nor a network.

    Returns:
      The configuration as :func:`complete_values` has it.

    Raises:
      InputError: naming the first key that is wrong.
    """
    values = complete_values(config.to_dict())
    flat = flatten_dict(values, sep=".")
    _check_lengths(flat)
    _check_task(flat)
    _check_micro_batches(flat)
    _check_steps(flat)
    return ConfigDict(values)


def complete_values(found: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a configuration, with what follows from networks on file.

    An integer is made a float and a list a tuple where the default is one.

    Raises:
      InputError: naming the first key that is wrong.
    """
    values = typed_values(found)
    follow_networks(values)
    return values


def typed_values(
    found: Mapping[str, Any], keys: Mapping[str, Any] = KEYS, prefix: str = ""
) -> dict[str, Any]:
    """The values of a section with the types of the defaults, each within its bounds.

    Raises:
      InputError: on an unknown or missing key, a wrong type or a value out of bounds.
    """
    for name in found:
        if name not in keys:
            raise unknown_key(prefix + name, found[name])
    values = {}
    for name, key in keys.items():
        full = prefix + name
        if name not in found:
            hint = f"; its default is {key.default!r}" if isinstance(key, Key) else ""
            raise InputError(full, None, "the key is missing", f"Add it{hint}")
        if isinstance(key, Key):
            values[name] = _typed_value(full, found[name], key.default, key.quantity)
        elif isinstance(found[name], Mapping):
            values[name] = typed_values(found[name], key, f"{full}.")
        else:
            raise InputError(full, found[name], "not a section", "Give its keys")
    return values


def unknown_key(name: str, value: object) -> InputError:
    """The error of a key that does not exist, with its new or the nearest name."""
    if name in RENAMED:
        return InputError(name, value, "the key has another name now", f"Use {RENAMED[name]}")
    names = list(flatten_dict(KEYS, sep="."))
    last = name.rpartition(".")[2]
    elsewhere = [other for other in names if other.rpartition(".")[2] == last]
    near = elsewhere or difflib.get_close_matches(name, names, n=1)
    remedy = f"Did you mean {near[0]}" if near else f"All keys are in {REFERENCE}"
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


def _check_lengths(config: Mapping[str, Any]) -> None:
    for name, limit in _NOT_ABOVE.items():
        if config[name] > config[limit]:
            problem = f"above {limit} = {config[limit]:g}"
            raise InputError(name, config[name], problem, "Lower it, or raise the radius")
    speed_m_per_s = config["dynamics.speed_m_per_s"]
    way_m = speed_m_per_s * config["dynamics.round_interval_s"]
    if way_m > _LONGEST_WALK_M:  # single precision tells no place in a disc after it
        problem, remedy = f"a way of {way_m:g} m a round", "Lower it, or dynamics.round_interval_s"
        raise InputError("dynamics.speed_m_per_s", speed_m_per_s, problem, remedy)


def _check_task(config: Mapping[str, Any]) -> None:
    kind = config["task.kind"]
    read_by = {name: other for other, task in reversed(TASKS.items()) for name in task.reads}
    for name in sorted(read_by.keys() - find_task(kind).reads):
        if value := config[name]:
            remedy = f"Clear it, or set task.kind to {read_by[name]}"
            raise InputError(name, value, f"{kind} does not read it", remedy)
    for name, remedy in find_task(kind).needs.items():
        if not (value := config[name]):
            raise InputError(name, value, f"{kind} needs it", remedy)


def _check_micro_batches(config: Mapping[str, Any]) -> None:
    batch, count = config["training.batch"], config["pipeline.micro_batches"]
    counts = {"training.micro_batch_choices": config["training.micro_batch_choices"]}
    for name, values in (counts | {"pipeline.micro_batches": (count,)}).items():
        for value in values:
            if batch % value:
                problem = f"it does not divide the batch of {batch}"
                raise InputError(name, value, problem, "Give a divisor of training.batch")
    if count > 1 and config["pipeline.backend"] == "sequential":
        problem = "the sequential backend does not read it"
        raise InputError("pipeline.micro_batches", count, problem, "Give 1, or another backend")


def _check_steps(config: Mapping[str, Any]) -> None:
    local_steps, warmup_steps = config["training.local_steps"], config["training.warmup_steps"]
    steps = config["training.rounds"] * local_steps
    if config["training.schedule"] == "cosine" and warmup_steps >= steps:
        problem = f"no less than the {steps} steps of the run (rounds times local steps)"
        raise InputError("training.warmup_steps", warmup_steps, problem, f"Lower it under {steps}")
    size, longest = config["learning.step_smoothness"], 1.0 / (4.0 * local_steps)
    if config["learning.bound"] == "one_step":
        problem = "the bound for one step does not read it"
        remedy, is_wrong = "Give 0, or set learning.bound to local_steps", size > 0.0
    else:
        problem = f"the bound for {local_steps} local steps holds up to {longest:g}"
        remedy = "Give the rate times the smoothness that a run logs"
        is_wrong = not 0.0 < size <= longest
    if is_wrong:
        raise InputError("learning.step_smoothness", size, problem, remedy)
