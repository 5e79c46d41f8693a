"""The planning program on the example network, and on networks that it must refuse."""

import functools
import json
import pathlib

import jax
import pytest

from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.cost.round import price
from collapipe_jax.documents import read_decision, read_network
from collapipe_jax.scheduling.feasibility import is_feasible
from collapipe_jax.scheduling.policies import make_policy
from experiments import plan

EXAMPLE = pathlib.Path(__file__).parents[1] / "docs" / "examples" / "edge.network.json"


@pytest.mark.parametrize("policy", ["static_pipeline", "dssra"])
def test_the_decision_is_feasible_and_told(policy, tmp_path, capsys):
    out = tmp_path / "decision.json"
    plan.main([f"--instance={EXAMPLE}", f"--policy={policy}", f"--out={out}"])
    problem = read_network(EXAMPLE)
    decision = read_decision(out, problem)
    assert is_feasible(problem, decision)
    assert json.loads(out.read_text())["policy"] == policy
    printed = capsys.readouterr().out
    for blocks in decision.segments.tolist():
        assert " ".join(map(str, blocks)) in printed
    assert "objective" in printed


@functools.partial(jax.jit, static_argnames="name")
def objective_of(problem, name):
    return price(problem, make_policy(name)(jax.random.key(0), problem)).objective


def test_dssra_beats_the_static_pipeline():
    problem = read_network(EXAMPLE)
    objectives = {name: float(objective_of(problem, name)) for name in ("dssra", "static_pipeline")}
    assert objectives["dssra"] < objectives["static_pipeline"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"memory_bytes": [[1.0] * 3] * 2}, ["compute.memory_bytes", "hold", "Raise"]),
        ({"flops_per_s": [[0.0] * 4] * 2}, ["compute.flops_per_s", "zero"]),
    ],
)
def test_a_wrong_network_ends_with_one_message(changes, words, tmp_path, capsys):
    document = json.loads(EXAMPLE.read_text())
    document["compute"] |= changes
    network = tmp_path / "net.json"
    network.write_text(json.dumps(document))
    out = tmp_path / "decision.json"
    arguments = [f"--instance={network}", "--policy=static_pipeline", f"--out={out}"]
    assert run_reporting_errors(plan.main, arguments) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert all(word in message for word in words)
    assert not out.exists()


def test_an_unknown_policy_is_refused_with_the_known_ones(tmp_path, capsys):
    arguments = [f"--instance={EXAMPLE}", "--policy=oracle", f"--out={tmp_path / 'd.json'}"]
    assert run_reporting_errors(plan.main, arguments) == 2
    assert "static_pipeline" in capsys.readouterr().err
