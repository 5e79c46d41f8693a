"""Constants of a training run for the figures, and its summary."""

from typing import Any

import numpy as np

from collapipe_jax.config.experiment import Experiment
from collapipe_jax.models.layers import Params
from collapipe_jax.training.history import VIOLATED, Arrays, last_constants


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


def summarise(experiment: Experiment, params: Params, history: Arrays) -> dict[str, Any]:
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
            name.removeprefix(VIOLATED): int(history[name].sum())
            for name in sorted(history)
            if name.startswith(VIOLATED)
        },
        "rounds_with_absent_clusters": int(history["absent"].any(axis=1).sum()),
        **last_constants(history, experiment.config["training"]["client_learning_rate"]),
    }
