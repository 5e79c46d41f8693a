import json
import os
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from support import ROOT, SUPPORT
from support.random_problems import pick, plain_problems

from collapipe_jax.cli import compare
from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.environment import reset, simulate
from collapipe_jax.edge.policies.baselines import titanic
from collapipe_jax.edge.policies.registry import make_policy
from collapipe_jax.runs.config.system import build_system_params
from collapipe_jax.runs.results.realisations import load_realisations
from collapipe_jax.runs.studies.comparison import METRICS
from collapipe_jax.runs.studies.montecarlo import realisation_keys

CONFIG = SUPPORT / "tiny_run.py"
ROUNDS, REALISATIONS, CHUNK = 3, 3, 2
POLICIES = ("static_pipeline", "vanilla_fl")
QUICK = ("--config.policy.shares=equal", "--config.policy.split=even")
"""With equal shares and parts of clients a policy compiles in a moment."""


def arguments(workdir):
    return [
        f"--config={CONFIG}",
        f"--workdir={workdir}",
        f"--rounds={ROUNDS}",
        f"--realisations={REALISATIONS}",
        f"--chunk={CHUNK}",
        f"--policies={','.join(POLICIES)}",
        *QUICK,
    ]


def run(workdir, *more):
    compare.main([*arguments(workdir), *more])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("compare") / "run"
    run(workdir)
    return workdir


def test_what_is_on_file_is_what_was_simulated(finished):
    check_what_was_simulated(finished, "static_pipeline")


@pytest.mark.slow
def test_what_is_on_file_of_clients_is_what_was_simulated(tmp_path):
    run(tmp_path / "run", "--policies=splitfed")
    check_what_was_simulated(tmp_path / "run", "splitfed")


def check_what_was_simulated(workdir, name):
    result = load_realisations(workdir, "compare")
    config = ConfigDict(result.settings["config"])
    params = build_system_params(config, np.full(2, 0.5))
    index = 2  # in the second, filled-up chunk
    key = realisation_keys(config.seed, REALISATIONS)[index]
    history = jax.jit(
        lambda key: simulate(
            reset(key, params),
            make_policy(name, config.policy.micro_batches, shares="equal", split="even"),
            ROUNDS,
        )
    )(key)
    kept, cost = result.policies[name], history.cost
    for field in ("latency_s", "compute_latency_s", "divergence"):
        np.testing.assert_allclose(kept[field][index], getattr(cost, field), rtol=1e-5)
    np.testing.assert_allclose(
        kept["energy_j"][index], np.sum(cost.energy_j, axis=(1, 2)), rtol=1e-5
    )
    np.testing.assert_allclose(
        kept["device_memory_bytes"][index], np.max(cost.memory_bytes, axis=(1, 2)), rtol=1e-6
    )
    np.testing.assert_allclose(
        kept["parts_s"][index].sum(axis=1), cost.latency_s, rtol=1e-5, atol=1e-9
    )
    for field, broken in history.violations.items():
        assert kept[f"violated.{field}"][index] == np.sum(broken)
    np.testing.assert_array_equal(kept["absent_rounds"][index], np.sum(cost.absent, axis=0))
    ratio = np.any(cost.absent, axis=1)  # of two clusters of one weight
    np.testing.assert_array_equal(kept["absence_ratio"][index], ratio)


def test_blocks_are_counted_with_their_memory(finished):
    result = load_realisations(finished, "compare")
    for name, values in result.policies.items():
        held = values["blocks_held"]
        np.testing.assert_allclose(held.sum(axis=1), values["active_devices"].sum(axis=1))
        if name == "static_pipeline":
            assert np.all(held[:, 0] == 0)
        if name == "vanilla_fl":  # the whole encoder or nothing
            assert np.all(held[:, :2] == 0)


def test_the_summary_has_every_policy_and_metric(finished):
    summary = json.loads((finished / "summary.json").read_text())
    assert set(summary["policies"]) == set(POLICIES)
    for told in summary["policies"].values():
        for metric in (*METRICS, "descent_s"):
            assert set(told[metric]) == {"mean", "ci95", "median", "median_ci95"}
        assert told["violations"]["memory"] is not None
    assert summary["reduction_percent"] == {}  # nothing to reduce without dssra
    assert summary["realisations"] + summary["realisations_left_out"] == REALISATIONS
    assert summary["policies"]["vanilla_fl"]["micro_batches"]["mean"] == 1.0


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in files}


def test_a_run_goes_on_to_the_same_bytes(finished, tmp_path):
    again = shutil.copytree(finished, tmp_path / "again")
    (again / "summary.json").unlink()
    for part in ("networks/000000", "vanilla_fl/000002"):
        (again / "parts" / f"{part}.json").unlink()
    (again / "results.zarr/latency_s/c/1/1/0").write_bytes(b"half")
    first = again / "results.zarr/latency_s/c/1/0/0"
    kept = first.stat().st_mtime_ns
    run(again)
    assert first.stat().st_mtime_ns == kept
    assert contents(again) == contents(finished)


def test_shards_in_turn_end_with_the_same_bytes(finished, tmp_path, capsys):
    for index in (2, 0, 1):
        assert not (tmp_path / "run" / "summary.json").exists()
        run(tmp_path / "run", f"--shard={index}/3")
    told = capsys.readouterr().out
    assert "shard 2/3 is done; other shards lack 4 parts" in told
    assert contents(tmp_path / "run") == contents(finished)


def start(workdir, *more, devices=1):
    command = [sys.executable, "-m", "collapipe_jax", "compare", *arguments(workdir), *more]
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "XLA_FLAGS": flags},
    )


@pytest.mark.slow
def test_shards_at_once_and_devices_end_with_the_same_bits(tmp_path):
    """64 realisations at once, in four processes, and on eight devices."""
    more = ("--realisations=64", "--chunk=16", "--policies=static_pipeline,vanilla_fl")
    run(tmp_path / "one", *more)
    shards = [start(tmp_path / "four", *more, f"--shard={index}/4") for index in range(4)]
    for process in (*shards, start(tmp_path / "eight", *more, devices=8)):
        assert process.communicate()[1] == b""
        assert process.returncode == 0
    whole = contents(tmp_path / "one")
    assert contents(tmp_path / "four") == whole
    assert contents(tmp_path / "eight") == whole


@pytest.mark.slow
def test_a_killed_process_goes_on_to_the_same_bytes(finished, tmp_path):
    workdir = tmp_path / "killed"
    with start(workdir) as process:
        while process.poll() is None and not any(workdir.glob("parts/static_pipeline/*.json")):
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert not (workdir / "summary.json").exists()
    run(workdir)
    whole = {path: it for path, it in contents(workdir).items() if path.suffix != ".partial"}
    assert whole == contents(finished)


def test_another_configuration_is_refused(finished):
    with pytest.raises(InputError, match="belongs to another configuration"):
        run(finished, "--config.seed=1")


@pytest.mark.parametrize(
    ("option", "key"),
    [("--rounds=0", "--rounds"), ("--chunk=0", "--chunk"), ("--policies=x", r"policy\.name")],
)
def test_wrong_options_are_named(option, key, tmp_path):
    with pytest.raises(InputError, match=key):
        run(tmp_path / "run", option)


def test_the_same_decision_has_the_same_cost_under_any_policy():
    """Static pipeline and titanic agree where every device gets one block."""
    problem = pick(plain_problems(1, 2, 3, 3), 0)
    decide = quick_jit(lambda: (static_pipeline(problem, 2), titanic(problem, 2, 3)))
    one, two = decide()
    np.testing.assert_array_equal(one.segments, np.ones((2, 3)))
    cost = quick_jit(evaluate)
    jax.tree.map(np.testing.assert_array_equal, cost(problem, one), cost(problem, two))
