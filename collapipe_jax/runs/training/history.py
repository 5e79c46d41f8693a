"""Metrics of the rounds of a run, constants that the figures draw beside them, and its summary."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from collapipe_jax.core.files import append_line, finite
from collapipe_jax.core.quantity import quantities
from collapipe_jax.edge.cost.decision import Decision
from collapipe_jax.edge.cost.round_cost import RoundCost
from collapipe_jax.edge.environment import SystemRound
from collapipe_jax.learning.federated.bound_constants import BoundConstants
from collapipe_jax.learning.federated.learner import LearningReport
from collapipe_jax.learning.models.config import PAD_ID
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.models.split_model import Batch
from collapipe_jax.runs.config.experiment import Experiment
from collapipe_jax.runs.config.system import cuts_of

Metrics = dict[str, Any]
"""Numbers and arrays of NumPy of one round by name."""

_VIOLATED = "violated_"  # prefix of metrics that tell whether a round broke a limit


class History:
    """Metrics of the rounds so far; only those that no checkpoint has are kept.

    Args:
      arrays: metrics of the rounds before by name, first axis the rounds; empty at the start.
      merit: of a validation score, as ``Task.merit``.

    Attributes:
      done: number of rounds.
      last: metrics of the last round.
      energy_j: of every node, sum over the rounds, ``[N, K + 1]``.
      simulated_time_s: at the end of the last round.
      last_score: the newest validation score; not a number before the first.
      best_merit: that of the best one, minus infinity before the first.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], merit: Callable[[float], float] = float):
        self.done, self.last, self._merit = 0, Metrics(), merit
        self._rounds: list[Metrics] = []
        self.energy_j, self.simulated_time_s = 0.0, np.float64(0.0)
        self.last_score, self.best_merit = np.nan, -np.inf
        for values in zip(*arrays.values(), strict=True):
            self.append(dict(zip(arrays, values, strict=True)))

    def append(self, metrics: Metrics) -> None:
        """Add one round."""
        self.last, self.done = metrics, self.done + 1
        self._rounds.append(metrics)
        self.energy_j = self.energy_j + metrics["energy_j"]
        self.simulated_time_s = metrics["simulated_time_s"]
        if np.isfinite(metrics["score"]):
            self.last_score = float(metrics["score"])
            self.best_merit = max(self.best_merit, self._merit(self.last_score))

    def pop(self) -> dict[str, np.ndarray]:
        """Metrics of the rounds since the last call by name, first axis the rounds."""
        rounds, self._rounds = self._rounds, []
        return {name: np.stack([row[name] for row in rounds]) for name in self.last if rounds}


def round_metrics(index: int, happened: SystemRound, learning: LearningReport) -> Metrics:
    """All numbers of a round by name; shapes as in the structs they come from.

    A pipeline's round has its flows, and every decision its own names. Arrays are NumPy's.
    """
    cost, decision = happened.cost, happened.decision
    metrics = {name: getattr(cost, name) for name in (*quantities(RoundCost), "absent")} | {
        "round": np.int32(index),
        "parts_s": np.stack(cost.parts, axis=-1),
        "energy_queue": happened.queues.energy,
        "divergence_queue": happened.queues.divergence,
        "train_loss": learning.loss,
        "erased_fraction": learning.erased_fraction,
        "gradient_norm": learning.gradient_norm,
    }
    other = ("whole_model", "broadcast", "tier", "routes")
    metrics |= {name: value for name, value in vars(decision).items() if name not in other}
    if isinstance(decision, Decision) and decision.routes is not None:
        metrics |= vars(decision.routes)
    if cost.control_unit_memory_bytes is not None:
        metrics["control_unit_memory_bytes"] = cost.control_unit_memory_bytes
    if learning.secure is not None:
        metrics |= {f"secure_{name}": value for name, value in learning.secure._asdict().items()}
    metrics |= {_VIOLATED + name: broken for name, broken in happened.violations.items()}
    if cost.flows is not None:
        metrics["forward_flow_s"] = cost.flows.forward_s
        metrics["backward_flow_s"] = cost.flows.backward_s
    if cost.clients is not None:
        metrics["client_parts_s"] = np.stack(cost.clients, axis=-1)
    return {name: np.asarray(value) for name, value in metrics.items()}


def metrics_line(metrics: Metrics) -> str:
    """One round as a line of JSON, keys in order; numbers that are not finite become null."""
    row = {name: np.asarray(metrics[name]).tolist() for name in sorted(metrics)}
    return json.dumps(finite(row), allow_nan=False) + "\n"


def run_constants(experiment: Experiment) -> dict[str, np.ndarray]:
    """Budgets, limits and baselines, which figures draw as lines, and where the encoder is cut."""
    problem = experiment.system.mean_problem
    return {
        "energy_budget_j": np.asarray(problem.control.energy_budget_j),
        "divergence_target": np.asarray(problem.control.divergence_target),
        "memory_limit_bytes": np.asarray(problem.compute.memory_bytes),
        "reference_latency_s": np.asarray(problem.control.reference_latency_s),
        "baseline_score": np.asarray(experiment.task.trivial_score(), np.float32),
        "server_blocks": np.asarray(experiment.server_blocks),
    }


def summarise(
    experiment: Experiment, params: Params, history: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Final scores on the test set and means over the rounds, as plain numbers."""
    control = experiment.system.mean_problem.control
    budget_j, target = np.asarray(control.energy_budget_j), np.asarray(control.divergence_target)
    return {
        "policy": experiment.config["policy"]["name"],
        **experiment.task.test(params),
        "simulated_time_s": float(history["simulated_time_s"][-1]),
        "mean_latency_s": float(history["latency_s"].mean()),
        "mean_compute_latency_s": float(history["compute_latency_s"].mean()),
        "mean_energy_j": float(history["energy_j"].sum(axis=(1, 2)).mean()),
        "worst_energy_over_budget": float((history["energy_j"].mean(axis=0) / budget_j).max()),
        "mean_divergence_over_target": float(history["divergence"].mean() / target),
        # Of control units, where they train in the place of devices.
        "peak_device_memory_bytes": float(
            history.get("control_unit_memory_bytes", history["memory_bytes"]).max()
        ),
        "participation": float(1.0 - _left_out(history).mean()),
        "violated_rounds": {
            name.removeprefix(_VIOLATED): int(history[name].sum())
            for name in sorted(history)
            if name.startswith(_VIOLATED)
        },
        "untrained_rounds": untrained_rounds(history),
        "rounds_with_absent_clusters": int(history["absent"].any(axis=1).sum()),
        **_decided_cut(experiment),
        **_failed_rounds(history),
        **_privacy(experiment, len(history["score"])),
        **_scored_round(experiment, history),
        **last_constants(history, experiment.config["training"]["client_learning_rate"]),
    }


def untrained_rounds(history: Mapping[str, np.ndarray]) -> int:
    """Rounds in which nobody took part, or every message of those who did was lost."""
    return int(np.sum(~(history["erased_fraction"] < 1.0)))


def _decided_cut(experiment: Experiment) -> dict[str, int]:
    """Blocks at the edge server, where the first round decides them."""
    if cuts_of(experiment.config, experiment.config["policy"]["name"]) is None:
        return {}
    return {"server_blocks": experiment.server_blocks}


def _failed_rounds(history: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Rounds with participants that secure aggregation lost; empty without it."""
    if "secure_failed" not in history:
        return {}
    return {"failed_aggregations": int((history["secure_failed"] > 0.0).sum())}


def _scored_round(experiment: Experiment, history: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """What the configuration adds: the round of the best score, and the clusters' scores then."""
    scores, found = history["score"], dict[str, Any]()
    scored = len(scores) - 1
    if experiment.config["evaluation"]["keep_best"] and np.isfinite(scores).any():
        scored = found["best_round"] = int(np.nanargmax(experiment.task.merit(scores)))
    if "cluster_scores" in history:
        found["cluster_scores"] = history["cluster_scores"][scored].tolist()
    return found


def _privacy(experiment: Experiment, rounds: int) -> dict[str, Any]:
    """What a run of so many rounds has spent; empty without privacy."""
    if (account := experiment.account) is None:
        return {}
    spent = {
        "unit": account.unit,
        "epsilon": account.epsilon(rounds),
        "delta": account.delta,
        "noise_multiplier": account.noise_multiplier,
        "releases": float(account.releases[rounds - 1]),
    }
    return {"privacy": spent}


def _left_out(history: Mapping[str, np.ndarray]) -> np.ndarray:
    """Clusters or clients, by round, that do not take part."""
    return history["samples"] == 0 if "samples" in history else history["absent"]


def last_constants(history: Mapping[str, np.ndarray], rate: float) -> dict[str, Any]:
    """The bound's constants after the last round for a summary; empty without estimates.

    The clients' learning ``rate`` gives the step in units of the smoothness.
    """
    if "smoothness" not in history:
        return {}
    last: dict[str, Any] = {name: float(history[name][-1]) for name in BoundConstants._fields}
    variance, heterogeneity = last["gradient_variance"], last["gradient_heterogeneity"]
    last["heterogeneity_over_variance"] = heterogeneity / variance if variance > 0.0 else None
    last["step_smoothness"] = rate * last["smoothness"]
    return {"bound_constants": last}


_SPEED = "speed.jsonl"


def count_tokens(batches: Batch) -> int:
    """Tokens that the encoder reads, without padding."""
    return int(np.count_nonzero(np.asarray(jax.tree.leaves(batches)[0]) != PAD_ID))


def log_speed(folder: Path, done: int, rounds: int, seconds: float, tokens: int) -> None:
    """Add a line to ``speed.jsonl``.

    Args:
      folder: workdir of a run.
      done: rounds of the run so far.
      rounds: of them, those of this call.
      seconds: wall time of the call. Runs that train together share it.
      tokens: in these rounds, without padding.
    """
    row = {
        "round": done - 1,
        "rounds": rounds,
        "wall_time_s": round(seconds, 6),
        "tokens_per_s": round(tokens / seconds, 1),
        "device": jax.devices()[0].device_kind,
    }
    append_line(folder / _SPEED, json.dumps(row, allow_nan=False) + "\n")
