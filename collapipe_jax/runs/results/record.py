"""A training run in memory, and what follows from it: labels, limits, parts of time, timelines."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jax import Array

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.statistics import running_mean
from collapipe_jax.edge.cost.latency import Events, alternating_events, flow_events


class RunRecord(NamedTuple):
    """Results of a run, enough to draw it."""

    config: dict[str, Any]  # nested plain dictionary
    constants: dict[str, np.ndarray]  # budgets, limits and baselines by name
    history: dict[str, np.ndarray]  # arrays by name, first axis the rounds

    @property
    def policy(self) -> str:
        """Name of the policy."""
        return self.config["policy"]["name"]

    @property
    def schedule(self) -> str:
        """Order of the passes of a local step."""
        return self.config.get("pipeline", {}).get("schedule", "gpipe")

    @property
    def duplex(self) -> str:
        """Law of the D2D radios."""
        return self.config.get("radio", {}).get("duplex", "full")


def policy_label(name: str) -> str:
    """Name of a policy in words."""
    return name.replace("_", " ")


def run_labels(records: Sequence[RunRecord]) -> list[str]:
    """Names of runs for legends: the policy, and for several runs of one policy a suffix.

    The suffix is the value of the one key in which their configurations differ, or a number.
    """
    labels = [policy_label(record.policy) for record in records]
    for name in {label for label, count in Counter(labels).items() if count > 1}:
        rows = [index for index, label in enumerate(labels) if label == name]
        suffixes = _suffixes([records[index].config for index in rows])
        for index, suffix in zip(rows, suffixes, strict=True):
            labels[index] = f"{name} {suffix}"
    return labels


def _suffixes(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    flat = [flatten_dict(config, sep=".") for config in configs]
    keys = [key for key in flat[0] if len({str(one.get(key)) for one in flat}) > 1]
    if len(keys) == 1 and len({str(one[keys[0]]) for one in flat}) == len(flat):
        key = keys[0].rpartition(".")[2].replace("_", " ")
        return [f"({key} {one[keys[0]]})" for one in flat]
    return [f"({number})" for number in range(1, len(flat) + 1)]


# Limits over rounds, and where the time of a round goes.


def record_energy_over_budget(record: RunRecord) -> np.ndarray:
    """Mean energy so far over the budget of (P1), no unit, ``[R, N, K + 1]``."""
    return running_mean(record.history["energy_j"]) / record.constants["energy_budget_j"][None]


def divergence_over_target(record: RunRecord) -> np.ndarray:
    """Mean divergence so far over its target of (P1), no unit, ``[R]``."""
    return running_mean(record.history["divergence"]) / record.constants["divergence_target"]


def slowest_parts_s(record: RunRecord) -> np.ndarray:
    """Latency parts of the slowest cluster of every round, ``[R, 5]``.

    A row sums to the round's latency, docs/system-model.md (14). It is 0 where all clusters sit
    out, and NaN where the latency is infinite.
    """
    slowest = np.argmax(record.history["cluster_latency_s"], axis=1)
    parts_s = record.history["parts_s"][np.arange(slowest.size), slowest]
    finite = np.isfinite(record.history["latency_s"])[:, None]
    return np.where(finite & np.isfinite(parts_s), parts_s, np.nan)


# What happens when in a round: services of a pipeline's resources, parts of clients.

FORWARD, BACKWARD, TURN = "forward", "backward", "decoder"


class Bar(NamedTuple):
    """One service of one micro-batch, timed since the first local step began."""

    resource: str
    direction: str  # FORWARD, BACKWARD, or TURN for the decoder, whose stage is both
    micro_batch: int  # from 0
    start_s: float
    finish_s: float


class Step(NamedTuple):
    """First local step of a cluster in a round.

    Resources are the rows from top to bottom, in the order of the forward flow, idle ones left
    out; the downlink is last.
    """

    index: int  # of the round along the history's first axis
    cluster: int  # from 0
    micro_batches: int
    resources: list[str]
    bars: list[Bar]  # in both directions
    turned_s: float  # the last micro-batch leaves the decoder
    finish_s: float  # the step ends, at the latest by docs/system-model.md (12)


def runs_pipeline(record: RunRecord) -> np.ndarray:
    """Which clusters ran a pipeline in which rounds, ``[R, N]``.

    None where a cluster sat out, and nowhere under a data-parallel policy.
    """
    if "forward_flow_s" not in record.history:
        return np.zeros(record.history["cluster_latency_s"].shape, bool)
    flow_s = np.concatenate(
        [record.history["forward_flow_s"], record.history["backward_flow_s"]], axis=-1
    )
    return np.any(flow_s > 0, axis=-1) & np.all(np.isfinite(flow_s), axis=-1)


def index_of_round(record: RunRecord, number: int) -> int:
    """Index of a round along the first axis of a run's history.

    Raises:
      InputError: if the run has no such round.
    """
    rounds = record.history["round"]
    if number not in rounds:
        remedy = f"Choose one of {rounds[0]} to {rounds[-1]}"
        raise InputError("--round", number, "the run has no such round", remedy)
    return int(np.flatnonzero(rounds == number)[0])


def choose_round(
    record: RunRecord, round_number: int | None, cluster: int | None
) -> tuple[int, int]:
    """Which round and cluster to draw: the last round with a pipeline, its slowest cluster.

    Returns:
      Index of the round along the history's first axis, and the cluster from 0.

    Raises:
      InputError: no such round or cluster, or it ran no pipeline.
    """
    runs = runs_pipeline(record)
    if not runs.any():
        problem = "no round of this run has a pipeline"
        raise InputError("policy", record.policy, problem, "Draw another run")
    if cluster is not None and not 0 <= cluster < runs.shape[1]:
        remedy = f"Choose one of 0 to {runs.shape[1] - 1}"
        raise InputError("--cluster", cluster, "the run has no such cluster", remedy)
    eligible = runs if cluster is None else runs[:, [cluster]]
    if round_number is None:
        index = int(np.max(np.nonzero(eligible.any(axis=1))[0], initial=-1))
    else:
        index = index_of_round(record, round_number)
    if index < 0 or not eligible[index].any():
        key, value = ("--cluster", cluster) if cluster is not None else ("--round", round_number)
        raise InputError(key, value, "it sat out", "Choose another round or cluster")
    if cluster is None:
        latency_s = np.where(runs[index], record.history["cluster_latency_s"][index], -np.inf)
        cluster = int(np.argmax(latency_s))
    return index, cluster


def first_step(record: RunRecord, index: int, cluster: int) -> Step:
    """Place every micro-batch of the first local step on the resources it passes.

    Under GPipe the backward flow starts when the last micro-batch has left the decoder.

    See docs/system-model.md (12) and section 7. The cluster ran a pipeline in that round,
    ``index`` along the history's first axis.

    Raises:
      InputError: if D2D radios take turns.
    """
    if record.duplex == "half":
        problem = "stages of half duplex share radios, and have no chart"
        raise InputError("radio.duplex", record.duplex, problem, "Draw a run with full duplex")
    forward_s = record.history["forward_flow_s"][index, cluster]
    backward_s = record.history["backward_flow_s"][index, cluster]
    micro_batches = int(record.history["micro_batches"][index, cluster])
    names = _names_at(record, index, cluster)
    events_of = _one_f_one_b if record.schedule == "1f1b" else _gpipe
    there, back = events_of(forward_s, backward_s, micro_batches)
    forward = [
        bar._replace(direction=TURN) if bar.resource == names[-1] else bar
        for bar in _bars(forward_s, names, there, FORWARD)
    ]
    bars = forward + _bars(backward_s, ["downlink", *names[-3::-1]], back, BACKWARD)
    busy = {bar.resource for bar in bars}
    resources = [name for name in [*names, "downlink"] if name in busy]
    turned_s, finish_s = float(there.finish_s[-1, -1]), float(back.finish_s[-1, -1])
    return Step(index, cluster, micro_batches, resources, bars, turned_s, finish_s)


def _gpipe(
    forward_s: np.ndarray, backward_s: np.ndarray, micro_batches: int
) -> tuple[Events, Events]:
    """Events of both flows, the backward one after the forward one."""
    there = flow_events(jnp.asarray(forward_s), micro_batches)
    return there, flow_events(jnp.asarray(backward_s), micro_batches, there.finish_s[-1, -1])


def _one_f_one_b(
    forward_s: np.ndarray, backward_s: np.ndarray, micro_batches: int
) -> tuple[Events, Events]:
    """Events of both flows in turn; those of idle devices and hops do not matter."""
    by_stage_s = np.append(backward_s[::-1], 0.0)  # the decoder turns in its forward stage
    runs = np.flatnonzero((forward_s > 0) | (by_stage_s > 0))
    stages = jnp.asarray(forward_s[runs]), jnp.asarray(by_stage_s[runs])

    def spread(own_s: Array) -> np.ndarray:
        every_s = np.zeros((micro_batches, len(forward_s)))
        every_s[:, runs] = own_s
        return every_s

    there, back = jax.tree.map(spread, alternating_events(*stages, micro_batches))
    return there, jax.tree.map(lambda every_s: every_s[:, -2::-1], back)


def slowest_stage(record: RunRecord, index: int, cluster: int) -> str:
    """Name of the resource that serves a micro-batch longest in one direction.

    The cluster ran a pipeline in that round, ``index`` along the history's first axis.
    """
    names = _names_at(record, index, cluster)
    flows = [record.history[f"{way}_flow_s"][index, cluster] for way in ("forward", "backward")]
    every = [*names, "downlink", *names[-3::-1]]  # in the order of both flows
    return every[int(np.argmax(np.concatenate(flows)))]


def _names_at(record: RunRecord, index: int, cluster: int) -> list[str]:
    """Names of the stages of the forward flow of a cluster in a round."""
    gateways = record.history.get("gateway")
    forward_s = record.history["forward_flow_s"][index, cluster]
    return _names(forward_s, 0 if gateways is None else int(gateways[index, cluster]))


def _names(forward_s: np.ndarray, gateway: int) -> list[str]:
    """Names of the stages of the forward flow, ``[2 K + 4]``.

    A hop is named by the nodes it joins, the next active one included, at last the gateway; 0
    marks a device that is skipped.
    """
    end = f"device {gateway}" if gateway else "CU"
    devices = (len(forward_s) - 4) // 2
    active = [node for node in range(1, devices + 1) if forward_s[2 * node] > 0]
    names = []
    for node in range(devices + 1):
        following = next((f"device {other}" for other in active if other > node), end)
        sender = f"device {node}" if node else "CU"
        names += [sender if node else "control unit", f"{sender} ↔ {following}"]
    return [*names, "uplink", "decoder"]


def _bars(stage_s: np.ndarray, names: list[str], events: Events, direction: str) -> list[Bar]:
    """Bars of one flow, stages of time 0 left out."""
    start, finish = np.asarray(events.start_s), np.asarray(events.finish_s)
    return [
        Bar(name, direction, micro, float(start[micro, stage]), float(finish[micro, stage]))
        for stage, name in enumerate(names)
        if stage_s[stage] > 0
        for micro in range(len(start))
    ]


class ClientRound(NamedTuple):
    """Clients of a round, cluster by cluster."""

    number: int
    names: list[str]
    parts_s: np.ndarray  # by part, [clients, 4]; 0 for one that never ends


def has_clients(record: RunRecord) -> bool:
    """Whether a run's policy was a data-parallel one and anybody ever took part."""
    return "samples" in record.history and bool((record.history["samples"] > 0).any())


def client_round(record: RunRecord, round_number: int | None) -> ClientRound:
    """The clients that took part in a round; ``None`` is the last in which anybody did.

    Raises:
      InputError: no such round, or nobody took part.
    """
    if not has_clients(record):
        raise InputError("policy", record.policy, "the run has no clients", "Draw another run")
    takes_part = record.history["samples"] > 0
    if round_number is None:
        index = int(np.flatnonzero(takes_part.any(axis=(1, 2)))[-1])
    else:
        index = index_of_round(record, round_number)
    places = np.argwhere(takes_part[index])
    if not len(places):
        raise InputError("--round", round_number, "everybody sat out", "Choose another round")
    names = [f"cluster {cluster}, device {device + 1}" for cluster, device in places]
    if "control_unit_memory_bytes" in record.history:
        names = [f"cluster {cluster}, control unit" for cluster, _ in places]
    parts_s = record.history["client_parts_s"][index][takes_part[index]]
    return ClientRound(
        int(record.history["round"][index]), names, np.where(np.isfinite(parts_s), parts_s, 0.0)
    )
