"""The winner of a comparison, against networks whose winner is known."""

import numpy as np
import pytest

from collapipe_jax.runs.results.realisations import Case, Realisations
from collapipe_jax.runs.studies.comparison import find_winner, margin_text

NETWORKS = 20


def values(latency_s, over_memory=0, over_energy=0, over_divergence=0, part=1.0):
    """A policy that breaks limits in the first networks, one round each."""
    first = np.arange(NETWORKS)[:, None]
    column = np.ones((NETWORKS, 1))
    return {
        "latency_s": latency_s * column,
        **dict.fromkeys(("compute_latency_s", "device_memory_bytes", "energy_j"), column),
        "divergence": np.where(first < over_divergence, 2.0, 1.0),
        "participation": part * column,
        "violated.memory": (first < over_memory)[:, 0],
        "mean_energy_j": np.where(first < over_energy, 2.0, 1.0)[..., None],
    }


def comparison(runs=NETWORKS, **policies):
    drawn = {
        "reference_latency_s": np.ones(NETWORKS),
        "can_run": (np.arange(NETWORKS) < runs)[:, None],
        "energy_budget_j": np.ones((NETWORKS, 1, 1)),
        "divergence_target": np.ones(NETWORKS),
    }
    cases = [Case(name, 3.0, own) for name, own in policies.items()]
    return Realisations({"options": {"rounds": 1}}, drawn, cases)


def test_the_lowest_median_wins_and_the_margin_is_the_saving():
    found = find_winner(comparison(slow=values(4.0), fast=values(1.0), mid=values(2.0)), 0.0)
    assert (found["winner"], found["runner_up"]) == ("fast", "mid")
    assert found["margin_percent"] == {"value": 50.0, "ci95": [50.0, 50.0]}
    assert margin_text(found) == "50 %, 100 %"


@pytest.mark.parametrize("limit", ["over_memory", "over_energy", "over_divergence"])
def test_who_breaks_a_limit_in_too_many_networks_cannot_win(limit):
    result = comparison(fast=values(1.0, **{limit: 5}), slow=values(2.0))
    assert find_winner(result, 0.25)["winner"] == "fast"
    assert find_winner(result, 0.24)["winner"] == "slow"
    over = find_winner(result, 0.24)["policies"]["fast"]["networks_over"]
    assert over[limit.removeprefix("over_")] == over["any"] == 0.25


def test_networks_over_different_limits_add_up():
    broken = values(1.0, over_energy=3)
    broken["violated.memory"] = np.arange(NETWORKS) >= NETWORKS - 3
    found = find_winner(comparison(fast=broken), 0.2)
    assert found["policies"]["fast"]["networks_over"]["any"] == 0.3
    assert found["winner"] is None


def test_who_leaves_clusters_out_cannot_win():
    result = comparison(idle=values(0.1, part=0.5), slow=values(2.0))
    assert find_winner(result, 0.4)["winner"] == "slow"
    assert margin_text(find_winner(result, 0.4)) == "alone"
    assert find_winner(result, 0.5)["winner"] == "idle"


def test_nobody_wins_without_a_finite_median_or_a_network_that_runs():
    assert find_winner(comparison(endless=values(np.inf)), 0.5)["winner"] is None
    found = find_winner(comparison(runs=0, fast=values(1.0)), 0.5)
    assert (found["winner"], found["networks"], found["networks_left_out"]) == (None, 0, NETWORKS)


def test_a_winner_by_the_median_may_lose_most_networks():
    one, other = values(1.0), values(10.0)
    one["latency_s"][9:, 0] = np.arange(2.0, 13.0)  # the slower one here
    other["latency_s"][9:] = one["latency_s"][9:] - 0.1
    found = find_winner(comparison(one=one, other=other), 0.0)
    assert (found["winner"], found["faster_share"]) == ("one", 0.45)
    assert found["margin_percent"]["value"] == 75.0  # medians of 2.5 and 10


def test_an_endless_network_counts_as_lost():
    one, other = values(1.0), values(2.0)
    one["latency_s"][:8] = np.inf
    found = find_winner(comparison(one=one, other=other), 0.0)
    assert found["faster_share"] == 0.6
    assert found["margin_percent"] == {"value": 50.0, "ci95": [None, 50.0]}
    assert margin_text(found) == "~50 %, 60 %"
