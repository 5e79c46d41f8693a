"""What a configuration can get wrong by itself, before anything is built from it."""

import difflib
from collections.abc import Mapping
from typing import Any

from collapipe_jax.errors import InputError, under_keys
from collapipe_jax.pipeline.execution import check_backend
from collapipe_jax.pipeline.micro_batches import check_micro_batches
from collapipe_jax.tasks.registry import TASKS

_LARGEST_INT = 2**31 - 1
_LARGEST_FLOAT = 1e30
_LARGEST_LEVEL_DB = 300.0
_LONGEST_WALK_M = 1e6

BOUNDS = ("one_step", "local_steps")

_POSITIVE = (
    "checkpoint_every_rounds",
    "control.control_unit_budget_j",
    "control.device_budget_j",
    "devices.es_flops_per_s",
    "devices.memory_share",
    "devices.utilisation",
    "dynamics.round_interval_s",
    "evaluation.beams",
    "evaluation.every_rounds",
    "learning.gradient_variance",
    "model.decoder_blocks",
    "model.encoder_blocks",
    "network.cell_radius_m",
    "network.cluster_radius_m",
    "network.clusters",
    "network.d2d_min_distance_m",
    "network.d2e_min_distance_m",
    "network.devices",
    "payload.activation_number_bits",
    "payload.parameter_number_bits",
    "payload.trained_fraction",
    "policy.micro_batches",
    "policy.partitions",
    "propagation.d2d_shadowing_distance_m",
    "propagation.d2e_shadowing_distance_m",
    "radio.d2d_bandwidth_hz",
    "radio.d2e_bandwidth_hz",
    "radio.harq_attempts",
    "radio.max_spectral_efficiency",
    "radio.transport_block_bits",
    "task.test_pairs",
    "task.validation_pairs",
    "training.batch",
    "training.client_learning_rate",
    "training.decoder_learning_rate",
    "training.local_steps",
    "training.rounds",
    "training.server_learning_rate",
)
_AT_MOST_ONE = (
    "control.certain_debt_weight",
    "control.hysteresis",
    "devices.memory_share",
    "devices.utilisation",
    "dynamics.availability",
    "dynamics.fading_correlation",
    "dynamics.velocity_correlation",
    "payload.trained_fraction",
    "radio.d2d_activity",
    "task.piece_dropout",
)
_NOT_ABOVE = {
    "network.d2e_min_distance_m": "network.cell_radius_m",
    "network.d2d_min_distance_m": "network.cluster_radius_m",
}


def typed_values(found: Mapping, expected: Mapping, prefix: str = "") -> dict[str, Any]:
    """The values of a configuration, under the keys and with the types of another.

    Returns:
      The values; an integer is made a float and a list a tuple where the other has one.

    Raises:
      InputError: on an unknown or missing key or a wrong type, with the nearest name.
    """
    for key in found:
        if key not in expected:
            near = difflib.get_close_matches(key, expected, n=1)
            remedy = f"Did you mean {prefix}{near[0]}" if near else "Remove it"
            raise InputError(prefix + key, found[key], "unknown key", remedy)
    values = {}
    for key, value in expected.items():
        name = prefix + key
        if key not in found:
            raise InputError(name, None, "the key is missing", f"Add it; its default is {value!r}")
        if isinstance(value, Mapping):
            if not isinstance(found[key], Mapping):
                raise InputError(name, found[key], "not a section", "Give its keys")
            values[key] = typed_values(found[key], value, name + ".")
        else:
            values[key] = _typed_value(name, found[key], value)
    return values


def _typed_value(name: str, found: Any, default: Any) -> Any:
    """A value as the type of its default; numbers within what single precision can hold."""
    kinds = {float: (int, float), tuple: (tuple, list)}
    kind = type(default)
    is_bool_mixed = isinstance(found, bool) != (kind is bool)
    if is_bool_mixed or not isinstance(found, kinds.get(kind, kind)):
        problem = f"not of type {kind.__name__}"
        raise InputError(name, found, problem, f"Give a value like {default!r}")
    if kind is tuple:
        return tuple(_typed_value(name, item, default[0]) for item in found)
    if kind in (int, float):
        _check_range(name, found, default)
    return kind(found)


def _check_range(name: str, number: float, default: float) -> None:
    is_level = name.endswith(("_db", "_dbm", "_dbm_per_hz"))
    largest = _LARGEST_INT if isinstance(default, int) else _LARGEST_FLOAT
    least, most = (-_LARGEST_LEVEL_DB, _LARGEST_LEVEL_DB) if is_level else (0, largest)
    if not least <= number <= most:  # so written, it refuses what is not a number
        problem = f"outside {least:g} to {most:g}"
        raise InputError(name, number, problem, f"Give a number like {default!r}")


def check_training(config: Mapping[str, Any]) -> None:
    """Check ranges, and sizes and counts that must fit each other.

    Args:
      config: nested, with the keys of the default configuration.

    Raises:
      InputError: naming the first that does not.
    """
    for name in _POSITIVE:
        if _value(config, name) <= 0:
            raise InputError(name, _value(config, name), "not positive", "Raise it")
    for name in _AT_MOST_ONE:
        if _value(config, name) > 1.0:
            raise InputError(name, _value(config, name), "above 1", "Give a number from 0 to 1")
    for name, limit in _NOT_ABOVE.items():
        if _value(config, name) > _value(config, limit):
            problem = f"above {limit} = {_value(config, limit):g}"
            raise InputError(name, _value(config, name), problem, "Lower it, or raise the radius")
    _check_walk(config["dynamics"])
    _check_task(config)
    _check_micro_batches(config["training"])
    _check_pipeline(config["pipeline"], config["training"]["batch"])
    _check_schedule(config["training"])
    _check_bound(config["learning"], config["training"]["local_steps"])
    ratio = config["control"]["divergence_ratio"]
    if ratio <= 1.0:
        raise InputError(
            "control.divergence_ratio",
            ratio,
            "at or under its floor 1, the divergence of a round without any loss",
            "Give a ratio above 1",
        )


def _value(config: Mapping[str, Any], name: str) -> Any:
    """The value under a dotted name."""
    for key in name.split("."):
        config = config[key]
    return config


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
    if not choices:
        raise InputError("training.micro_batch_choices", choices, "empty", "Give divisors of batch")
    for choice in choices:
        if choice <= 0 or batch % choice:
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
    if bound not in BOUNDS:
        raise InputError("learning.bound", bound, "unknown", f"Choose among: {', '.join(BOUNDS)}")
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
