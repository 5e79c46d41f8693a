"""The planning program on the example network, and on networks that it must refuse."""

import contextlib
import io
import json
import pathlib
import re
from types import SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np
import pytest
from support import ROOT
from support.compiled import is_feasible, static_pipeline

from collapipe_jax.cli import plan, price
from collapipe_jax.cli import plan as explanation
from collapipe_jax.cli.options import run_reporting_errors
from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.solver.allocate import OPTIMAL
from collapipe_jax.edge.solver.partition_bound import FullDevice, PartitionBound
from collapipe_jax.runs.documents import read_cut, read_decision, read_network

EXAMPLE = ROOT / "docs" / "examples" / "edge.network.json"


class Planned(NamedTuple):
    """A policy's run of the program on a network."""

    network: pathlib.Path
    out: pathlib.Path
    printed: str

    def decided(self):
        problem = read_network(self.network)
        return problem, read_decision(self.out, problem)


@pytest.fixture(
    scope="module",
    params=[
        ("static_pipeline", "1f1b"),
        pytest.param(("dssra", "gpipe"), marks=pytest.mark.slow),
        pytest.param(("dssra", "1f1b"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def case(request):
    """A policy and a schedule."""
    return request.param


@pytest.fixture(scope="module")
def policy(case):
    return case[0]


@pytest.fixture(scope="module")
def planned(case, tmp_path_factory):
    """``dssra`` comes with a certificate."""
    policy, schedule = case
    folder = tmp_path_factory.mktemp(policy)
    network, out = folder / "network.json", folder / "decision.json"
    document = json.loads(EXAMPLE.read_text())
    document["workload"]["schedule"] = schedule
    network.write_text(json.dumps(document))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        certify = ["--certify"] if policy == "dssra" else []
        plan.main([f"--instance={network}", f"--policy={policy}", f"--out={out}", *certify])
    return Planned(network, out, printed.getvalue())


cost_of = jax.jit(evaluate)


def objective_of(problem, decision):
    return float(cost_of(problem, decision).objective)


def test_the_decision_is_feasible_and_told(policy, planned):
    problem, decision = planned.decided()
    assert is_feasible(problem, decision)
    assert json.loads(planned.out.read_text())["policy"] == policy
    for blocks in decision.segments.tolist():
        assert " ".join(map(str, blocks)) in planned.printed
    printed = float(re.search(r"objective (\S+) =", planned.printed)[1])
    assert printed == pytest.approx(objective_of(problem, decision), rel=1e-4)


def test_a_schedule_other_than_gpipe_is_named(case, planned):
    assert ("1f1b" in planned.printed) == (case[1] == "1f1b")


def test_dssra_beats_the_static_pipeline(policy, planned):
    problem, decision = planned.decided()
    equal = objective_of(problem, static_pipeline(problem, 8))
    assert (objective_of(problem, decision) < 0.9 * equal) == (policy == "dssra")


TOLD = [
    *("latency: a second", "Limits that bind", "memory:", "a J costs", "a whole target"),
    "no decision gets below",
]
"""Of a decision with a certificate."""


def test_binding_limits_are_listed_where_there_are_multipliers(policy, planned):
    told = ["optimal", "no neighbour is better", *TOLD]
    missing = [word for word in told if word not in planned.printed]
    assert missing == ([] if policy == "dssra" else told)
    assert ("no multipliers" in planned.printed) == (policy != "dssra")
    lines = [line for line in planned.printed.splitlines() if "written" not in line]
    assert max(map(len, lines)) <= 100


def made_up(shapes):
    """Numbers of these shapes, with no flag raised."""
    return jax.tree.map(
        lambda leaf: (np.ones if leaf.dtype != bool else np.zeros)(leaf.shape), shapes
    )


def test_a_decision_is_explained_and_certified_whatever_was_computed(tmp_path, capsys, monkeypatch):
    """Of programs that are traced, and give numbers that are made up."""
    problem = read_network(EXAMPLE)
    decision = jax.device_get(static_pipeline(problem, 6))
    status = {"objective": 2.0, "lower_bound": 2.0, "status": OPTIMAL}

    def trace(*programs, kept_as, returns):
        assert kept_as == "plan-dssra-6"
        found = [made_up(jax.eval_shape(function, *given)) for function, *given in programs]
        found[0] = found[0]._replace(decision=decision, **status)
        found[2] = 3.0 * found[2]  # the neighbours' objectives
        return [lambda *_, numbers=numbers: numbers for numbers in found]

    monkeypatch.setattr(plan, "compile_together", trace)
    monkeypatch.setattr(plan, "bound_partitions", lambda *_: PartitionBound(1.5, 70, True))
    out = tmp_path / "decision.json"
    options = ["--policy=dssra", "--micro-batches=6", "--certify", f"--out={out}"]
    plan.main([f"--instance={EXAMPLE}", *options])
    printed = capsys.readouterr().out
    told = ["optimal", "no neighbour is better", *TOLD, "objective 1 =", "all 70 choices"]
    assert [word for word in told if word not in printed] == []
    written = read_decision(out, problem)
    jax.tree.map(np.testing.assert_array_equal, written, decision)


@pytest.mark.parametrize(
    ("least", "words"),
    [(1.9, "a neighbour in cluster 1 is better by 5 %"), (2.1, "no neighbour is better by 0.01 %")],
)
def test_the_best_neighbour_is_compared_with_the_decision(least, words):
    objectives = np.array([[2.5, np.inf], [least, 3.0]])
    told = explanation._nearby(objectives, 2.0)
    assert words in told
    assert "3 decisions" in told


@pytest.mark.parametrize(
    ("idle", "caption"),
    [
        (0, "2 more, each of which saves less"),
        (
            3,
            "2 more, each of which saves less; "
            "3 more are full; more memory would save nothing there",
        ),
        (
            1,
            "2 more, each of which saves less; "
            "1 more is full; more memory would save nothing there",
        ),
    ],
)
def test_full_devices_that_are_not_listed_are_counted(idle, caption):
    full = [FullDevice(0, 1, 2, float(saved)) for saved in range(12, 0, -1)]
    full += [FullDevice(0, 1, 2, 0.0)] * idle
    table = explanation._memory(full, SimpleNamespace(latency=1.0))
    assert table.row_count == 10
    assert table.caption == caption


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"memory_bytes": [[1e6] * 3] * 2}, ["compute.memory_bytes", "hold", "Raise"]),
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


@pytest.mark.filterwarnings("default")
def test_an_implausible_number_is_reported_in_one_line(tmp_path, capsys):
    document = json.loads(EXAMPLE.read_text())
    document["radio"]["bs_power_w"] = 46000.0
    network = tmp_path / "net.json"
    network.write_text(json.dumps(document))
    arguments = [f"--instance={network}", "--policy=static_pipeline"]
    assert run_reporting_errors(plan.main, [*arguments, f"--out={tmp_path / 'd.json'}"]) == 0
    message = capsys.readouterr().err
    assert message.startswith(f"warning: {network}: radio.bs_power_w = 46000: hardly plausible")
    assert message.count("\n") == 1


def test_an_unknown_policy_is_refused_with_the_known_ones(tmp_path, capsys):
    arguments = [f"--instance={EXAMPLE}", "--policy=oracle", f"--out={tmp_path / 'd.json'}"]
    assert run_reporting_errors(plan.main, arguments) == 2
    assert "static_pipeline" in capsys.readouterr().err


def test_all_wrong_options_are_named_at_once(capsys):
    wrong = ["--instance=nope.json", "--policy=dsra", "--lora=8", "--inference", "--tokens=3"]
    assert run_reporting_errors(plan.main, wrong) == 2
    message = capsys.readouterr().err
    assert message.count("of machines with wired links") == 3
    for words in ("6 things", "--out = ''", "--policy = 'dsra'", "file = 'nope.json'"):
        assert words in message


def test_the_number_of_blocks_at_the_server_is_decided_and_priced(tmp_path, capsys):
    out, cost = tmp_path / "decision.json", tmp_path / "cost.json"
    options = ["--policy=static_pipeline", f"--out={out}"]
    plan.main([f"--instance={EXAMPLE}", *options, "--min-cluster-blocks=2"])
    printed = capsys.readouterr().out
    network = read_network(EXAMPLE)
    blocks = int(network.workload.blocks)
    problems = [network.with_cut(cut) for cut in range(blocks - 2 + 1)]
    objectives = [objective_of(each, static_pipeline(each, 8)) for each in problems]
    best = int(np.argmin(objectives))
    assert f"the edge server holds the last {best} of {blocks} encoder blocks" in printed
    assert json.loads(out.read_text())["server_blocks"] == best
    price.main([f"--instance={EXAMPLE}", f"--decision={out}", f"--out={cost}"])
    priced = json.loads(cost.read_text())
    assert priced["feasible"]
    assert priced["objective"] == pytest.approx(objectives[best], rel=1e-5)


@pytest.mark.parametrize("least", [-2, 7])
def test_blocks_that_no_cluster_can_keep_are_refused(least, tmp_path):
    options = ["--policy=static_pipeline", f"--out={tmp_path / 'decision.json'}"]
    with pytest.raises(InputError, match="of 6 blocks the edge server holds 0 at least"):
        plan.main([f"--instance={EXAMPLE}", *options, f"--min-cluster-blocks={least}"])


@pytest.mark.parametrize("value", [7, -1, 1.5, "2", None])
def test_a_wrong_number_of_blocks_at_the_server_is_named(value, tmp_path):
    document = json.loads((EXAMPLE.parent / "edge.decision.json").read_text())
    path = tmp_path / "decision.json"
    path.write_text(json.dumps(document | {"server_blocks": value}))
    with pytest.raises(InputError) as refused:
        read_cut(path, read_network(EXAMPLE))
    assert refused.value.key == "server_blocks"
