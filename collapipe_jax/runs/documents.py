"""One network on file: a round's problem, a decision and its cost as JSON documents.

The formats are described in docs/file-formats.md; keys, shapes and bounds are those of the
structs. Reading checks every number in double precision before anything is computed.
"""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from collapipe_jax.core.errors import InputError, InputWarning
from collapipe_jax.core.files import loads, write_json
from collapipe_jax.core.quantity import Quantity, Struct, check_product, quantities
from collapipe_jax.edge.cost.convergence import Learning
from collapipe_jax.edge.cost.decision import Decision, Routes
from collapipe_jax.edge.cost.problem import (
    Control,
    EmbeddingRows,
    RoundProblem,
    SecureExchange,
    Signalling,
    Workload,
)
from collapipe_jax.edge.cost.round_cost import RoundCost
from collapipe_jax.edge.network.channel import RADIO_LAWS, Radio
from collapipe_jax.edge.network.devices import Compute
from collapipe_jax.edge.network.propagation import TopologyParams
from collapipe_jax.learning.models.config import MOST_BLOCKS

NETWORK_FORMAT = "collapipe-network/1"
DECISION_FORMAT = "collapipe-decision/1"
COST_FORMAT = "collapipe-cost/1"

_SECTIONS: dict[str, type[Struct]] = {
    "workload": Workload,
    "radio": Radio,
    "compute": Compute,
    "learning": Learning,
    "control": Control,
    "secure_aggregation": SecureExchange,
    "signalling": Signalling,
    "embedding_rows": EmbeddingRows,
}
OPTIONAL_SECTIONS = frozenset({"secure_aggregation", "signalling", "embedding_rows"})
"""Sections that a network may lack; what they add is then off."""
_ENERGY_COEFFICIENT = Quantity(
    meaning="energy of an operation over the square of the speed",
    symbol=r"\kappa",
    shape="NJ",
    unit="W s³/FLOP³",
    plausible="<= 1e-20",
    slip="In J/FLOP? Divide it by the square of the speed",
    double=True,
)


def _on_file(cls: type[Struct]) -> dict[str, Quantity]:
    """Quantities of a struct by key; a name without a default has no place on file."""
    known = quantities(cls).items()
    found = {name: each for name, each in known if each.missing or not each.choices}
    if found.pop("joules_per_flop", None):
        found["energy_coefficient"] = _ENERGY_COEFFICIENT
    return found


SIZES = {name: quantities(TopologyParams)[name] for name in ("clusters", "devices")}
"""Quantities at the top of a network by key."""
NETWORK = {name: _on_file(cls) for name, cls in _SECTIONS.items()}
"""Quantities of a network by section and key."""
ROUTES = _on_file(Routes)
"""Quantities of a decision's routes by key."""
DECISION = _on_file(Decision)
"""Quantities of a decision by key, without its routes."""
_CUT = "server_blocks"
"""Key of a decision, and of a network's workload."""
COST = _on_file(RoundCost)
"""Quantities of a cost by key."""


def read_network(path: str | os.PathLike, devices: int = 0) -> RoundProblem:
    """Read a round's problem; an ``InputWarning`` tells of implausible numbers.

    Every cluster gets as many devices as the largest one, or ``devices`` if these are more.
    What is added is unavailable: it has memory 0, and else the numbers of the cluster's last.

    Args:
      path: of a JSON file, a document ``collapipe-network/1``.
      devices: least number of devices of a cluster.

    Raises:
      InputError: if the file is missing or is no such document, naming the key.

    Example:
      >>> import collapipe_jax as cp
      >>> problem = cp.read_network("docs/examples/edge.network.json")
      >>> problem.compute.memory_bytes.shape  # [N, K]
      (2, 3)

    Source: docs/file-formats.md.
    """
    document = _read_document(path, NETWORK_FORMAT, {*SIZES, *NETWORK}, OPTIONAL_SECTIONS)
    axes = _axes(*_read_sizes(document))
    devices = max(devices, int(np.max(axes["K"])))
    sections = {}
    for name, keys in NETWORK.items():
        if name not in document:
            continue
        if not isinstance(document[name], dict):
            raise InputError(name, document[name], "not an object", "Write its keys and values")
        section = _filled(document[name], keys)
        keys = {key: each for key, each in keys.items() if _is_given(section, key, each)}
        _check_keys(section, set(keys), f"{name}.")
        sections[name] = _read_numbers(section, keys, f"{name}.", axes, devices)
        for key, quantity in keys.items():
            if doubt := quantity.doubt(f"{name}.{key}", sections[name][key]):
                warnings.warn(f"{path}: {doubt}", InputWarning, stacklevel=2)
    workload, compute = sections["workload"], sections["compute"]
    batch, weight = int(workload["batch"]), sections["learning"]["cluster_weight"]
    for choice in workload["micro_batch_choices"]:
        if batch % choice:
            key = "workload.micro_batch_choices"
            raise InputError(key, int(choice), f"no divisor of batch = {batch}", "Remove it")
    if (server_blocks := int(workload["server_blocks"])) > workload["blocks"]:
        problem, remedy = f"there are {workload['blocks']:.0f}", "Give at most workload.blocks"
        raise InputError("workload.server_blocks", server_blocks, problem, remedy)
    check_product({f"workload.{name}": int(workload[name]) for name in ("batch", "local_steps")})
    total = float(weight.sum())
    if abs(total - 1.0) > 1e-4:
        key = "learning.cluster_weight"
        raise InputError(key, weight.tolist(), f"the sum is {total:g}", "Make the sum 1")
    if rows := sections.get("embedding_rows"):
        _check_points(rows["samples"], rows["rows_read"])
    # In double precision: the coefficient alone may be too small for a float32.
    compute["joules_per_flop"] = compute.pop("energy_coefficient") * compute["flops_per_s"] ** 2
    each = quantities(Compute)["joules_per_flop"]
    each.check("compute.energy_coefficient * flops_per_s**2", compute["joules_per_flop"])
    parts: dict[str, Any] = {
        name: cls(**_to_jax(sections[name])) for name, cls in _SECTIONS.items() if name in sections
    }
    parts["workload"] = parts["workload"].replace(blocks=int(workload["blocks"]))
    return RoundProblem(**parts)


def _check_points(samples: np.ndarray, rows_read: np.ndarray) -> None:
    """Refuse points of the rows that a round reads, unless they begin at 0 and do not fall."""
    if len(samples) != len(rows_read):
        problem, remedy = f"{len(samples)} samples have them", "Give a number for each"
        raise InputError("embedding_rows.rows_read", len(rows_read), problem, remedy)
    for name, values in (("samples", samples), ("rows_read", rows_read)):
        if values[0] or np.any(np.diff(values) < 0):
            problem, remedy = "they do not rise from 0", "Sort them, with 0 as the first"
            raise InputError(f"embedding_rows.{name}", values.tolist(), problem, remedy)


def write_network(path: str | os.PathLike, problem: RoundProblem) -> None:
    """Write a round's problem, readable by :func:`read_network`.

    Args:
      path: of the JSON file.
      problem: one round of one network, without a batch axis.

    Raises:
      InputError: if a law of the radio is not the default, switching partitions has a cost,
        the divergence counts drift, or pipelines have routes: the format has no place for them.

    Example:
      >>> import os, tempfile
      >>> import collapipe_jax as cp
      >>> problem = cp.read_network("docs/examples/edge.network.json")
      >>> folder = tempfile.mkdtemp()
      >>> cp.write_network(os.path.join(folder, "network.json"), problem)
      >>> os.listdir(folder)
      ['network.json']
    """
    if problem.learning.drift is not None:
        remedy = "Set it to 'one_step'"
        raise InputError("learning.bound", "local_steps", "not written on file", remedy)
    if problem.switching is not None:
        remedy = "Set it, control.hysteresis and control.moments_move to 0"
        cost = problem.switching.switching_cost
        raise InputError("control.switching_cost", cost, "not written on file", remedy)
    if problem.routes is not None:
        remedy = "Give them to a decision"
        raise InputError("routes", "given", "not written with a network", remedy)
    for name in RADIO_LAWS:
        law, default = getattr(problem.radio, name), getattr(Radio, name)
        if law != default:
            raise InputError(f"radio.{name}", law, "not written on file", f"Use {default!r}")
    sizes = {"clusters": problem.clusters, "devices": problem.devices}
    parts = {name: getattr(problem, name) for name in NETWORK}
    sections = {
        name: _to_lists(part, NETWORK[name]) for name, part in parts.items() if part is not None
    }
    flops_per_s = np.asarray(problem.compute.flops_per_s, np.float64)
    joules_per_flop = np.asarray(problem.compute.joules_per_flop, np.float64)
    sections["compute"]["energy_coefficient"] = (joules_per_flop / flops_per_s**2).tolist()
    write_json(Path(path), {"format": NETWORK_FORMAT, **sizes, **sections})


def read_decision(path: str | os.PathLike, problem: RoundProblem) -> Decision:
    """Read a decision for a problem; it need not be feasible.

    Args:
      path: of a JSON file, a document ``collapipe-decision/1``.
      problem: gives the numbers of clusters ``N`` and devices ``K``.

    Raises:
      InputError: if the file is missing or is no such document, naming the key.

    Example:
      >>> import collapipe_jax as cp
      >>> problem = cp.read_network("docs/examples/edge.network.json")
      >>> decision = cp.read_decision("docs/examples/edge.decision.json", problem)
      >>> decision.d2d_share.shape  # [N, K + 1]
      (2, 4)

    Source: docs/file-formats.md.
    """
    document = _read_decision(path)
    missing = sorted(set(ROUTES) - set(document))
    if len(missing) == 1:
        raise InputError(missing[0], None, "routes need both keys", "Add it")
    given = DECISION if missing else DECISION | ROUTES
    axes = _axes(problem.clusters, problem.devices)
    values = _read_numbers(document, given, "", axes, problem.devices)
    for n, k in np.argwhere(values["segments"] > MOST_BLOCKS):
        key, remedy = f"segments[{n}][{k}]", f"Give {MOST_BLOCKS} or less"
        raise InputError(key, int(values["segments"][n, k]), "no model has as many blocks", remedy)
    if missing:
        return Decision(**_to_jax(values))
    for n, node in enumerate(values["gateway"]):
        if not 0 <= node <= problem.devices:
            remedy = f"Give 0 to {problem.devices}"
            raise InputError(f"gateway[{n}]", int(node), "the cluster has no such node", remedy)
    found = {key: values.pop(key) for key in ROUTES}
    return Decision(**_to_jax(values), routes=Routes(**_to_jax(found)))


def read_cut(path: str | os.PathLike, problem: RoundProblem) -> RoundProblem:
    """The problem with the blocks at the edge server that a decision on file names, if any.

    Raises:
      InputError: if the file is no decision, or the model has fewer blocks.
    """
    document = _read_decision(path)
    if _CUT not in document:
        return problem
    value, blocks = document[_CUT], int(problem.workload.blocks)
    _check_shape(value, "", {}, _CUT)
    quantities(Workload)[_CUT].check(_CUT, value)
    if value > blocks:
        raise InputError(_CUT, value, f"there are {blocks}", "Give at most workload.blocks")
    return problem.with_cut(int(value))


def _read_decision(path: str | os.PathLike) -> dict[str, Any]:
    """The document of a decision."""
    keys = {"policy", _CUT, *DECISION, *ROUTES}
    return _read_document(path, DECISION_FORMAT, keys, frozenset((_CUT, *ROUTES)))


def write_decision(
    path: str | os.PathLike, decision: Decision, policy: str, server_blocks: int | None = None
) -> None:
    """Write a decision, readable by :func:`read_decision`.

    Args:
      path: of the JSON file.
      decision: of one round, without a batch axis.
      policy: who decided, a text for the reader.
      server_blocks: last blocks at the edge server, for :func:`read_cut`; the network's if None.

    Example:
      >>> import os, tempfile
      >>> import collapipe_jax as cp
      >>> problem = cp.read_network("docs/examples/edge.network.json")
      >>> decision = cp.read_decision("docs/examples/edge.decision.json", problem)
      >>> path = os.path.join(tempfile.mkdtemp(), "decision.json")
      >>> cp.write_decision(path, decision, "by hand")
      >>> same = cp.read_decision(path, problem)
    """
    document: dict[str, Any] = {"format": DECISION_FORMAT, "policy": policy}
    if server_blocks is not None:
        document[_CUT] = server_blocks
    if decision.routes is not None:
        document |= _to_lists(decision.routes, ROUTES)
    write_json(Path(path), document | _to_lists(decision, DECISION))


def write_cost(path: str | os.PathLike, cost: RoundCost, violations: list[str]) -> None:
    """Write a cost; infinite entries of a broken cluster become ``null``.

    What can never send is not feasible, also where only a gain of the network is missing.
    """
    if not np.isfinite(cost.latency_s):
        violations = [*violations, "links"]
    document = {"format": COST_FORMAT, **_to_lists(cost, COST)}
    document |= {"feasible": not violations, "violations": violations}
    write_json(Path(path), document | {"absent": np.flatnonzero(cost.absent).tolist()})


def _is_given(section: Mapping[str, Any], key: str, quantity: Quantity) -> bool:
    """Whether a section has or needs a key."""
    return key in section or not quantity.optional


def _read_document(
    path: str | os.PathLike,
    expected_format: str,
    keys: set[str],
    optional: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """A document of a format with these keys beside that of the format.

    It may lack the ``optional`` ones among them.
    """
    path = Path(path)
    try:
        document = loads(path.read_text(encoding="utf-8"), is_finite=False)
    except OSError as error:
        raise InputError("file", str(path), error.strerror or "unreadable", "Check it") from None
    except ValueError as error:  # not UTF-8, or no JSON
        raise InputError("file", str(path), f"not JSON ({error})", "Write it anew") from None
    if not isinstance(document, dict) or document.get("format") != expected_format:
        found = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise InputError("format", found, f"{path} is no such document", f"Use {expected_format}")
    _check_keys(document, {"format", *keys} - (optional - set(document)), "")
    return document


def _filled(section: Mapping[str, Any], keys: Mapping[str, Quantity]) -> dict[str, Any]:
    """A section with the keys that it may lack."""
    filled = dict(section)
    for key, quantity in keys.items():
        value = quantity.missing
        if isinstance(value, str) and not quantity.choices:
            value = section.get(value)
        if key not in section and value is not None:
            filled[key] = value
    return filled


def _check_keys(document: dict, expected: set[str], prefix: str) -> None:
    if unknown := sorted(set(document) - expected):
        key = prefix + unknown[0]
        raise InputError(key, document[unknown[0]], "unknown key", "Remove or correct it")
    if missing := sorted(expected - set(document)):
        raise InputError(prefix + missing[0], None, "the key is missing", "Add it")


def _read_sizes(document: Mapping[str, Any]) -> tuple[int, int | list[int]]:
    """Number of clusters, and devices of every one, or of each."""
    clusters, devices = document["clusters"], document["devices"]
    _check_shape(clusters, "", {}, "clusters")
    SIZES["clusters"].check("clusters", clusters)
    _check_shape(devices, "N" if isinstance(devices, list) else "", {"N": clusters}, "devices")
    SIZES["devices"].check("devices", devices)
    return int(clusters), np.array(devices, int).tolist()


def _axes(clusters: int, devices: int | list[int]) -> dict[str, Any]:
    """Lengths of axes by their letters, or lists by cluster; other axes have any length."""
    return {"N": clusters, "K": devices, "J": (np.array(devices) + 1).tolist()}


def _read_numbers(
    section: Mapping[str, Any],
    keys: dict[str, Quantity],
    prefix: str,
    axes: dict[str, Any],
    devices: int,
) -> dict[str, Any]:
    """Checked names, and checked and padded numbers as arrays of float64 or int64."""
    values = {}
    for key, quantity in keys.items():
        if quantity.choices:
            quantity.check(prefix + key, section[key])
            values[key] = section[key]
            continue
        _check_shape(section[key], quantity.shape, axes, prefix + key)
        value = _padded(section[key], quantity.shape, devices)
        quantity.check(prefix + key, value)
        # Adding 0 turns -0.0 into 0.0: one over it has the right sign.
        values[key] = np.array(value, np.int64 if quantity.whole else np.float64) + 0
    return values


def _padded(value: Any, shape: str, devices: int) -> Any:
    """A nested list with entries for so many devices, those added without memory."""
    if "K" not in shape and "J" not in shape:
        return value
    items = [_padded(item, shape[1:], devices) for item in value]
    added = {"K": [0], "J": items[-1:]}.get(shape[0], [])
    return items + added * (devices + (shape[0] == "J") - len(items))


def _check_shape(value, shape: str, axes: dict[str, Any], key: str, cluster: int = 0) -> None:
    """Check nesting, lengths and leaves of a nested list inside a cluster."""
    if not shape:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(key, value, "not a number", "Give a number here")
        return
    length = axes.get(shape[0])
    if isinstance(length, list):
        length = length[cluster]
    if not isinstance(value, list) or not value or (length is not None and len(value) != length):
        found = f"{len(value)} entries" if isinstance(value, list) else type(value).__name__
        needed = "a list" if length is None else f"a list of {length}"
        raise InputError(key, found, "wrong shape", f"Give {needed}")
    for index, item in enumerate(value):
        inside = index if shape[0] == "N" else cluster
        _check_shape(item, shape[1:], axes, f"{key}[{index}]", inside)


def _to_jax(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value if isinstance(value, str) else jnp.asarray(value)
        for key, value in values.items()
    }


def _to_lists(struct: Struct, keys: Mapping[str, Quantity]) -> dict[str, Any]:
    """Fields of a struct as JSON knows them; optional limits only where they are finite."""
    found = {key: getattr(struct, key) for key in keys if hasattr(struct, key)}
    return {
        key: np.asarray(value).tolist()
        for key, value in found.items()
        if not keys[key].optional or (value is not None and np.all(np.isfinite(value)))
    }
