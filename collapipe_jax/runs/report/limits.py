"""Which limits a run kept, and by how much."""

from typing import Any, NamedTuple

import numpy as np

from collapipe_jax.core.quantity import bytes_to_mib
from collapipe_jax.edge.cost.feasibility import TOLERANCE
from collapipe_jax.runs.report.charts import Data, table
from collapipe_jax.runs.report.links import NO_LINK
from collapipe_jax.runs.report.network import NetworkRounds
from collapipe_jax.runs.results.realisations import DIVERGENCE_LIMIT, ENERGY_LIMIT
from collapipe_jax.runs.results.record import RunRecord


class Limit(NamedTuple):
    """A limit where a run came nearest to it, or was farthest above it."""

    name: str
    place: str  # cluster and node
    value: float
    bound: float
    unit: str
    tolerance: float  # relative

    @property
    def used(self) -> float:
        """The value over its bound."""
        return self.value / self.bound if self.bound else np.inf

    @property
    def is_kept(self) -> bool:
        """Whether the value is within the bound."""
        return bool(self.used <= 1.0 + self.tolerance)


def limits_of(record: RunRecord, network: NetworkRounds) -> list[Limit]:
    """Long-term limits by their means over the rounds, and limits of a round by its worst one."""
    history, constants, radio = record.history, record.constants, network.mean_problem.radio
    energy_j = history["energy_j"].astype(np.float64).mean(axis=0)
    budget_j, target = constants["energy_budget_j"], constants["divergence_target"]
    found = [
        _worst("mean energy of a node", energy_j, budget_j, "J", ENERGY_LIMIT - 1.0),
        _worst(
            "mean divergence",
            np.asarray(history["divergence"].mean()),
            target,
            "",
            DIVERGENCE_LIMIT - 1.0,
        ),
    ]
    if "control_unit_memory_bytes" in history:
        own_bytes = network.mean_problem.compute.control_unit_memory_bytes
        if own_bytes is not None:
            held = _mib(history["control_unit_memory_bytes"])
            found.append(_in_rounds("memory of a control unit", held, _mib(own_bytes), "MiB"))
    else:
        held, limit = _mib(history["memory_bytes"]), _mib(constants["memory_limit_bytes"])
        found.append(_in_rounds("memory of a device", held, limit, "MiB", first=1))
    if "d2d_share" in history:
        band = history["d2d_share"].sum(axis=2)
        found.append(_in_rounds("D2D band of a cluster", band, np.ones(()), "bands"))
        power_w = np.where(network.links.d2d_to == NO_LINK, 0.0, history["d2d_power_w"])
        found.append(_in_rounds("D2D power of a node", power_w, radio.d2d_power_max_w, "W"))
    d2e = history["d2e_share"].reshape(len(history["d2e_share"]), -1)
    found.append(_in_rounds("D2E band", d2e.sum(axis=1), np.ones(()), "bands"))
    power_w, limit_w = history["d2e_power_w"], np.asarray(radio.d2e_power_max_w)
    if power_w.ndim == 3:  # of clients, which may be control units
        limit_w = limit_w[:, None]
    first = int(power_w.shape[-1] > 1)
    found.append(_in_rounds("D2E power", power_w, limit_w, "W", first))
    return found


def _mib(size_bytes: Any) -> np.ndarray:
    return np.asarray(bytes_to_mib(np.asarray(size_bytes, np.float64)))


def broken_rounds(record: RunRecord) -> dict[str, int]:
    """In how many rounds a limit of a round was broken, by its name; only those that were."""
    return {
        name.removeprefix("violated_"): int(values.sum())
        for name, values in record.history.items()
        if name.startswith("violated_") and values.any()
    }


def limits_table(record: RunRecord, network: NetworkRounds) -> Data:
    """Limits with numbers, and in how many rounds a limit of a round was broken."""
    rows = [
        [
            limit.name,
            limit.place,
            float(limit.value),
            float(limit.bound),
            limit.unit,
            f"{100 * limit.used:.3g} %",
            "yes" if limit.is_kept else "no",
        ]
        for limit in limits_of(record, network)
    ]
    counts = broken_rounds(record)
    broken = ", ".join(f"{name} in {count}" for name, count in counts.items()) or "none"
    note = f"Limits of a round that were broken, in rounds of {len(record.history['round'])}: "
    head = ("limit", "where it is worst", "value", "limit", "unit", "used", "kept")
    return table("limits", "Limits", head, rows, note + broken)


def _in_rounds(name: str, values: np.ndarray, bound: Any, unit: str, first: int = 0) -> Limit:
    """The worst round and node of values ``[R, ...]``."""
    ratio = _ratio(values, bound)
    worst = np.argmax(ratio.reshape(len(ratio), -1).max(axis=1))
    limit = _worst(name, values[worst], bound, unit, TOLERANCE, first)
    return limit._replace(place=", ".join(filter(None, (limit.place, f"round {worst}"))))


def _worst(
    name: str, values: np.ndarray, bound: np.ndarray, unit: str, tolerance: float, first: int = 0
) -> Limit:
    """The worst of values by cluster and node; ``first`` is the number of the first node."""
    bound = np.broadcast_to(bound, values.shape)
    place = np.unravel_index(int(np.argmax(_ratio(values, bound))), values.shape)
    words = [f"cluster {place[0]}"] if place else []
    if len(place) > 1:
        node = int(place[1]) + first
        words.append(f"device {node}" if node else "control unit")
    return Limit(name, ", ".join(words), float(values[place]), float(bound[place]), unit, tolerance)


def _ratio(values: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Values over their bounds; infinite over a bound of 0, and 0 where nothing is used."""
    with np.errstate(divide="ignore"):
        return np.divide(values, bound, out=np.zeros(values.shape), where=values > 0)
