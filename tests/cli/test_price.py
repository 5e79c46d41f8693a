"""The command that prices a decision on file, on the documents of docs/examples/."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from support import ROOT
from support.reference_cost import NUMBERS, reference_cost, reference_violations

from collapipe_jax.cli.options import run_reporting_errors
from collapipe_jax.cli.price import main

EXAMPLES = ROOT / "docs" / "examples"


@pytest.fixture(autouse=True)
def _restored_precision():
    yield
    jax.config.update("jax_enable_x64", False)


def load(name):
    return json.loads((EXAMPLES / f"edge.{name}.json").read_text())


def arguments(out, network=EXAMPLES / "edge.network.json"):
    decision = EXAMPLES / "edge.decision.json"
    return [f"--instance={network}", f"--decision={decision}", f"--out={out}"]


def assert_same_cost(got, expected, rtol):
    assert set(got) == set(expected)
    for key in NUMBERS:
        np.testing.assert_allclose(got[key], expected[key], rtol, err_msg=key)
    for key in set(expected) - set(NUMBERS):
        assert got[key] == expected[key], key


def test_the_example_is_what_the_reference_says():
    network, decision, cost = load("network"), load("decision"), load("cost")
    expected = reference_cost(network, decision)
    for key in NUMBERS:
        np.testing.assert_allclose(cost[key], expected[key], 1e-12, err_msg=key)
    assert cost["feasible"] is True
    assert set(cost["violations"]) == reference_violations(network, decision) == set()
    assert cost["absent"] == np.flatnonzero(expected["absent"]).tolist()


@pytest.mark.parametrize(("option", "rtol"), [(["--x64"], 1e-9), ([], 1e-4)])
def test_the_command_reproduces_the_example(tmp_path, capsys, option, rtol):
    out = tmp_path / "runs" / "cost.json"
    assert run_reporting_errors(main, [*arguments(out), *option]) == 0
    assert_same_cost(json.loads(out.read_text()), load("cost"), rtol)
    printed = capsys.readouterr().out
    assert f"written: {out}" in printed
    assert f"latency {load('cost')['latency_s']:.4g}"[:12] in printed


def test_violations_are_named_and_priced(tmp_path):
    decision = load("decision")
    decision["d2e_power_w"] = [10.0, 10.0]
    decision["d2d_share"][0][0] += 0.5
    (tmp_path / "decision.json").write_text(json.dumps(decision))
    options = [f"--decision={tmp_path / 'decision.json'}", "--x64"]
    out = tmp_path / "cost.json"
    assert run_reporting_errors(main, [*arguments(out), *options]) == 0
    cost = json.loads(out.read_text())
    assert set(cost["violations"]) == {"d2d_share", "d2e_power"}
    assert cost["feasible"] is False
    expected = reference_cost(load("network"), decision)
    assert cost["objective"] == pytest.approx(expected["objective"], rel=1e-9)


def test_wrong_input_is_one_message_and_exit_status_2(tmp_path):
    network = load("network")
    network["radio"]["snr_gap"] = -1
    (tmp_path / "network.json").write_text(json.dumps(network))
    out = tmp_path / "cost.json"
    command = [sys.executable, "-m", "collapipe_jax", "price"]
    ended = subprocess.run(
        [*command, *arguments(out, tmp_path / "network.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    told = "radio.snr_gap = -1: negative (SNR gap to capacity). Give a number > 0."
    assert ended.stderr == f"error: {told}\n"
    assert not out.exists()


def test_a_missing_file_is_wrong_input(tmp_path, capsys):
    status = run_reporting_errors(main, arguments(tmp_path / "cost.json", tmp_path / "none.json"))
    assert status == 2
    assert "none.json" in capsys.readouterr().err


@pytest.mark.parametrize("power_w", [0.0, -0.0])
def test_what_can_never_send_has_no_price_and_is_not_feasible(tmp_path, power_w):
    decision, out = load("decision"), tmp_path / "cost.json"
    decision["d2d_power_w"][0][0] = power_w
    (tmp_path / "decision.json").write_text(json.dumps(decision))
    assert (
        run_reporting_errors(main, [*arguments(out)[::2], f"--decision={tmp_path}/decision.json"])
        == 0
    )
    cost = json.loads(out.read_text())
    assert cost["latency_s"] is None
    assert cost["feasible"] is False
    assert cost["violations"] == ["d2d_power", "links"]
