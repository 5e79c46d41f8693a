"""One network on file: a round's problem, a decision and its cost as JSON documents.

The formats are described in docs/file-formats.md. Reading checks every key, shape and
number, in double precision, before anything is computed.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.divergence import Learning
from collapipe_jax.cost.problem import Control, RoundProblem
from collapipe_jax.cost.round_cost import RoundCost
from collapipe_jax.cost.workload import Workload
from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import write_text
from collapipe_jax.network.channel import Radio
from collapipe_jax.network.devices import Compute

NETWORK_FORMAT = "collapipe-network/1"
DECISION_FORMAT = "collapipe-decision/1"
COST_FORMAT = "collapipe-cost/1"


class Entry(NamedTuple):
    """What a key may hold.

    Attributes:
      shape: letters of its axes, such as "NK"; "J" stands for ``K + 1`` nodes and "*" for
        a list of any length from 1 on.
      positive: whether 0 is refused.
      integer: whether the numbers must be whole.
    """

    shape: str = ""
    positive: bool = True
    integer: bool = False


_LARGEST_INT = 2**31 - 1
_LARGEST_NUMBER = 1e36  # beyond it single precision ends

_ZERO_ALLOWED = Entry(positive=False)

_NETWORK: dict[str, dict[str, Entry]] = {
    "workload": {
        "blocks": Entry(integer=True),
        "batch": Entry(integer=True),
        "local_steps": Entry(integer=True),
        "micro_batch_choices": Entry("*", integer=True),
        "block_flops": Entry(),
        "embed_flops": _ZERO_ALLOWED,
        "decoder_flops": _ZERO_ALLOWED,
        "backward_ratio": _ZERO_ALLOWED,
        "activation_bits": Entry(),
        "target_bits": _ZERO_ALLOWED,
        "block_param_bits": _ZERO_ALLOWED,
        "embedding_param_bits": _ZERO_ALLOWED,
        "block_static_bytes": Entry(),
        "block_kept_bytes": _ZERO_ALLOWED,
        "block_working_bytes": _ZERO_ALLOWED,
    },
    "radio": {
        "d2e_bandwidth_hz": Entry(),
        "d2d_bandwidth_hz": Entry(),
        "bs_noise_w_per_hz": Entry(),
        "node_noise_w_per_hz": Entry(),
        "d2e_interference_w": _ZERO_ALLOWED,
        "d2d_activity": _ZERO_ALLOWED,
        "snr_gap": Entry(),
        "max_spectral_efficiency": Entry(),
        "bs_power_w": _ZERO_ALLOWED,
        "d2e_power_max_w": Entry("N", positive=False),
        "d2d_power_max_w": Entry("NJ", positive=False),
        "d2e_gain": Entry("NJ", positive=False),
        "d2d_gain": Entry("NJJ", positive=False),
        "cross_gain": Entry("NJNJ", positive=False),
        "outage_threshold": _ZERO_ALLOWED,
        "harq_attempts": Entry(integer=True),
        "transport_block_bits": Entry(),
    },
    "compute": {
        "flops_per_s": Entry("NJ"),
        "energy_coefficient": Entry("NJ", positive=False),
        "memory_bytes": Entry("NK", positive=False),
        "es_flops_per_s": Entry(),
        "block_overhead_s": _ZERO_ALLOWED,
        "link_overhead_s": _ZERO_ALLOWED,
    },
    "learning": {
        "cluster_weight": Entry("N", positive=False),
        "gradient_variance": _ZERO_ALLOWED,
        "gradient_heterogeneity": _ZERO_ALLOWED,
    },
    "control": {
        "v": _ZERO_ALLOWED,
        "reference_latency_s": Entry(),
        "energy_budget_j": Entry("NJ"),
        "energy_queue": Entry("NJ", positive=False),
        "divergence_target": Entry(),
        "divergence_queue": _ZERO_ALLOWED,
    },
}

_DECISION: dict[str, Entry] = {
    "segments": Entry("NK", positive=False, integer=True),
    "micro_batches": Entry("N", integer=True),
    "d2d_share": Entry("NJ", positive=False),
    "d2d_power_w": Entry("NJ", positive=False),
    "d2e_share": Entry("N", positive=False),
    "d2e_power_w": Entry("N", positive=False),
}


def read_network(path: str | os.PathLike) -> RoundProblem:
    """Read a round's problem.

    Raises:
      InputError: if the file is missing or is no such document, naming the key.
    """
    document = _read_json(path, NETWORK_FORMAT)
    sizes = {"clusters": Entry(integer=True), "devices": Entry(integer=True)}
    _check_keys(document, {"format", *sizes, *_NETWORK}, "")
    clusters, devices = (
        int(_read_number(document[key], entry, key, {})) for key, entry in sizes.items()
    )
    axes = {"N": clusters, "K": devices, "J": devices + 1}
    sections = {
        name: _read_section(document[name], entries, f"{name}.", axes)
        for name, entries in _NETWORK.items()
    }
    _check_micro_batch_choices(sections["workload"])
    _check_weights(sections["learning"]["cluster_weight"])
    return _to_problem(sections)


def _to_problem(sections: dict[str, dict[str, np.ndarray]]) -> RoundProblem:
    compute = dict(sections["compute"])
    # In double precision: the coefficient alone may be too small for a float32.
    compute["joules_per_flop"] = compute.pop("energy_coefficient") * compute["flops_per_s"] ** 2
    workload = dict(sections["workload"])
    blocks = int(workload.pop("blocks"))
    return RoundProblem(
        workload=Workload(blocks=blocks, **_to_jax(workload)),
        radio=Radio(**_to_jax(sections["radio"])),
        compute=Compute(**_to_jax(compute)),
        learning=Learning(**_to_jax(sections["learning"])),
        control=Control(**_to_jax(sections["control"])),
    )


def write_network(path: str | os.PathLike, problem: RoundProblem) -> None:
    """Write a round's problem, readable by :func:`read_network`.

    Raises:
      InputError: if the rate law is not the mean one, changing the layout has a price, or
        the divergence counts drift: the format has no place for them.
    """
    if problem.learning.drift is not None:
        remedy = "Set it to 'one_step'"
        raise InputError("learning.bound", "local_steps", "not written on file", remedy)
    if problem.switching is not None:
        remedy = "Set it and control.hysteresis to 0"
        cost = problem.switching.switching_cost
        raise InputError("control.switching_cost", cost, "not written on file", remedy)
    if problem.radio.rate_law != "mean":
        law = problem.radio.rate_law
        raise InputError("radio.rate_law", law, "not written on file", "Use the law 'mean'")
    document: dict[str, Any] = {
        "format": NETWORK_FORMAT,
        "clusters": problem.clusters,
        "devices": problem.devices,
    }
    for name, entries in _NETWORK.items():
        section = getattr(problem, name)
        document[name] = {
            key: _to_list(getattr(section, key)) for key in entries if key != "energy_coefficient"
        }
    flops_per_s = np.asarray(problem.compute.flops_per_s, np.float64)
    joules_per_flop = np.asarray(problem.compute.joules_per_flop, np.float64)
    document["compute"]["energy_coefficient"] = _to_list(joules_per_flop / flops_per_s**2)
    _write_json(path, document)


def read_decision(path: str | os.PathLike, problem: RoundProblem) -> Decision:
    """Read a decision for a problem; it need not be feasible.

    Raises:
      InputError: if the file is missing or is no such document, naming the key.
    """
    document = _read_json(path, DECISION_FORMAT)
    _check_keys(document, {"format", "policy", *_DECISION}, "")
    axes = {"N": problem.clusters, "K": problem.devices, "J": problem.devices + 1}
    values = {
        key: _read_number(document[key], entry, key, axes) for key, entry in _DECISION.items()
    }
    return Decision(**_to_jax(values))


def write_decision(path: str | os.PathLike, decision: Decision, policy: str) -> None:
    """Write a decision, readable by :func:`read_decision`."""
    document = {"format": DECISION_FORMAT, "policy": policy}
    document |= {key: _to_list(getattr(decision, key)) for key in _DECISION}
    _write_json(path, document)


def write_cost(path: str | os.PathLike, cost: RoundCost, violations: list[str]) -> None:
    """Write a cost; infinite entries of a broken cluster become ``null``."""
    document = {"format": COST_FORMAT}
    for key in (
        "latency_s",
        "cluster_latency_s",
        "compute_latency_s",
        "energy_j",
        "divergence",
        "loss_probability",
        "memory_bytes",
        "objective",
    ):
        document[key] = _null_if_infinite(_to_list(getattr(cost, key)))
    document["feasible"] = not violations
    document["violations"] = violations
    document["absent"] = [int(n) for n in np.flatnonzero(np.asarray(cost.absent))]
    _write_json(path, document)


def _read_json(path: str | os.PathLike, expected_format: str) -> dict[str, Any]:
    path = Path(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError("file", str(path), error.strerror or "unreadable", "Check it") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, no JSON, or absurdly nested
        raise InputError("file", str(path), f"not JSON ({error})", "Write it anew") from None
    if not isinstance(document, dict) or document.get("format") != expected_format:
        found = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise InputError("format", found, f"{path} is no such document", f"Use {expected_format}")
    return document


def _check_keys(document: dict, expected: set[str], prefix: str) -> None:
    if unknown := sorted(set(document) - expected):
        key = prefix + unknown[0]
        raise InputError(key, document[unknown[0]], "unknown key", "Remove or correct it")
    if missing := sorted(expected - set(document)):
        raise InputError(prefix + missing[0], None, "the key is missing", "Add it")


def _read_section(section, entries: dict[str, Entry], prefix: str, axes) -> dict[str, np.ndarray]:
    if not isinstance(section, dict):
        raise InputError(prefix[:-1], section, "not an object", "Write its keys and values")
    _check_keys(section, set(entries), prefix)
    return {
        key: _read_number(section[key], entry, prefix + key, axes) for key, entry in entries.items()
    }


def _read_number(value, entry: Entry, key: str, axes: dict[str, int]) -> np.ndarray:
    """One number or nested list of numbers, checked, as float64 or int64."""
    wanted = tuple(None if letter == "*" else axes[letter] for letter in entry.shape)
    _check_shape(value, wanted, key)
    try:
        array = np.array(value, dtype=np.float64)
    except OverflowError:  # JSON sets no bound to an integer, a float does
        raise InputError(
            key, "an integer of hundreds of digits", "not a finite number", "Give a number"
        ) from None
    _refuse(~np.isfinite(array), array, key, "not a finite number", "Give a number")
    _refuse(array < 0, array, key, "negative", "Give a number from 0 on")
    largest = _LARGEST_INT if entry.integer else _LARGEST_NUMBER
    _refuse(array > largest, array, key, "too large", f"Give a number up to {largest:g}")
    if entry.positive:
        _refuse(array == 0, array, key, "zero", "Give a positive number")
    if entry.integer:
        _refuse(array != np.floor(array), array, key, "not whole", "Give an integer")
        return array.astype(np.int64)
    return array


def _check_shape(value, wanted: tuple, key: str) -> None:
    """Check nesting, lengths and leaves of a nested list."""
    if not wanted:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(key, value, "not a number", "Give a number here")
        return
    length = wanted[0]
    if not isinstance(value, list) or not value or (length is not None and len(value) != length):
        found = f"{len(value)} entries" if isinstance(value, list) else type(value).__name__
        needed = "a list" if length is None else f"a list of {length}"
        raise InputError(key, found, "wrong shape", f"Give {needed}")
    for index, item in enumerate(value):
        _check_shape(item, wanted[1:], f"{key}[{index}]")


def _refuse(wrong: np.ndarray, array: np.ndarray, key: str, problem: str, remedy: str) -> None:
    if np.any(wrong):
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        place = key + "".join(f"[{i}]" for i in index)
        raise InputError(place, float(array[index]), problem, remedy)


def _check_micro_batch_choices(workload: dict[str, np.ndarray]) -> None:
    batch = int(workload["batch"])
    for choice in workload["micro_batch_choices"]:
        if batch % choice:
            key = "workload.micro_batch_choices"
            raise InputError(key, int(choice), f"no divisor of batch = {batch}", "Remove it")


def _check_weights(weight: np.ndarray) -> None:
    total = float(weight.sum())
    if abs(total - 1.0) > 1e-4:
        key = "learning.cluster_weight"
        raise InputError(key, weight.tolist(), f"the sum is {total:g}", "Make the sum 1")


def _to_jax(values: dict[str, np.ndarray]) -> dict[str, Any]:
    return {key: jnp.asarray(value) for key, value in values.items()}


def _to_list(value) -> Any:
    return np.asarray(value).tolist()


def _null_if_infinite(value) -> Any:
    if isinstance(value, list):
        return [_null_if_infinite(item) for item in value]
    return value if np.isfinite(value) else None


def _write_json(path: str | os.PathLike, document: dict[str, Any]) -> None:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
