"""Data of pages: what every kind of folder shows, limits, and sentences."""

import json
import shutil

import numpy as np
import pytest
from support.drawing import make_record

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import finite
from collapipe_jax.runs.report.charts import line, line_chart, plain
from collapipe_jax.runs.report.gather import report_data
from collapipe_jax.runs.report.rounds import MOST_ROUNDS, limits_of, pick_rounds
from collapipe_jax.runs.report.training import load_plans
from collapipe_jax.runs.results.record import slowest_stage


def names(entries):
    return [entry["name"] for entry in entries]


def test_a_pipeline_run_has_picture_timeline_charts_and_limits(folders):
    data = report_data([str(folders["pipeline"])])
    (run,) = data["runs"]
    rounds, network = run["rounds"], run["network"]
    assert rounds == list(range(6))
    for of_rounds in (network["links"], network["held"], network["position_m"]):
        assert len(of_rounds) == len(rounds)
    for held, step in zip(network["held"], run["timeline"]["steps"], strict=True):
        assert (step is None) == (not np.any(held))
    charts = ["latency_parts", "energy", "energy_queue", "memory"]
    assert names(run["charts"]) == charts
    assert names(data["charts"]) == ["score", "loss", "latency", "divergence", "divergence_queue"]
    assert names(run["tables"]) == ["limits"]
    assert ["training.rounds", "6"] in [list(row) for row in data["configuration"]["rows"]]
    assert len(run["sentences"]) == 3
    json.dumps(finite(data), allow_nan=False)


def test_clients_have_rows_and_no_local_step(folders):
    (run,) = report_data([str(folders["clients"])])["runs"]
    assert "steps" not in run["timeline"]
    assert "gateway" not in run["network"]
    for clients, samples in zip(run["timeline"]["clients"], run["network"]["samples"], strict=True):
        count = int(np.sum(np.array(samples) > 0))
        assert (0 if clients is None else len(clients["names"])) == count


def test_several_runs_share_charts_and_a_table(folders):
    data = report_data([str(folders["pipeline"]), str(folders["clients"])])
    assert names(data["runs"]) == ["static pipeline", "splitfed"]
    assert names(data["charts"][0]["lines"]) == ["static pipeline", "splitfed"]
    assert names(data["tables"]) == ["runs"]
    race = report_data([str(folders["race"])])
    assert race | {"title": data["title"]} == data


def test_a_comparison_has_policies(folders):
    data = report_data([str(folders["compare"])])
    (run,) = data["runs"]
    assert "timeline" not in run
    assert "held" not in run["network"]
    (policies,) = data["tables"]
    assert [row[0] for row in policies["rows"]] == ["static pipeline", "splitfed"]
    assert "energy_over_budget" in names(data["charts"])


def test_a_sweep_has_points(folders):
    data = report_data([str(folders["sweep"])])
    (points,) = data["tables"]
    assert [row[:2] for row in points["rows"]] == [
        [value, policy] for value in ("5", "10") for policy in ("static pipeline", "splitfed")
    ]
    assert points["head"][0] == data["charts"][0]["x"] == "D2E bandwidth [MHz]"
    assert data["charts"][0]["lines"][0]["x"] == [5.0, 10.0]


def test_a_plan_is_a_run_of_one_round(folders):
    data = report_data([str(folders["plan"])])
    (run,) = data["runs"]
    assert run["network"]["held"] == [[[3, 0, 3], [1, 2, 3]]]
    assert not run["network"]["is_drawn"]
    assert data["charts"] == []
    assert names(run["charts"]) == ["memory"]
    (costs,) = data["tables"]
    assert costs["rows"][0][2] == pytest.approx(9.57182, rel=1e-5)
    assert "configuration" not in data


def test_a_limit_of_a_plan_is_used_as_far_as_its_cost_says(folders):
    (plan,) = load_plans(folders["plan"])
    found = {limit.name: limit for limit in limits_of(plan.record, plan.network)}
    over = plan.record.history["energy_j"][0] / plan.record.constants["energy_budget_j"]
    assert found["mean energy of a node"].used == pytest.approx(over.max())
    share = plan.record.history["d2e_share"][0].sum()
    assert found["D2E band"].used == pytest.approx(share)
    assert all(limit.is_kept for limit in found.values())
    double = plan.record.history | {"d2e_power_w": 2 * plan.record.history["d2e_power_w"]}
    broken = {
        limit.name
        for limit in limits_of(plan.record._replace(history=double), plan.network)
        if not limit.is_kept
    }
    assert broken <= {"D2E power"}
    power = plan.record.history["d2e_power_w"][0] / plan.network.mean_problem.radio.d2e_power_max_w
    assert bool(broken) == (2 * power.max() > 1)


def test_memory_of_a_device_without_any_is_over_its_limit(folders):
    (plan,) = load_plans(folders["plan"])
    constants = plan.record.constants
    none = constants | {"memory_limit_bytes": 0 * constants["memory_limit_bytes"]}
    found = limits_of(plan.record._replace(constants=none), plan.network)
    (memory,) = [limit for limit in found if limit.name == "memory of a device"]
    assert memory.used == np.inf
    assert not memory.is_kept


def test_folders_without_a_page_are_refused(folders, tmp_path):
    with pytest.raises(InputError, match="holds nothing that a report shows"):
        report_data([str(tmp_path)])
    with pytest.raises(InputError, match=r"no such folder\. Name .* wrote: train, race, compare"):
        report_data([str(tmp_path / "nope")])
    (tmp_path / "config.json").write_text('{"experiment": "train"}')
    with pytest.raises(InputError, match="holds a sweep of training runs"):
        report_data([str(tmp_path)])
    (tmp_path / "config.json").unlink()
    with pytest.raises(InputError, match="only training runs share a page"):
        report_data([str(folders["compare"]), str(folders["sweep"])])
    shutil.copy(folders["plan"] / "edge.decision.json", tmp_path)
    with pytest.raises(InputError, match="0 networks and 1 decisions"):
        report_data([str(tmp_path)])


def test_slowest_stage_is_the_longest_of_both_flows():
    record = make_record(rounds=2, absent=False)
    forward_s = record.history["forward_flow_s"]
    forward_s[1, 2, -2] = 99.0
    assert slowest_stage(record, 1, 2) == "uplink"
    record.history["backward_flow_s"][1, 2, -1] = 100.0
    assert slowest_stage(record, 1, 2) == "control unit"
    record.history["backward_flow_s"][1, 2, 0] = 101.0
    assert slowest_stage(record, 1, 2) == "downlink"


def test_long_runs_have_some_rounds_the_last_included():
    assert pick_rounds(5).tolist() == [0, 1, 2, 3, 4]
    picked = pick_rounds(1000)
    assert len(picked) == MOST_ROUNDS
    assert picked[0] == 0
    assert picked[-1] == 999
    assert len(set(np.diff(picked))) <= 2


def test_numbers_are_plain_and_lines_without_points_are_left_out():
    assert plain(np.array([[1.23456789, np.nan], [np.inf, 2.0]])) == [[1.2346, None], [None, 2.0]]
    assert plain(np.array([1, 2])) == [1, 2]
    assert line_chart("name", "title", "x", "y", [line("one", [0.0], [np.nan], 0)]) == []
