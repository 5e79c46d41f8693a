"""Comparisons: all policies on the same networks, under the same fading; no learning."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.statistics import (
    mean_interval,
    median_estimate,
    median_reduction,
    reduction_percent,
)
from collapipe_jax.edge.cost.convergence import assured_step, descent_rounds
from collapipe_jax.edge.cost.feasibility import can_run
from collapipe_jax.edge.environment import reset
from collapipe_jax.edge.system import SystemParams
from collapipe_jax.runs.results.experiment import Variable
from collapipe_jax.runs.results.realisations import (
    DIVERGENCE_LIMIT,
    ENERGY_LIMIT,
    Realisations,
    runnable,
)
from collapipe_jax.runs.studies.montecarlo import label_realisations

METRICS = ("latency_s", "compute_latency_s", "device_memory_bytes", "energy_j", "divergence")
"""Quantities of a round that comparisons average."""
OURS = "dssra"


def networks(
    keys: Array, rows: Array, params: SystemParams, options: Mapping[str, Any]
) -> dict[str, Variable]:
    """Limits and reference latency of networks."""
    del options
    return {
        name: label_realisations(variable)
        for name, variable in _network(keys, params, rows).items()
    }


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, None, 0))
def _network(key: Array, params: SystemParams, row: Array) -> dict[str, Variable]:
    problem = reset(key, params, row).system.mean_problem
    control = problem.control
    return {
        "reference_latency_s": Variable("", control.reference_latency_s),
        "can_run": Variable("cluster", can_run(problem)),
        "energy_budget_j": Variable("cluster node", control.energy_budget_j),
        "divergence_target": Variable("", control.divergence_target),
        "memory_limit_bytes": Variable("cluster device", problem.compute.memory_bytes),
    }


def summarise(result: Realisations) -> dict[str, Any]:
    """Means, violations and paired reductions, as plain values for a JSON file.

    ``reduction_percent`` is the saving of ``dssra`` over another policy in the same network,
    in percent of that policy; empty without ``dssra``. ``keeps_limits`` is the share of networks
    in which a policy breaks no limit, and ``fastest`` the share in which it has the least mean
    latency of all that break none.

    Raises:
      InputError: if the rounds lack what ``descent_s`` needs.
    """
    kept = runnable(result.networks)
    result = result.only(kept)
    means = round_means(result)
    policies = {name: _policy_summary(result, means, name) for name in means}
    for name, wins in _wins(result, means).items():
        policies[name] |= wins
    return {
        "rounds": result.rounds,
        "realisations": int(kept.sum()),
        "realisations_left_out": int((~kept).sum()),
        "policies": policies,
        "reduction_percent": _reductions(means) if OURS in means else {},
    }


def round_means(result: Realisations) -> dict[str, dict[str, np.ndarray]]:
    """Means over the rounds by policy and metric, ``[R]``; infinite ones stay.

    ``divergence_over_target`` comes on top of :data:`METRICS`.
    """
    means = {}
    for policy, values in result.policies.items():
        own = {name: values[name].astype(np.float64).mean(axis=1) for name in METRICS}
        own["divergence_over_target"] = own["divergence"] / result.networks["divergence_target"]
        means[policy] = own
    return means


def _broken_limits(
    result: Realisations, means: Mapping[str, Mapping[str, np.ndarray]], policy: str
) -> dict[str, np.ndarray]:
    """Networks in which a policy breaks a limit, by limit, booleans ``[R]``.

    ``memory`` of a node and ``server_memory`` in some round; ``energy`` of some node and
    ``divergence`` in the mean over the rounds, by more than 1 %. :func:`round_means` gives
    ``means``.
    """
    values = result.policies[policy]
    return {
        "memory": values["violated.memory"] > 0,
        "server_memory": _over_server(values) > 0,
        "energy": np.any(_energy_over_budget(result, policy) > ENERGY_LIMIT, axis=(1, 2)),
        "divergence": means[policy]["divergence_over_target"] > DIVERGENCE_LIMIT,
    }


def _over_server(values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Rounds over the edge server's memory ``[R]``; earlier versions had no such limit."""
    return values.get("violated.server_memory", np.zeros_like(values["violated.memory"]))


def _breaks_any(broken: Mapping[str, np.ndarray]) -> np.ndarray:
    """Networks in which a policy breaks some limit."""
    return np.any(list(broken.values()), axis=0)


def _wins(
    result: Realisations, means: Mapping[str, Mapping[str, np.ndarray]]
) -> dict[str, dict[str, float]]:
    """Shares of networks in which each policy keeps all limits, and is the fastest that does."""
    names = list(means)
    keeps = ~np.array([_breaks_any(_broken_limits(result, means, name)) for name in names])
    latency_s = np.where(keeps, [means[name]["latency_s"] for name in names], np.inf)
    finite = np.isfinite(latency_s.min(axis=0))
    first = np.where(finite, latency_s.argmin(axis=0), -1)
    count = max(first.size, 1)
    return {
        name: {"keeps_limits": keeps[i].sum() / count, "fastest": (first == i).sum() / count}
        for i, name in enumerate(names)
    }


def _energy_over_budget(result: Realisations, policy: str) -> np.ndarray:
    """Mean energy of every node over its budget, ``[R, N, K + 1]``."""
    return result.policies[policy]["mean_energy_j"] / result.networks["energy_budget_j"]


def _policy_summary(
    result: Realisations, means: Mapping[str, Mapping[str, np.ndarray]], policy: str
) -> dict[str, Any]:
    values, own = result.policies[policy], means[policy]
    summary: dict[str, Any] = {name: _with_median(own[name]) for name in METRICS}
    summary["descent_s"] = _with_median(_descent_s(result, policy))
    for name in ("participation", "active_devices", "micro_batches", "loss_probability"):
        summary[name] = _with_median(values[name].mean(axis=1))
    held = values["blocks_held"].astype(np.float64)  # nodes that took part, by their blocks
    count, takes_part = held.sum(axis=1), values["participation"].max(axis=1) > 0
    with np.errstate(invalid="ignore"):
        mean = held @ np.arange(held.shape[1]) / count
    # Clusters without blocks take part where the edge server holds all.
    summary["blocks"] = _with_median(np.where(takes_part & (count == 0), 0.0, mean))
    if "mode" in values:
        modes, chosen = result.settings["config"]["policy"]["modes"], values["mode"]
        summary["modes"] = {mode: float((chosen == n).mean()) for n, mode in enumerate(modes)}
    energy, divergence = _energy_over_budget(result, policy), own["divergence_over_target"]
    return summary | {"violations": _violations(values, energy, divergence, result.rounds)}


def _descent_s(result: Realisations, policy: str) -> np.ndarray:
    """Seconds for a unit of descent, ``[R]``: latency times :func:`.descent_rounds`.

    Means are over rounds with participants, since no other takes a step; infinite without any.
    """
    values, config = result.policies[policy], result.settings["config"]
    if "absence_ratio" not in values:
        problem = "an earlier version compared it, without the absence_ratio of its rounds"
        raise InputError("policy", policy, problem, "Compare again in another workdir")
    steps = values["participation"] > 0

    def mean(by_round: np.ndarray) -> np.ndarray:
        total = by_round.sum(axis=1, where=steps, dtype=np.float64)
        return total / np.maximum(steps.sum(axis=1), 1)

    learning, ratio = config["learning"], values["absence_ratio"]
    variance, heterogeneity = learning["gradient_variance"], learning["gradient_heterogeneity"]
    divergence = (1.0 + ratio) ** 2 * values["divergence"]
    if learning["bound"] == "one_step":
        batch, largest = config["training"]["batch"], jnp.asarray(divergence.max(axis=1))
        longest, reference = assured_step(variance, heterogeneity, batch, largest), 1.0
    else:
        longest = reference = learning["step_smoothness"]
    rounds = descent_rounds(
        jnp.asarray(mean(divergence)),
        jnp.asarray(result.networks["divergence_target"]),
        jnp.asarray(mean(ratio**2) * heterogeneity),
        longest,
        reference,
    )
    seconds = mean(values["latency_s"]) * np.asarray(rounds, np.float64)
    return np.where(steps.any(axis=1), seconds, np.inf)


def _with_median(values: np.ndarray) -> dict[str, Any]:
    """Mean with the half width of its interval; median with the ends of its own, both of 95 %."""
    median, low, high = median_estimate(values) if values.size else (np.nan,) * 3
    ends = [_known(low), _known(high)]
    return mean_interval(values) | {"median": _known(median), "median_ci95": ends}


def _known(value: Any) -> float | None:
    """A number as a plain float; None if it is infinite or unknown."""
    return float(value) if np.isfinite(value) else None


def _violations(
    values: Mapping[str, np.ndarray], energy: np.ndarray, divergence: np.ndarray, rounds: int
) -> dict[str, float]:
    """How often limits are broken, and how badly.

    Of limits of a round the share of all rounds; of long-term ones the share of nodes, or of
    networks, whose mean over the rounds is above by more than 1 %, and the worst mean.
    """
    shares = {
        name.removeprefix("violated."): count.mean() / rounds
        for name, count in values.items()
        if name.startswith("violated.")
    }
    shares |= {
        "server_memory": _over_server(values).mean() / rounds,
        "energy": (energy > ENERGY_LIMIT).mean(),
        "networks_over_energy": (energy > ENERGY_LIMIT).any(axis=(1, 2)).mean(),
        "worst_energy_over_budget": energy.max(initial=0.0),
        "divergence": (divergence > DIVERGENCE_LIMIT).mean(),
        "worst_divergence_over_target": divergence.max(initial=0.0),
        "absent": values["absent_rounds"].mean() / rounds,
    }
    return {name: float(value) for name, value in shares.items()}


def _reductions(means: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Any]:
    return {
        metric: {
            name: _with_median(reduction_percent(means[OURS][metric], other[metric]))
            for name, other in means.items()
            if name != OURS
        }
        for metric in METRICS
    }


# Who has the lowest latency among the policies that keep the limits.


def find_winner(result: Realisations, tolerance: float) -> dict[str, Any]:
    """The winner of a comparison and its lead, as plain values for a JSON file.

    A policy qualifies if the share of networks where it breaks a limit of
    :func:`.broken_limits` is at most ``tolerance``, its mean participation is at least 1 less
    ``tolerance``, and its median latency is finite. The winner has the lowest median, the
    runner-up the second lowest. ``margin_percent`` is by how much, with a bootstrap interval;
    ``faster_share`` is the share of networks in which the winner has the lower latency of the
    two. Networks in which no cluster can run are left out.
    """
    kept = runnable(result.networks)
    found = {"networks": int(kept.sum()), "networks_left_out": int((~kept).sum())}
    result = result.only(kept)
    means = round_means(result)
    policies = {name: _describe(result, means, name, tolerance) for name in means if kept.any()}
    able = [name for name, policy in policies.items() if policy["qualifies"]]
    ranked = sorted(able, key=lambda name: policies[name]["latency_s"]["median"])
    winner, runner_up = [*ranked, None, None][:2]
    own = {"winner": winner, "runner_up": runner_up, "margin_percent": None, "faster_share": None}
    if winner is not None and runner_up is not None:
        ours, other = means[winner]["latency_s"], means[runner_up]["latency_s"]
        own |= {
            "margin_percent": _margin(ours, other),
            "faster_share": np.mean(ours < other).item(),
        }
    return {**found, **own, "policies": policies}


def _margin(ours: np.ndarray, other: np.ndarray) -> dict[str, Any]:
    """Saving of the median with the ends of its interval; None where infinite."""
    value, *ends = map(_known, median_reduction(ours, other))
    return {"value": value, "ci95": ends}


def _describe(
    result: Realisations,
    means: Mapping[str, Mapping[str, np.ndarray]],
    policy: str,
    tolerance: float,
) -> dict[str, Any]:
    """Latency and limits of one policy, and whether it qualifies."""
    broken = _broken_limits(result, means, policy)
    over = {name: float(networks.mean()) for name, networks in broken.items()}
    over["any"] = float(_breaks_any(broken).mean())
    part = float(result.policies[policy]["participation"].mean())
    latency = _with_median(means[policy]["latency_s"])
    qualifies = over["any"] <= tolerance and part >= 1.0 - tolerance
    return {
        "latency_s": latency,
        "networks_over": over,
        "participation": part,
        "qualifies": qualifies and latency["median"] is not None,
    }


def margin_text(cell: Mapping[str, Any]) -> str:
    """Margin of a winner, after a ~ where it is not decided, and in which share of networks."""
    margin = cell["margin_percent"]
    if margin is None:
        return "alone"
    value = "?" if margin["value"] is None else f"{margin['value']:.0f}"
    sign = "" if (margin["ci95"][0] or 0.0) > 0.0 else "~"
    return f"{sign}{value} %, {100 * cell['faster_share']:.0f} %"
