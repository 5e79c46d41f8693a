"""What a page shows of one run: picture, holdings, timeline, charts, limits, and sentences."""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from collapipe_jax.core.quantity import bytes_to_mib
from collapipe_jax.edge.cost.feasibility import TOLERANCE
from collapipe_jax.edge.cost.latency import LatencyParts
from collapipe_jax.edge.cost.round_cost import ClientTimes
from collapipe_jax.runs.report.charts import Data, line, line_chart, plain, table
from collapipe_jax.runs.report.network import NO_LINK, NetworkRounds
from collapipe_jax.runs.results.realisations import DIVERGENCE_LIMIT, ENERGY_LIMIT
from collapipe_jax.runs.results.record import (
    RunRecord,
    client_round,
    first_step,
    policy_label,
    record_energy_over_budget,
    runs_pipeline,
    slowest_parts_s,
    slowest_stage,
)

MOST_ROUNDS = 120
"""Rounds of a slider, and points of a chart with a line for every node; of more a part is shown."""
PARTS = {
    **{name: name.removesuffix("_s") for name in (*LatencyParts._fields, *ClientTimes._fields)},
    "distribute_s": "distribution",
    "iterations_s": "local steps",
    "collect_s": "collection",
    "messages_s": "activations and gradients",
}
"""Words for parts of a round."""
BASE_STATION = -1
"""In place of a node, where a link ends at the base station."""
LINK_CLASSES = (
    (None, "SINR below 5 dB"),
    (5.0, "5 to 15 dB"),
    (15.0, "15 to 25 dB"),
    (25.0, "25 dB or more"),
)
"""Least SINR in dB of every class of links, the worst first, with its words."""


def run_data(name: str, record: RunRecord, network: NetworkRounds) -> Data:
    """All that a page shows of one run."""
    picked = pick_rounds(len(record.history["round"]))
    return {
        "name": name,
        "policy": record.policy,
        "sentences": _sentences(record, network),
        "rounds": plain(record.history["round"][picked]),
        "network": network_data(network, picked, record),
        "timeline": _timeline(record, picked),
        "charts": _charts(record, network, picked),
        "tables": [_limits_table(record, network)],
    }


def pick_rounds(count: int) -> np.ndarray:
    """Indices of the rounds of a slider: all, or some at even distances, the last one included."""
    return np.unique(np.linspace(0, count - 1, min(count, MOST_ROUNDS)).round().astype(int))


def network_data(
    network: NetworkRounds, picked: np.ndarray, record: RunRecord | None = None
) -> Data:
    """The picture in some rounds: nodes, their blocks, and links with their quality."""
    compute = network.mean_problem.compute
    moves = len(network.position_m) > 1
    position_m = network.position_m[picked] if moves else network.position_m
    found: Data = {
        "is_drawn": network.is_drawn,
        "position_m": plain(position_m),
        "is_there": plain(network.is_there[picked]),
        "gflops_per_s": plain(np.asarray(compute.flops_per_s) / 1e9, 3),
        "memory_mib": plain(bytes_to_mib(np.asarray(compute.memory_bytes)), 4),
        "links": [links_of_round(network, index) for index in picked],
        "link_classes": LINK_CLASSES,
    }
    if record is None:
        return found
    history = record.history
    if "samples" in history:
        blocks = history["client_blocks"][:, None, None] * (history["samples"] > 0)
        if "control_unit_memory_bytes" in history:  # they train in the place of devices
            found["of_control_units"] = True
        held = blocks
        found["samples"] = plain(history["samples"][picked])
    else:
        held = history["segments"]
    found["held"] = plain(held[picked])
    if "gateway" in history:
        found["gateway"] = plain(history["gateway"][picked])
    return found


def links_of_round(network: NetworkRounds, index: int) -> list[list]:
    """Links of a round: cluster, node, node where it ends, SINR in dB, and rate in Mbit/s."""
    links: Any = network.links  # NumPy's arrays
    found: list[list] = []

    def add(places: np.ndarray, to: np.ndarray, sinr: np.ndarray, bit_s: np.ndarray) -> None:
        with np.errstate(divide="ignore"):
            decibel, rate = 10.0 * np.log10(np.maximum(sinr, 0.0)), 1e-6 / bit_s
        for n, j in np.argwhere(places):
            numbers = plain(decibel[n, j], 3), plain(rate[n, j], 3)
            found.append([int(n), int(j), int(to[n, j]), *numbers])

    d2d_to = links.d2d_to[index]
    add(d2d_to != NO_LINK, d2d_to, links.d2d_sinr[index], links.d2d_bit_s[index])
    d2e_to = np.full(d2d_to.shape, BASE_STATION)
    add(links.talks_d2e[index], d2e_to, links.d2e_sinr[index], links.d2e_bit_s[index])
    return found


def _timeline(record: RunRecord, picked: np.ndarray) -> Data:
    """Parts of every cluster's round, and the first local step of the slowest one, or clients."""
    history = record.history
    found: Data = {
        "parts": [PARTS[name] for name in LatencyParts._fields],
        "parts_s": plain(history["parts_s"][picked]),
    }
    if "client_parts_s" in history:
        found["client_parts"] = [PARTS[name] for name in ClientTimes._fields]
        found["clients"] = [_clients(record, index) for index in picked]
    elif record.duplex == "full":
        runs = runs_pipeline(record)
        found["steps"] = [_step(record, runs, index) for index in picked]
    return found


def _clients(record: RunRecord, index: int) -> Data | None:
    """Clients of a round with their parts of time; None where everybody sat out."""
    if not (record.history["samples"][index] > 0).any():
        return None
    found = client_round(record, int(record.history["round"][index]))
    return {"names": found.names, "parts_s": plain(found.parts_s)}


def _step(record: RunRecord, runs: np.ndarray, index: int) -> Data | None:
    """Bars of the slowest cluster's first local step; None where no cluster ran."""
    if not runs[index].any():
        return None
    latency_s = np.where(runs[index], record.history["cluster_latency_s"][index], -np.inf)
    step = first_step(record, index, int(np.argmax(latency_s)))
    places = {name: place for place, name in enumerate(step.resources)}
    bars = [
        [places[bar.resource], bar.direction, bar.micro_batch, bar.start_s, bar.finish_s]
        for bar in step.bars
    ]
    return {
        "cluster": step.cluster,
        "resources": step.resources,
        "bars": [[*bar[:3], *plain(bar[3:])] for bar in bars],
        "finish_s": plain(step.finish_s),
    }


def _charts(record: RunRecord, network: NetworkRounds, picked: np.ndarray) -> list[Data]:
    """Charts of one run: time by part, energy and queues of nodes, memory."""
    history, charts = record.history, list[Data]()
    if len(history["round"]) > 1:
        rounds = history["round"][picked]
        charts.append(_stack(rounds, slowest_parts_s(record)[picked]))
        over = record_energy_over_budget(record)[picked]
        title = "Mean energy so far over the budget of a node"
        nodes = _lines_of_nodes(rounds, over, over[-1])
        rule = [["budget", 1.0]]
        charts += line_chart("energy", title, "round", "energy / budget", nodes, rules=rule)
        queue = history["energy_queue"]
        nodes = _lines_of_nodes(rounds, queue[picked], queue.mean(axis=0))
        charts += line_chart("energy_queue", "Energy queue of a node", "round", "budgets", nodes)
    return charts + _memory(record, network)


def _stack(rounds: np.ndarray, parts_s: np.ndarray) -> Data:
    """Latency of the slowest cluster by part, ``parts_s [R, 5]``."""
    parts = [
        {"name": PARTS[name], "y": plain(values)}
        for name, values in zip(LatencyParts._fields, parts_s.T, strict=True)
    ]
    title = "Latency of a round by part, of its slowest cluster"
    found = {"kind": "stack", "name": "latency_parts", "title": title, "x": "round", "y": "s"}
    return {**found, "places": plain(rounds), "parts": parts}


def _lines_of_nodes(rounds: np.ndarray, values: np.ndarray, badness: np.ndarray) -> list[Data]:
    """A line for every node of ``values [R, N, K + 1]``, bold where ``badness`` is most.

    Control units have one look, devices another one.
    """
    lines = []
    for look, words, nodes in ((1, "control unit", [0]), (0, "device", range(1, values.shape[2]))):
        places = [(n, j) for n in range(values.shape[1]) for j in nodes]
        worst = max(places, key=lambda place: badness[place])
        for n, j in sorted(places, key=lambda place: place == worst):
            node = f"cluster {n}, {words}" + (f" {j}" if j else "")
            name = {"name": f"worst {words}: {node}"} if (n, j) == worst else {"name": ""}
            own = line(name["name"], rounds, values[:, n, j], look, thin=(n, j) != worst, of=node)
            lines.append(own)
    return lines


def _memory(record: RunRecord, network: NetworkRounds) -> list[Data]:
    """Most memory that every node held, and its limit."""
    history = record.history
    if "control_unit_memory_bytes" in history:
        limit = network.mean_problem.compute.control_unit_memory_bytes
        held = history["control_unit_memory_bytes"].max(axis=0)[:, None]
        limit = np.full(held.shape, np.inf) if limit is None else np.asarray(limit)[:, None]
        names = [f"cluster {n}, control unit" for n in range(len(held))]
    else:
        held = history["memory_bytes"].max(axis=0)
        limit = record.constants["memory_limit_bytes"]
        names = [f"cluster {n}, device {k + 1}" for n, k in np.ndindex(held.shape)]
    values, limits = plain(bytes_to_mib(held.ravel())), plain(bytes_to_mib(limit.ravel()))
    rows = [
        {"name": name, "value": value, "limit": bound}
        for name, value, bound in zip(names, values, limits, strict=True)
    ]
    title = "Most memory that a node held, and its limit"
    return [{"kind": "bars", "name": "memory", "title": title, "unit": "MiB", "rows": rows}]


def _sentences(record: RunRecord, network: NetworkRounds) -> list[str]:
    """Three sentences: what the network is, who computes, and what limits a round."""
    return [network_sentence(network), _who_computes(record), _what_limits(record, network)]


def network_sentence(network: NetworkRounds) -> str:
    """Size and extent of the network."""
    clusters, devices = network.mean_problem.clusters, network.mean_problem.devices
    who = (
        f"The network has {_count(clusters, 'cluster')}, each with a control unit and "
        f"{_count(devices, 'device')}"
    )
    if not network.is_drawn:
        return f"{who}, at one base station with an edge server; it has gains, and no places."
    position_m = network.position_m[0]
    far_m = np.linalg.norm(position_m[:, 0], axis=-1).max()
    near_m = np.linalg.norm(position_m[:, 1:] - position_m[:, :1], axis=-1).max()
    return (
        f"{who}, up to {far_m:.0f} m from one base station with an edge server; devices are "
        f"within {near_m:.0f} m of their control unit."
    )


def _who_computes(record: RunRecord) -> str:
    """How many devices take part, and with what."""
    history, policy = record.history, policy_label(record.policy)
    if "samples" in history:
        trains, blocks = history["samples"] > 0, _range(history["client_blocks"])
        kind = "control units" if "control_unit_memory_bytes" in history else "devices"
        share = f"{trains.sum(axis=(1, 2)).mean():.3g} of {trains[0].size} {kind}"
        return f"{share} train in a mean round of {policy}, each with {blocks}."
    held = history["segments"]
    share = f"{(held > 0).sum(axis=(1, 2)).mean():.3g} of {held[0].size} devices"
    if not held.any():
        return f"No device computes in any round of {policy}."
    blocks = _range(held[held > 0])
    return (
        f"{share} compute in a mean round of {policy}, each with {blocks}; control units embed, "
        "and the edge server has the end of the model."
    )


def _range(counts: np.ndarray) -> str:
    low, high = int(counts.min()), int(counts.max())
    return _count(high, "block") if low == high else f"{low} to {high} blocks"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + "s" * (number != 1)


def _what_limits(record: RunRecord, network: NetworkRounds) -> str:
    """Slowest cluster, its longest part, its slowest stage, and limits that are not kept."""
    history = record.history
    latency_s, parts_s = history["cluster_latency_s"], slowest_parts_s(record)
    slowest = np.argmax(latency_s, axis=1)
    cluster, times = Counter(slowest.tolist()).most_common(1)[0]
    known = parts_s[np.isfinite(parts_s).all(axis=1)]
    if not known.sum():
        return "No round has a finite, positive latency."
    part = int(np.argmax(known.sum(axis=0)))
    share = 100.0 * known[:, part].sum() / known.sum()
    names = [PARTS[name] for name in LatencyParts._fields]
    limit = f"Cluster {cluster} is the slowest in {times} of {_count(len(slowest), 'round')}"
    if len(slowest) == 1:
        limit = f"Cluster {cluster} is the slowest"
    text = f"{limit}, and {share:.0f} % of the time goes to {names[part]}"
    runs = runs_pipeline(record)
    stages = [
        slowest_stage(record, index, own) for index, own in enumerate(slowest) if runs[index, own]
    ]
    if stages and LatencyParts._fields[part] == "iterations_s":
        stage, _ = Counter(stages).most_common(1)[0]
        text += f", where {_article(stage)} is " + "most often " * (len(stages) > 1)
        text += "the slowest stage"
    over = [limit.name for limit in limits_of(record, network) if not limit.is_kept]
    over += [f"{name} in {_count(n, 'round')}" for name, n in _broken_rounds(record).items()]
    return text + (
        f"; limits that are broken: {', '.join(over)}." if over else "; it keeps all limits."
    )


def _article(stage: str) -> str:
    """A stage as a sentence names it."""
    if "↔" in stage:
        return f"the hop {stage}"
    return stage if stage.startswith("device") else f"the {stage}"


# Which limits a run kept, and by how much.


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


def _broken_rounds(record: RunRecord) -> dict[str, int]:
    """In how many rounds a limit of a round was broken, by its name; only those that were."""
    return {
        name.removeprefix("violated_"): int(values.sum())
        for name, values in record.history.items()
        if name.startswith("violated_") and values.any()
    }


def _limits_table(record: RunRecord, network: NetworkRounds) -> Data:
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
    counts = _broken_rounds(record)
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
