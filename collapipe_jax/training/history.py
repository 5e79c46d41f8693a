"""Metrics of the rounds of a run, constants that the figures draw beside them, and its summary."""

import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from collapipe_jax.config.experiment import Experiment
from collapipe_jax.federated.estimates import BoundConstants
from collapipe_jax.federated.learner import LearningReport
from collapipe_jax.files.atomic import finite
from collapipe_jax.models.layers import Params
from collapipe_jax.simulation.environment import SystemRound

Metrics = dict[str, Any]
"""Numbers and arrays of NumPy of one round by name."""

_VIOLATED = "violated_"  # prefix of metrics that tell whether a round broke a limit


class History:
    """Metrics of all rounds so far; appending one takes constant time.

    Args:
      arrays: metrics of the rounds before by name, first axis the rounds; empty at the start.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self.rounds: list[Metrics] = []
        self._energy_j = 0.0
        for values in zip(*arrays.values(), strict=True):
            self.append(dict(zip(arrays, values, strict=True)))

    def append(self, metrics: Metrics) -> None:
        """Add one round."""
        self.rounds.append(metrics)
        self._energy_j = self._energy_j + metrics["energy_j"]

    def arrays(self) -> dict[str, np.ndarray]:
        """Metrics of all rounds by name, first axis the rounds."""
        if not self.rounds:
            return {}
        return {name: np.stack([row[name] for row in self.rounds]) for name in self.rounds[-1]}

    @property
    def simulated_time_s(self) -> np.float64:
        """Simulated time at the end of the last round."""
        return self.rounds[-1]["simulated_time_s"] if self.rounds else np.float64(0.0)

    @property
    def mean_energy_j(self) -> np.ndarray:
        """Energy of every node, mean over the rounds, ``[N, K + 1]``."""
        return np.asarray(self._energy_j / len(self.rounds))

    @property
    def last_score(self) -> float:
        """The newest validation score; not a number before the first."""
        scores = (float(row["score"]) for row in reversed(self.rounds))
        return next((score for score in scores if np.isfinite(score)), np.nan)


def round_metrics(index: int, happened: SystemRound, learning: LearningReport) -> Metrics:
    """All numbers of a round by name; shapes as in the structs they come from.

    A pipeline's round has its flows, and every decision its own names.
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
    metrics |= {_VIOLATED + name: broken for name, broken in happened.violations.items()}
    if cost.flows is not None:
        metrics["forward_flow_s"] = cost.flows.forward_s
        metrics["backward_flow_s"] = cost.flows.backward_s
    if cost.clients is not None:
        metrics["client_parts_s"] = jnp.stack(cost.clients, axis=-1)
    return {name: np.asarray(value) for name, value in jax.device_get(metrics).items()}


def metrics_line(metrics: Metrics) -> str:
    """One round as a line of JSON, keys in order; numbers that are not finite become null."""
    row = {name: np.asarray(metrics[name]).tolist() for name in sorted(metrics)}
    return json.dumps(finite(row), allow_nan=False) + "\n"


def run_constants(experiment: Experiment) -> dict[str, np.ndarray]:
    """Budgets, limits and baselines, which the figures draw as lines."""
    problem = experiment.system.mean_problem
    return {
        "energy_budget_j": np.asarray(problem.control.energy_budget_j),
        "divergence_target": np.asarray(problem.control.divergence_target),
        "memory_limit_bytes": np.asarray(problem.compute.memory_bytes),
        "reference_latency_s": np.asarray(problem.control.reference_latency_s),
        "baseline_score": np.asarray(experiment.objective.baseline_score(), np.float32),
    }


def summarise(
    experiment: Experiment, params: Params, history: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Final scores on the test set and means over the rounds, as plain numbers."""
    control = experiment.system.mean_problem.control
    budget_j, target = np.asarray(control.energy_budget_j), np.asarray(control.divergence_target)
    return {
        "policy": experiment.config["policy"]["name"],
        **experiment.objective.test(params),
        "simulated_time_s": float(history["simulated_time_s"][-1]),
        "mean_latency_s": float(history["latency_s"].mean()),
        "mean_compute_latency_s": float(history["compute_latency_s"].mean()),
        "mean_energy_j": float(history["energy_j"].sum(axis=(1, 2)).mean()),
        "worst_energy_over_budget": float((history["energy_j"].mean(axis=0) / budget_j).max()),
        "mean_divergence_over_target": float(history["divergence"].mean() / target),
        "peak_device_memory_bytes": float(history["memory_bytes"].max()),
        "violated_rounds": {
            name.removeprefix(_VIOLATED): int(history[name].sum())
            for name in sorted(history)
            if name.startswith(_VIOLATED)
        },
        "rounds_with_absent_clusters": int(history["absent"].any(axis=1).sum()),
        **last_constants(history, experiment.config["training"]["client_learning_rate"]),
    }


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
