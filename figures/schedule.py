"""Bars of a Gantt chart: which resource serves which micro-batch, and when."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from collapipe_jax.cost.timeline import flow_events
from collapipe_jax.errors import InputError
from collapipe_jax.files.checkpoints import RunRecord

FORWARD, BACKWARD, TURN = "forward", "backward", "decoder"


class Bar(NamedTuple):
    """One service of one micro-batch.

    Attributes:
      resource: row of the chart.
      direction: ``FORWARD``, ``BACKWARD``, or ``TURN`` for the decoder, whose stage is both.
      micro_batch: from 0.
      start_s, finish_s: since the first local step began.
    """

    resource: str
    direction: str
    micro_batch: int
    start_s: float
    finish_s: float


class Step(NamedTuple):
    """First local step of a cluster in a round.

    Attributes:
      index: of the round along the history's first axis.
      cluster: from 0.
      micro_batches: ``M``.
      resources: rows from top to bottom, in the order of the forward flow, idle ones left
        out; the downlink is last.
      bars: services, both directions.
      turned_s: when the last micro-batch leaves the decoder and the backward flow starts.
      finish_s: when the step ends, docs/system-model.md (12).
    """

    index: int
    cluster: int
    micro_batches: int
    resources: list[str]
    bars: list[Bar]
    turned_s: float
    finish_s: float


def runs_pipeline(record: RunRecord) -> np.ndarray:
    """Which clusters ran a pipeline in which rounds, ``[R, N]``.

    None where a cluster sat out, and nowhere under a data-parallel policy.
    """
    if "forward_flow_s" not in record.history:
        return np.zeros(record.history["cluster_latency_s"].shape, bool)
    flow_s = np.concatenate(
        [record.history["forward_flow_s"], record.history["backward_flow_s"]], axis=-1
    )
    return (flow_s > 0).any(axis=-1) & np.isfinite(flow_s).all(axis=-1)


def pick(record: RunRecord, round_number: int | None, cluster: int | None) -> tuple[int, int]:
    """Which round and cluster to draw.

    Args:
      record: run.
      round_number: as in the run's history; ``None`` takes the last that has a pipeline.
      cluster: from 0; ``None`` takes the slowest of the round.

    Returns:
      Index of the round along the history's first axis, and the cluster.

    Raises:
      InputError: no such round or cluster, or it ran no pipeline.
    """
    runs, rounds = runs_pipeline(record), record.history["round"]
    if not runs.any():
        raise InputError(
            "policy", record.policy, "no round of this run has a pipeline", "Draw another run"
        )
    if cluster is not None and not 0 <= cluster < runs.shape[1]:
        remedy = f"Choose one of 0 to {runs.shape[1] - 1}"
        raise InputError("--cluster", cluster, "the run has no such cluster", remedy)
    eligible = runs if cluster is None else runs[:, [cluster]]
    if round_number is None:
        index = int(np.max(np.nonzero(eligible.any(axis=1))[0], initial=-1))
    elif round_number in rounds:
        index = int(np.nonzero(rounds == round_number)[0][0])
    else:
        remedy = f"Choose one of {rounds[0]} to {rounds[-1]}"
        raise InputError("--round", round_number, "the run has no such round", remedy)
    if index < 0 or not eligible[index].any():
        key, value = ("--cluster", cluster) if cluster is not None else ("--round", round_number)
        raise InputError(key, value, "it sat out", "Choose another round or cluster")
    if cluster is None:
        latency_s = np.where(runs[index], record.history["cluster_latency_s"][index], -np.inf)
        cluster = int(np.argmax(latency_s))
    return index, cluster


def first_step(record: RunRecord, index: int, cluster: int) -> Step:
    """Place every micro-batch of the first local step on the resources it passes.

    The backward flow starts when the last micro-batch has left the decoder.

    Source: docs/system-model.md (12).

    Args:
      record: run.
      index: of the round along the history's first axis.
      cluster: a cluster that ran a pipeline in that round.
    """
    forward_s = record.history["forward_flow_s"][index, cluster]
    backward_s = record.history["backward_flow_s"][index, cluster]
    micro_batches = int(record.history["micro_batches"][index, cluster])
    names = _names(forward_s)
    forward, turned_s = _flow_bars(forward_s, names, micro_batches, 0.0, FORWARD)
    forward = [
        bar._replace(direction=TURN) if bar.resource == names[-1] else bar for bar in forward
    ]
    chain = ["downlink", *names[-3::-1]]
    backward, finish_s = _flow_bars(backward_s, chain, micro_batches, turned_s, BACKWARD)
    bars = forward + backward
    busy = {bar.resource for bar in bars}
    resources = [name for name in [*names, "downlink"] if name in busy]
    return Step(index, cluster, micro_batches, resources, bars, turned_s, finish_s)


def _names(forward_s: np.ndarray) -> list[str]:
    """Names of the stages of the forward flow, ``[2 K + 4]``.

    A hop is named by the nodes it joins, the next active one included; 0 marks a device
    that is skipped.
    """
    devices = (len(forward_s) - 4) // 2
    active = [node for node in range(1, devices + 1) if forward_s[2 * node] > 0]
    names = []
    for node in range(devices + 1):
        following = next((f"device {other}" for other in active if other > node), "CU")
        sender = f"device {node}" if node else "CU"
        names += [sender if node else "control unit", f"{sender} ↔ {following}"]
    return [*names, "uplink", "decoder"]


def _flow_bars(
    stage_s: np.ndarray, names: list[str], micro_batches: int, start_s: float, direction: str
) -> tuple[list[Bar], float]:
    """Bars of one flow, stages of time 0 left out, and when it ends."""
    events = flow_events(jnp.asarray(stage_s), micro_batches, start_s)
    start, finish = np.asarray(events.start_s), np.asarray(events.finish_s)
    bars = [
        Bar(name, direction, micro, float(start[micro, stage]), float(finish[micro, stage]))
        for stage, name in enumerate(names)
        if stage_s[stage] > 0
        for micro in range(micro_batches)
    ]
    return bars, float(finish[-1, -1])
