"""Checks of a configuration before anything is built from it."""

import difflib
from collections.abc import Mapping
from typing import Any

from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from collapipe_jax.config.default import KEYS, RENAMED
from collapipe_jax.config.keys import Key
from collapipe_jax.errors import InputError, under_keys
from collapipe_jax.pipeline.execution import check_backend
from collapipe_jax.pipeline.slots import check_micro_batches
from collapipe_jax.quantity import Quantity
from collapipe_jax.tasks.registry import TASKS

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
      The configuration; an integer is made a float and a list a tuple where the default is one.

    Raises:
      InputError: naming the first key that is wrong.
    """
    values = typed_values(config.to_dict())
    for name, limit in _NOT_ABOVE.items():
        if _value(values, name) > _value(values, limit):
            problem = f"above {limit} = {_value(values, limit):g}"
            raise InputError(name, _value(values, name), problem, "Lower it, or raise the radius")
    _check_walk(values["dynamics"])
    _check_task(values)
    _check_micro_batches(values["training"])
    _check_pipeline(values["pipeline"], values["training"]["batch"])
    _check_schedule(values["training"])
    _check_bound(values["learning"], values["training"]["local_steps"])
    return ConfigDict(values)


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
    names = flatten_dict(KEYS, sep=".")
    section, _, last = name.rpartition(".")
    own = [other for other in names if other.rpartition(".")[0] == section]
    near = (
        difflib.get_close_matches(name, own, n=1)
        or [other for other in names if other.rpartition(".")[2] == last]
        or difflib.get_close_matches(name, names, n=1)
    )
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


def _value(config: Mapping[str, Any], name: str) -> Any:
    section, _, key = name.partition(".")
    return config[section][key]


def _check_walk(dynamics: Mapping[str, Any]) -> None:
    speed_m_per_s = dynamics["speed_m_per_s"]
    way_m = speed_m_per_s * dynamics["round_interval_s"]
    if way_m > _LONGEST_WALK_M:  # single precision tells no place in a disc after it
        raise InputError(
            "dynamics.speed_m_per_s",
            speed_m_per_s,
            f"a way of {way_m:g} m from round to round",
            "Lower it, or dynamics.round_interval_s",
        )


def _check_task(config: Mapping[str, Any]) -> None:
    kind = config["task"]["kind"]
    if kind not in TASKS:
        raise InputError("task.kind", kind, "unknown", f"Choose among: {', '.join(TASKS)}")
    read_by = {name: other for other, task in reversed(TASKS.items()) for name in task.reads}
    for name in sorted(read_by.keys() - TASKS[kind].reads):
        if value := _value(config, name):
            remedy = f"Clear it, or set task.kind to {read_by[name]}"
            raise InputError(name, value, f"{kind} does not read it", remedy)
    for name, remedy in TASKS[kind].needs.items():
        if not (value := _value(config, name)):
            raise InputError(name, value, f"{kind} needs it", remedy)


def _check_micro_batches(training: Mapping[str, Any]) -> None:
    batch, choices = training["batch"], training["micro_batch_choices"]
    for choice in choices:
        if batch % choice:
            raise InputError(
                "training.micro_batch_choices",
                choice,
                f"the batch of {batch} is not divisible by it",
                "Give divisors of training.batch",
            )


def _check_pipeline(pipeline: Mapping[str, Any], batch: int) -> None:
    backend, count = pipeline["backend"], pipeline["micro_batches"]
    check_backend(backend)
    with under_keys({"micro_batches": "pipeline.micro_batches"}):
        check_micro_batches(batch, count)
    if count > 1 and backend == "sequential":
        problem = "the sequential backend does not read it"
        raise InputError("pipeline.micro_batches", count, problem, "Give 1, or another backend")


def _check_schedule(training: Mapping[str, Any]) -> None:
    steps = training["rounds"] * training["local_steps"]
    if training["schedule"] == "cosine" and training["warmup_steps"] >= steps:
        raise InputError(
            "training.warmup_steps",
            training["warmup_steps"],
            f"no less than the {steps} steps of the run (rounds times local steps)",
            f"Lower it under {steps}",
        )


def _check_bound(learning: Mapping[str, Any], local_steps: int) -> None:
    bound, step = learning["bound"], learning["step_smoothness"]
    if bound == "one_step":
        if step:
            problem = "the bound for one step does not read it"
            remedy = "Give 0, or set learning.bound to local_steps"
            raise InputError("learning.step_smoothness", step, problem, remedy)
        return
    longest = 1.0 / (4.0 * local_steps)
    if not 0.0 < step <= longest:
        problem = f"the bound for {local_steps} local steps holds up to {longest:g}"
        remedy = "Give the rate times the smoothness that a run logs"
        raise InputError("learning.step_smoothness", step, problem, remedy)
