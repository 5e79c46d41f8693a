"""Who has the lowest latency among the policies that keep the limits."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from collapipe_jax.core.statistics import median_reduction
from collapipe_jax.runs.results.limits import runnable
from collapipe_jax.runs.results.realisations import Realisations
from collapipe_jax.runs.studies.comparison import broken_limits, known, round_means, with_median


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
    value, *ends = map(known, median_reduction(ours, other))
    return {"value": value, "ci95": ends}


def _describe(
    result: Realisations,
    means: Mapping[str, Mapping[str, np.ndarray]],
    policy: str,
    tolerance: float,
) -> dict[str, Any]:
    """Latency and limits of one policy, and whether it qualifies."""
    broken = broken_limits(result, means, policy)
    over = {name: float(networks.mean()) for name, networks in broken.items()}
    over["any"] = float(np.any(list(broken.values()), axis=0).mean())
    part = float(result.policies[policy]["participation"].mean())
    latency = with_median(means[policy]["latency_s"])
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
