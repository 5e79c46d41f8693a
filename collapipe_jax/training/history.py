"""What a run remembers of its rounds: arrays by name, and one line of JSON a round."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from collapipe_jax.cost.latency import backward_flow_s, forward_flow_s
from collapipe_jax.federated.estimates import BoundConstants
from collapipe_jax.federated.learner import LearningReport
from collapipe_jax.files.atomic import write_text
from collapipe_jax.simulation.environment import SystemRound

History = dict[str, np.ndarray]
"""Metrics by name, first axis the rounds; empty before the first round."""

VIOLATED = "violated_"
"""How names of metrics start that tell whether a round broke a limit."""


def round_metrics(
    index: int, happened: SystemRound, learning: LearningReport
) -> dict[str, np.ndarray]:
    """All numbers of a round by name; shapes as in the structs they come from.

    Flows stand there where a pipeline ran, and what was decided under the policy's own names.
    """
    cost, decision = happened.cost, happened.decision
    metrics = {
        "round": np.int32(index),
        "latency_s": cost.latency_s,
        "compute_latency_s": cost.compute_latency_s,
        "cluster_latency_s": cost.cluster_latency_s,
        "parts_s": jnp.stack(cost.parts, axis=-1),
        "energy_j": cost.energy_j,
        "energy_queue": happened.queues.energy,
        "divergence": cost.divergence,
        "divergence_queue": happened.queues.divergence,
        "loss_probability": cost.loss_probability,
        "memory_bytes": cost.memory_bytes,
        "objective": cost.objective,
        "absent": cost.absent,
        "train_loss": learning.loss,
        "erased_fraction": learning.erased_fraction,
        "gradient_norm": learning.gradient_norm,
    }
    metrics |= {name: value for name, value in vars(decision).items() if name != "whole_model"}
    metrics |= {VIOLATED + name: broken for name, broken in happened.violations.items()}
    if cost.stages is not None:
        metrics["forward_flow_s"] = forward_flow_s(cost.stages)
        metrics["backward_flow_s"] = backward_flow_s(cost.stages)
    if cost.clients is not None:
        metrics["client_parts_s"] = jnp.stack(cost.clients, axis=-1)
    return {name: np.asarray(value) for name, value in jax.device_get(metrics).items()}


def clock_after(history: History, metrics: dict[str, np.ndarray]) -> np.ndarray:
    """Simulated time at the end of a round."""
    before = history["simulated_time_s"][-1] if history else np.float64(0.0)
    return np.float64(before + metrics["latency_s"])


def append_round(history: History, metrics: dict[str, np.ndarray]) -> History:
    """History with one more round."""
    rows = {name: np.asarray(value)[None] for name, value in metrics.items()}
    if not history:
        return rows
    return {name: np.concatenate([history[name], row]) for name, row in rows.items()}


def last_constants(history: History, rate: float) -> dict[str, Any]:
    """The bound's constants after the last round for a summary; nothing without estimates.

    Args:
      history: of the whole run.
      rate: clients' learning rate, for the step in units of the smoothness.
    """
    if "smoothness" not in history:
        return {}
    last = {name: float(history[name][-1]) for name in BoundConstants._fields}
    variance, heterogeneity = last["gradient_variance"], last["gradient_heterogeneity"]
    last["heterogeneity_over_variance"] = heterogeneity / variance if variance > 0.0 else None
    last["step_smoothness"] = rate * last["smoothness"]
    return {"bound_constants": last}


def write_metrics(path: Path, history: History) -> None:
    """Write the metrics file anew: lines after the newest checkpoint are to come again."""
    rounds = len(history["round"]) if history else 0
    lines = [
        metrics_line({name: values[i] for name, values in history.items()}) for i in range(rounds)
    ]
    write_text(path, "".join(lines))


def append_line(path: Path, metrics: dict[str, np.ndarray]) -> None:
    """Add one round to the metrics file."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(metrics_line(metrics))


def metrics_line(metrics: dict[str, np.ndarray]) -> str:
    """One round as a line of JSON, keys in order; what is not finite becomes ``null``."""

    def plain(value):
        if isinstance(value, list):
            return [plain(item) for item in value]
        return None if isinstance(value, float) and not np.isfinite(value) else value

    row = {name: plain(np.asarray(metrics[name]).tolist()) for name in sorted(metrics)}
    return json.dumps(row, allow_nan=False) + "\n"
