"""Checks of a configuration before anything is built from it."""

from collections.abc import Mapping
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict

from collapipe_jax.core.errors import InputError, Known, Step, collect, nearest
from collapipe_jax.core.quantity import Quantity, check_product
from collapipe_jax.edge.policies.client_policies import find_cut
from collapipe_jax.edge.policies.registry import policy_entry
from collapipe_jax.edge.system import NetworksOnFile
from collapipe_jax.learning.federated.secure_mean import LEAST_ANSWERS
from collapipe_jax.learning.tasks.bleu_tokenizers import check_installed
from collapipe_jax.learning.tasks.registry import TASKS, find_task
from collapipe_jax.runs.config.default import KEYS, RENAMED
from collapipe_jax.runs.config.keys import Key
from collapipe_jax.runs.config.memory import check_network_memory
from collapipe_jax.runs.config.networks import follow_networks

REFERENCE = "docs/reference/configuration.md"
"""Page with all keys."""

_KEYS: dict[str, Any] = dict(flatten_dict(KEYS, sep="."))
_LONGEST_WALK_M = 1e6

_NOT_ABOVE = {
    "network.d2e_min_distance_m": "network.cell_radius_m",
    "network.d2d_min_distance_m": "network.cluster_radius_m",
}


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
) -> Known:
    """The values of a nested configuration that are fine, as ``"section.key"``.

    Steps report the others, and keys that contradict each other. A check is left out
    where one of its keys is wrong.
    """
    for name, value in (unknown or {}).items():
        with step():
            raise unknown_key(name, value)
    fine = _fine_values(found, step)
    with step():
        follow_networks(fine)
    with step():
        check_network_memory(fine, step)
    checks = _check_lengths, _check_task, _check_pipeline, _check_steps, _check_cut
    for check in (*checks, _check_rules, _check_adapters, _check_secure_aggregation):
        with step():
            check(fine, step)
    return fine


def check_needs(fine: Known, step: Step) -> None:
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
        networks = follow_networks(fine)
    return unflatten_dict(fine, sep="."), networks


def _fine_values(
    found: Mapping[str, Any], step: Step, keys: Mapping[str, Any] = KEYS, prefix: str = ""
) -> Known:
    """Right values of a section as ``"section.key"``; the others are reported."""
    fine = Known()
    for name in found:
        if name not in keys:
            with step():
                raise unknown_key(prefix + name, found[name])
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


def unknown_key(name: str, value: object) -> InputError:
    """The error of a key that does not exist, with its new or the nearest name."""
    if name in RENAMED:
        return InputError(name, value, "the key has another name now", f"Use {RENAMED[name]}")
    names = list(_KEYS)
    last = name.rpartition(".")[2]
    elsewhere = [other for other in names if other.rpartition(".")[2] == last]
    near = elsewhere[0] if elsewhere else nearest(name, names)
    remedy = f"Did you mean {near}" if near else f"All keys are in {REFERENCE}"
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


def _check_lengths(config: Known, step: Step) -> None:
    for name, limit in _NOT_ABOVE.items():
        with step():
            if config[name] > config[limit]:
                problem = f"above {limit} = {config[limit]:g}"
                raise InputError(name, config[name], problem, "Lower it, or raise the radius")
    speed_m_per_s = config["dynamics.speed_m_per_s"]
    way_m = speed_m_per_s * config["dynamics.round_interval_s"]
    if way_m > _LONGEST_WALK_M:  # single precision tells no place in a disc after it
        problem, remedy = f"a way of {way_m:g} m a round", "Lower it, or dynamics.round_interval_s"
        raise InputError("dynamics.speed_m_per_s", speed_m_per_s, problem, remedy)


def _check_task(config: Known, step: Step) -> None:
    kind = config["task.kind"]
    read_by = {name: other for other, task in reversed(TASKS.items()) for name in task.reads}
    for name in sorted(read_by.keys() - find_task(kind).reads):
        with step():
            default = _KEYS[name].default
            if (value := config[name]) != default:
                change = f"Give {default!r}" if default else "Clear it"
                remedy = f"{change}, or set task.kind to {read_by[name]}"
                raise InputError(name, value, f"{kind} does not read it", remedy)


def _check_pipeline(config: Known, step: Step) -> None:
    for name in ("training.micro_batch_choices", "pipeline.micro_batches"):
        with step():
            batch, values = config["training.batch"], config[name]
            for value in values if isinstance(values, tuple) else (values,):
                if value and batch % value:
                    problem = f"it does not divide the batch of {batch}"
                    raise InputError(name, value, problem, "Give a divisor of training.batch")
    count, backend = config["pipeline.micro_batches"], config["pipeline.backend"]
    with step():
        if count != 1 and backend == "sequential":
            problem = "the sequential backend does not read it"
            raise InputError("pipeline.micro_batches", count, problem, "Give 1, or another backend")
        if not count and backend == "vmapped":
            problem = "the backend vmapped has one number for all rounds"
            raise InputError("pipeline.micro_batches", count, problem, "Give 1 or more, or sharded")
    capacity, blocks = config["pipeline.capacity"], config["model.encoder_blocks"]
    with step():
        room = capacity * config["network.devices"]
        if 0 < room < blocks:
            problem = f"the devices of a cluster then hold {room} of {blocks} blocks"
            remedy = "Raise it or network.devices, or give 0 for all blocks"
            raise InputError("pipeline.capacity", capacity, problem, remedy)
    if config["pipeline.schedule"] == "1f1b":
        if backend == "vmapped":
            problem, remedy = "the backend vmapped executes gpipe", "Give gpipe, or another backend"
            raise InputError("pipeline.schedule", "1f1b", problem, remedy)
        if not count:
            problem = "the buffers of 1f1b are those of one number"
            raise InputError("pipeline.micro_batches", count, problem, "Give 1 or more, or gpipe")


def _check_cut(config: Known, step: Step) -> None:
    del step
    find_cut(config["policy.cut"], config["model.encoder_blocks"])


def _check_rules(config: Known, step: Step) -> None:
    """Refuse rules of training that nothing reads, or that contradict each other."""
    with step():
        readers = config["training.client_optimizer"], config["training.decoder_optimizer"]
        if (decay := config["training.weight_decay"]) and "adamw" not in readers:
            problem, remedy = "neither clients nor decoder have adamw, which reads it", "Give 0"
            remedy += ", or set training.client_optimizer to adamw"
            raise InputError("training.weight_decay", decay, problem, remedy)
    with step():
        weight, variates = config["training.proximal_weight"], config["training.control_variates"]
        if weight and variates:
            problem = "control variates correct the drift already that it holds back"
            remedy = "Give 0, or set training.control_variates to False"
            raise InputError("training.proximal_weight", weight, problem, remedy)
    with step():
        noise, policy = config["training.activation_noise"], config["policy.name"]
        if noise and policy_entry(policy).by_clients:
            problem = f"{policy} is no pipeline, whose activations it is for"
            raise InputError("training.activation_noise", noise, problem, "Give 0")
    with step():
        kind = config["task.kind"]
        if config["evaluation.by_cluster"] and not find_task(kind).scores_samples:
            problem = f"the score of {kind} is no mean over samples, which have shares by cluster"
            raise InputError("evaluation.by_cluster", True, problem, "Give False")
    with step():
        check_installed("evaluation.bleu_tokenizer", config["evaluation.bleu_tokenizer"])


def _check_adapters(config: Known, step: Step) -> None:
    fraction = config["payload.trained_fraction"]
    with step():
        if config["model.adapter_rank"] and fraction < 1.0:
            problem = "the adapters themselves say what is trained"
            raise InputError("payload.trained_fraction", fraction, problem, "Give 1")


def _check_secure_aggregation(config: Known, step: Step) -> None:
    """Refuse what secure aggregation cannot sum, and rounds of a single party."""
    if not config["secure_aggregation.enabled"]:
        return
    others = {"training.client_moments": ("average", "keep or reset")}
    others |= {"training.control_variates": (True, "False")}
    for name, (value, remedy) in others.items():
        with step():
            if config[name] == value:
                problem = "secure aggregation sums updates and counts of rows alone"
                remedy = f"Give {remedy}, or set secure_aggregation.enabled to False"
                raise InputError(name, value, problem, remedy)
    with step():
        entry, parties = policy_entry(config["policy.name"]), config["network.clusters"]
        if entry.by_clients and not (entry.by_control_units or entry.averages_in_clusters):
            parties *= config["network.devices"]
        if parties < LEAST_ANSWERS:
            problem = "the sum of a single party is its update"
            remedy = "Give 2 or more, or set secure_aggregation.enabled to False"
            raise InputError("network.clusters", config["network.clusters"], problem, remedy)


def _check_steps(config: Known, step: Step) -> None:
    local_steps = config["training.local_steps"]
    for name in ("training.batch", "training.rounds"):
        with step():
            names = name, "training.local_steps"
            check_product({each: config[each] for each in names})
    with step():
        warmup_steps, steps = (
            config["training.warmup_steps"],
            config["training.rounds"] * local_steps,
        )
        if config["training.schedule"] == "cosine" and warmup_steps >= steps:
            problem = f"no less than the {steps} steps of the run (rounds times local steps)"
            remedy = f"Lower it below {steps}"
            raise InputError("training.warmup_steps", warmup_steps, problem, remedy)
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
