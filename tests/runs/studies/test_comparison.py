"""Summaries of comparisons: paired, with shares of violations, and strict JSON."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from support import tiny_run
from support.compilations import compiles

from collapipe_jax.cli.compare import summary_table
from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import write_json
from collapipe_jax.runs.config.system import build_system_params
from collapipe_jax.runs.results.realisations import Case, Realisations
from collapipe_jax.runs.studies import comparison as module
from collapipe_jax.runs.studies.comparison import METRICS, summarise
from collapipe_jax.runs.studies.montecarlo import realisation_keys, with_v


def made_up(latency_s, divergence=1.0):
    """A policy's values over two networks and three rounds."""
    per_round = np.ones((2, 3))
    return {
        **{name: per_round.copy() for name in (*METRICS, "active_devices", "micro_batches")},
        "loss_probability": per_round,
        "participation": per_round,
        "absence_ratio": 0.0 * per_round,
        "latency_s": np.array(latency_s)[:, None] * per_round,
        "divergence": divergence * per_round,
        "mean_energy_j": np.array([[[0.5, 1.5]], [[0.5, 0.5]]]),
        "absent_rounds": np.array([[0], [3]]),
        "blocks_held": np.array([[2, 1, 0], [0, 3, 1]]),
        "violated.memory": np.array([3, 0]),
    }


def comparison(**policies):
    networks = {
        "reference_latency_s": np.ones(2),
        "can_run": np.ones((2, 1), bool),
        "energy_budget_j": np.ones((2, 1, 2)),
        "divergence_target": np.ones(2),
    }
    cases = [Case(name, 3.0, values) for name, values in policies.items()]
    settings = {"options": {"rounds": 3}, "config": tiny_run.get_config().to_dict()}
    return Realisations(settings, networks, cases)


def test_networks_of_all_points_are_one_program():
    params, keys = build_system_params(tiny_run.get_config()), realisation_keys(0, 2)
    with compiles(module._network, times=1):
        for v in (1.0, 10.0):
            found = module.networks(keys, jnp.arange(2), with_v(params, v), {})
    assert found["can_run"].axes == "realisation cluster"


def test_reductions_are_taken_network_by_network():
    summary = summarise(comparison(dssra=made_up([1.0, 8.0]), slow=made_up([2.0, 10.0])))
    row = summary["reduction_percent"]["latency_s"]["slow"]
    assert row["mean"] == pytest.approx(35.0)  # of 50 % and 20 %, not of the means' 25 %
    assert row["ci95"] == pytest.approx(12.7062 * 15.0, rel=1e-4)


def test_violations_are_shares():
    (row,) = summarise(comparison(other=made_up([1.0, 1.0], 1.02)))["policies"].values()
    assert row["violations"]["memory"] == pytest.approx(0.5)
    assert row["violations"]["energy"] == pytest.approx(0.25)
    assert row["violations"]["networks_over_energy"] == pytest.approx(0.5)
    assert row["violations"]["worst_energy_over_budget"] == pytest.approx(1.5)
    assert row["violations"]["divergence"] == 1.0
    assert row["violations"]["absent"] == pytest.approx(0.5)


def test_clusters_that_leave_all_blocks_to_the_edge_server_hold_none():
    policy = made_up([2.0, 2.0])
    none = {"blocks_held": np.zeros_like(policy["blocks_held"])}
    summary = summarise(comparison(none=policy | none))
    assert summary["policies"]["none"]["blocks"]["median"] == 0.0
    absent = policy | none | {"participation": np.zeros_like(policy["participation"])}
    assert summarise(comparison(absent=absent))["policies"]["absent"]["blocks"]["median"] is None


def test_a_winner_is_the_fastest_that_keeps_all_limits():
    """The first network is over a memory and a budget under every policy, the second is not."""
    fast, slow = made_up([1.0, 1.0], np.array([[1.0], [1.02]])), made_up([2.0, 2.0])
    policies = summarise(comparison(fast=fast, slow=slow))["policies"]
    assert (policies["fast"]["keeps_limits"], policies["fast"]["fastest"]) == (0.0, 0.0)
    assert (policies["slow"]["keeps_limits"], policies["slow"]["fastest"]) == (0.5, 0.5)


def test_networks_that_cannot_run_are_left_out():
    result = comparison(dssra=made_up([1.0, np.inf]), slow=made_up([2.0, np.inf]))
    result.networks["can_run"][1] = False
    summary = summarise(result)
    assert summary["realisations_left_out"] == 1
    assert summary["reduction_percent"]["latency_s"]["slow"]["mean"] == pytest.approx(50.0)


def test_infinite_values_are_unknown_and_json_stays_strict(tmp_path):
    broken = made_up([2.0, np.inf], np.inf)
    summary = summarise(comparison(dssra=made_up([1.0, 1.0]), broken=broken))
    row = summary["policies"]["broken"]
    assert row["latency_s"]["mean"] is None
    assert row["divergence"]["median"] is None
    write_json(tmp_path / "summary.json", summary)
    read = json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    violations = read["policies"]["broken"]["violations"]
    assert violations["worst_divergence_over_target"] is None
    assert summary_table(summary).row_count == 2


SMALL = 1e-5  # a divergence at which losses do not shorten the longest step


def descent(policy, heterogeneity=0.5, **learning):
    """Seconds of descent where the target is ``SMALL``."""
    result = comparison(other=policy)
    result.networks["divergence_target"] *= SMALL
    learning |= {"gradient_heterogeneity": heterogeneity}
    result.settings["config"]["learning"].update(learning)
    return summarise(result)["policies"]["other"]["descent_s"]


def test_seconds_of_descent_are_latency_times_divergence_over_target():
    """If everybody takes part and the best step is not the longest one."""
    row = descent(made_up([2.0, 4.0], SMALL * np.array([[0.8], [3.0]])))
    assert row["mean"] == pytest.approx((2.0 * 0.8 + 4.0 * 3.0) / 2.0, rel=1e-4)
    assert set(row) == {"mean", "ci95", "median", "median_ci95"}


def absent(ratio):
    """A policy at the target, under which clusters sit out in the first of three rounds."""
    policy = made_up([2.0, 2.0], SMALL)
    policy["absence_ratio"] = np.array([[ratio, 0.0, 0.0]] * 2)
    return policy


def test_who_sits_out_descends_less_or_never_enough():
    """By hand: a mean divergence of (4 + 1 + 1) / 3, and a target of 1 less a bias of 1 / 6."""
    seconds = descent(absent(1.0), SMALL / 2.0)["mean"]
    assert seconds == pytest.approx(2.0 * 2.0 / (5.0 / 6.0) ** 2, rel=1e-4)
    assert 2.0 < descent(absent(0.5), SMALL / 2.0)["mean"] < seconds
    assert descent(absent(1.0), 3.0 * SMALL)["mean"] is None


def test_a_round_without_participants_takes_no_step():
    policy = absent(1.0)
    for name in ("participation", "latency_s", "divergence"):
        policy[name][:, 0] = 0.0
    assert descent(policy)["mean"] == pytest.approx(2.0, rel=1e-4)
    policy["participation"][1] = 0.0
    assert descent(policy)["mean"] is None


def test_with_local_steps_the_longest_step_is_the_configured_one():
    """By hand: a mean divergence of (9 / 4 + 1 + 1) / 3, and 1 / 60 left of 1 / 10 by a bias."""
    learning = {"bound": "local_steps", "step_smoothness": 0.1}
    quiet = descent(made_up([2.0, 2.0], SMALL / 4.0), **learning)
    assert quiet["mean"] == pytest.approx(2.0 / 3.0)
    biased = descent(absent(0.5), SMALL, **learning)
    assert biased["mean"] == pytest.approx(2.0 * 17.0 / 12.0 * 6.0**2, rel=1e-4)
    assert descent(absent(0.5), 1.2 * SMALL, **learning)["mean"] is None


def test_a_comparison_without_absence_is_refused():
    policy = made_up([1.0, 1.0])
    del policy["absence_ratio"]
    with pytest.raises(InputError, match="Compare again in another workdir"):
        summarise(comparison(old=policy))
