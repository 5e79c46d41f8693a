"""A training run in memory, and what follows from it: labels, limits, parts of time."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict

from collapipe_jax.core.statistics import running_mean


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
