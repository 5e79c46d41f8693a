"""Summaries of the gaps of dssra and of greedy."""

import jax
import numpy as np
import pytest

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.feasibility import is_feasible
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from experiments.benchmarks.solver import best_policy, gap, gateways, greedy_gap
from experiments.benchmarks.solver.networks import LAWS, SMALL_SHAPES, sample_problems
from experiments.double_precision import pick


def gap_row(network, dssra, loss=0.1, other=False):
    known = {"segments": [[2, 2]], "micro_batches": [4]}
    return {
        "network": network,
        "dssra": dssra,
        "dssra_tuned": min(dssra, 1.1),
        "exhaustive": 1.0,
        "lower_bound": 0.99,
        "loss": loss,
        "feasible": True,
        "partitions": 100,
        "solved": 7,
        "search_s": 1.0,
        "dssra_partition": known,
        "best_partition": {**known, "micro_batches": [8]} if other else known,
    }


def test_gaps_are_over_the_best_and_heavy_losses_are_apart():
    rows = [gap_row(0, 1.0), gap_row(1, 1.2, other=True), gap_row(2, 3.0, loss=0.95)]
    summary = gap.summarise(rows)
    assert summary["usable"]["networks"] == 2
    assert summary["usable"]["gap"]["max"] == pytest.approx(0.2)
    assert summary["usable"]["gap_of_partition"]["max"] == pytest.approx(0.1)
    assert summary["usable"]["left_by_search"]["median"] == pytest.approx(0.01)
    assert summary["usable"]["other_partition"] == 1
    assert summary["usable"]["solved"] == pytest.approx(0.07)
    assert summary["heavy_loss"]["networks"] == 1
    assert [row["network"] for row in summary["worst"]] == [2, 1, 0]
    assert gap.summarise(rows[:1])["heavy_loss"] == {"networks": 0}


def test_networks_without_a_finite_decision_only_count():
    hopeless = {**gap_row(0, np.inf), "exhaustive": np.inf, "lower_bound": np.inf}
    summary = gap.summarise([hopeless, gap_row(1, 1.2)])
    assert summary["never_finite"] == 1
    assert summary["usable"]["networks"] == 1
    assert [row["network"] for row in summary["worst"]] == [1]


def test_no_gap_where_nothing_can_run():
    nothing = {**gap_row(0, 0.0), "exhaustive": 0.0, "lower_bound": 0.0, "dssra_tuned": 0.0}
    summary = gap.summarise([nothing, gap_row(1, 1.2)])
    assert summary["usable"]["gap"]["median"] == pytest.approx(0.1)
    assert summary["worst"][-1]["gap"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_networks_of_a_law_are_drawn_and_can_be_solved(law):
    problems = sample_problems(3, 8, SMALL_SHAPES[3], law)
    decisions = jax.jit(jax.vmap(lambda problem: static_pipeline(problem, 8)))(problems)
    feasible = jax.jit(jax.vmap(is_feasible))(problems, decisions)
    assert np.all(feasible)
    again = sample_problems(3, 2, SMALL_SHAPES[3], law)
    for all_of_them, first in zip(*map(jax.tree.leaves, (problems, again)), strict=True):
        np.testing.assert_allclose(all_of_them[:2], first, rtol=1e-5)


def test_an_unknown_law_is_named():
    with pytest.raises(InputError, match="--law"):
        sample_problems(0, 1, SMALL_SHAPES[0], "narrow")


@pytest.mark.slow
def test_the_wide_law_keeps_its_ranges():
    problems = sample_problems(5, 64, SMALL_SHAPES[0], "wide")
    ranges = {"bands": (5e6, 80e6), "memory": (0.5 * 2**30, 2 * 2**30), "v": (3.0, 30.0)}
    radio = problems.radio
    values = {
        "bands": np.stack([radio.d2e_bandwidth_hz, radio.d2d_bandwidth_hz]),
        "memory": problems.compute.memory_bytes,
        "v": problems.control.v,
    }
    for name, (low, high) in ranges.items():
        value = np.asarray(values[name]).reshape(-1)
        assert np.all((value >= low * 0.999) & (value <= high * 1.001)), name
        assert value.min() < 1.3 * low, name
        assert value.max() > high / 1.3, name


@pytest.mark.slow
def test_the_unusable_law_takes_links_and_devices_away():
    problems = sample_problems(5, 64, SMALL_SHAPES[3], "unusable")
    gain = np.asarray(problems.radio.d2d_gain)
    present = np.asarray(problems.compute.memory_bytes) > 0
    assert 0.02 < np.mean(gain == 0) < 0.2
    assert 0.05 < np.mean((gain > 0) & (gain < 1e-20)) < 0.3
    assert np.all(gain <= 1)
    assert 0.7 < np.mean(present) < 0.95


def test_networks_on_which_another_policy_is_better_are_named():
    others = [[2.0, 3.0, 2.5, 4.0], [1.0, 2.0, 2.0, 2.0], [np.inf] * 4, [np.inf, 5.0, 5.0, 5.0]]
    objectives = np.column_stack([[2.0005, 1.1, 7.0, np.inf], others])
    policies = list(best_policy.DECIDE["dssra"])
    summary = best_policy.summarise(objectives, policies)
    assert summary["finite"] == 3
    assert summary["infinite"] == 1
    assert [(row["network"], row["best"]) for row in summary["worse"]] == [
        (3, "titanic"),
        (1, "greedy"),
    ]
    assert summary["worse"][1]["excess"] == pytest.approx(0.1)
    assert summary["others_finite"]["greedy"] == 2
    nothing = best_policy.summarise(np.zeros((1, 5)), policies)
    assert nothing["worse"] == []
    assert nothing["finite"] == 1


def test_caps_out_of_reach_are_counted_apart():
    kept = {"greedy": 1.01, "slsqp": 1.0, "binding": 0.5, "loss": 0.1}
    heavy, broken = {**kept, "greedy": 2.0, "loss": 0.95}, {**kept, "slsqp": None}
    report = greedy_gap.summarise([kept, heavy, broken])
    assert report["caps_out_of_reach"] == 1
    assert report["summary"]["usable"]["greedy_over_slsqp"]["max"] == pytest.approx(0.01)
    assert report["summary"]["loss above 0.9"]["greedy_over_slsqp"]["max"] == pytest.approx(1.0)
    with pytest.raises(InputError, match="caps"):
        greedy_gap.summarise([broken])


@pytest.mark.slow
def test_tight_budgets_are_those_of_a_tenth_of_full_power():
    problem = pick(sample_problems(0, 1, SMALL_SHAPES[0]), 0)
    tight = jax.jit(greedy_gap.with_tight_budgets)(problem)
    full = static_pipeline(problem, 8)
    low = full.replace(d2d_power_w=0.1 * full.d2d_power_w, d2e_power_w=0.1 * full.d2e_power_w)
    use = jax.jit(evaluate)(tight, low).energy_j / tight.control.energy_budget_j
    used = np.asarray(use) > 0
    np.testing.assert_allclose(np.asarray(use)[used], 1.0, rtol=1e-6)
    assert not np.any(tight.control.energy_queue)


def test_gateways_are_judged_where_both_answers_are_finite():
    wide, best = np.array([1.0, 2.04, np.inf, 5.0]), np.array([1.0, 2.0, 3.0, np.inf])
    summary = gateways.summarise(wide, best)
    assert (summary["networks"], summary["finite"]) == (4, 2)
    assert summary["largest"] == pytest.approx(2.0)
    assert summary["median"] == pytest.approx(1.0)
    assert (summary["over_0.1"], summary["over_1"]) == (1, 1)
