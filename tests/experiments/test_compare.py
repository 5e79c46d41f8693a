import json
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

from collapipe_jax.compilation import quick_jit
from collapipe_jax.config.system import build_system_params
from collapipe_jax.cost.round import price
from collapipe_jax.cost.static_pipeline import static_pipeline
from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import write_json
from collapipe_jax.files.realisations import METRICS, Case, Realisations, load_realisations
from collapipe_jax.policies.registry import make_policy
from collapipe_jax.policies.titanic import titanic
from collapipe_jax.simulation.environment import simulate
from collapipe_jax.simulation.montecarlo import realisation_keys
from experiments import compare
from experiments.compare import summarise

CONFIG = SUPPORT / "tiny_run.py"
ROUNDS, REALISATIONS, CHUNK = 4, 5, 3
POLICIES = ("static_pipeline", "vanilla_fl", "splitfed")


def arguments(workdir):
    return [
        f"--config={CONFIG}",
        f"--workdir={workdir}",
        f"--rounds={ROUNDS}",
        f"--realisations={REALISATIONS}",
        f"--chunk={CHUNK}",
        f"--policies={','.join(POLICIES)}",
    ]


def run(workdir, *more):
    compare.main([*arguments(workdir), *more])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("compare") / "run"
    run(workdir)
    return workdir


@pytest.mark.parametrize("name", ["static_pipeline", "splitfed"])
def test_what_is_on_file_is_what_was_simulated(finished, name):
    result = load_realisations(finished, "compare")
    config = ConfigDict(result.settings["config"])
    params = build_system_params(config, np.full(2, 0.5))
    index = 4  # in the second, filled-up chunk
    key = realisation_keys(config.seed, REALISATIONS)[index]
    history = jax.jit(
        lambda key: simulate(key, params, make_policy(name, config.policy.micro_batches), ROUNDS)
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
        for metric in METRICS:
            assert set(told[metric]) == {"mean", "ci95", "median"}
        assert told["violations"]["memory"] is not None
    assert summary["reduction_percent"] == {}  # nothing to reduce without dssra
    assert summary["realisations"] + summary["realisations_left_out"] == REALISATIONS
    assert summary["policies"]["vanilla_fl"]["micro_batches"]["mean"] == 1.0


def test_a_run_goes_on_to_the_same_bytes(finished, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(finished, again)
    (again / "summary.json").unlink()
    networks, lost = "results/networks.npz", "results/splitfed_v3.0/000003.npz"
    for file in (networks, lost):
        (again / file).unlink()
    first = again / "results/splitfed_v3.0/000000.npz"
    kept = first.stat().st_mtime_ns
    run(again)
    assert first.stat().st_mtime_ns == kept
    for file in ("summary.json", networks, lost):
        assert (again / file).read_bytes() == (finished / file).read_bytes()


@pytest.mark.slow
def test_a_killed_process_goes_on_to_the_same_bytes(finished, tmp_path):
    workdir = tmp_path / "killed"
    command = [sys.executable, "-m", "experiments.compare", *arguments(workdir)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not any(
            workdir.glob("results/static_pipeline_v3.0/*.npz")
        ):
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    done, whole = (
        {path.relative_to(folder) for path in folder.glob("results/**/*.npz")}
        for folder in (workdir, finished)
    )
    assert done < whole
    assert not (workdir / "summary.json").exists()
    run(workdir)
    for file in ("summary.json", *whole):
        assert (workdir / file).read_bytes() == (finished / file).read_bytes()


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


def made_up(latency_s, divergence=1.0):
    """A policy's values over two networks and three rounds."""
    per_round = np.ones((2, 3))
    return {
        **{name: per_round.copy() for name in (*METRICS, "active_devices", "micro_batches")},
        "loss_probability": per_round,
        "latency_s": np.array(latency_s)[:, None] * per_round,
        "divergence": divergence * per_round,
        "mean_energy_j": np.array([[[0.5, 1.5]], [[0.5, 0.5]]]),
        "absent_rounds": np.array([[0], [3]]),
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
    return Realisations({"options": {"rounds": 3}}, networks, cases)


def test_reductions_are_taken_network_by_network():
    summary = summarise(comparison(dssra=made_up([1.0, 8.0]), slow=made_up([2.0, 10.0])))
    told = summary["reduction_percent"]["latency_s"]["slow"]
    assert told["mean"] == pytest.approx(35.0)  # of 50 % and 20 %, not of the means' 25 %
    assert told["ci95"] == pytest.approx(12.7062 * 15.0, rel=1e-4)


def test_violations_are_shares():
    (told,) = summarise(comparison(other=made_up([1.0, 1.0], 1.02)))["policies"].values()
    assert told["violations"]["memory"] == pytest.approx(0.5)
    assert told["violations"]["energy"] == pytest.approx(0.25)
    assert told["violations"]["networks_over_energy"] == pytest.approx(0.5)
    assert told["violations"]["worst_energy_over_budget"] == pytest.approx(1.5)
    assert told["violations"]["divergence"] == 1.0
    assert told["violations"]["absent"] == pytest.approx(0.5)


def test_networks_that_cannot_run_are_left_out():
    result = comparison(dssra=made_up([1.0, np.inf]), slow=made_up([2.0, np.inf]))
    result.networks["can_run"][1] = False
    summary = summarise(result)
    assert summary["realisations_left_out"] == 1
    assert summary["reduction_percent"]["latency_s"]["slow"]["mean"] == pytest.approx(50.0)


def test_infinite_values_are_unknown_and_json_stays_strict(tmp_path):
    broken = made_up([2.0, np.inf], np.inf)
    summary = summarise(comparison(dssra=made_up([1.0, 1.0]), broken=broken))
    told = summary["policies"]["broken"]
    assert told["latency_s"]["mean"] is None
    assert told["divergence"]["median"] is None
    write_json(tmp_path / "summary.json", summary)
    text = (tmp_path / "summary.json").read_text()
    assert not {"NaN", "Infinity"} & set(text.replace(",", " ").split())
    read = json.loads(text)["policies"]["broken"]["violations"]
    assert read["worst_divergence_over_target"] is None
    assert compare.summary_table(summary).row_count == 2


def test_the_same_decision_has_the_same_price_whoever_made_it():
    """Static pipeline and titanic agree where every device gets one block."""
    problem = pick(plain_problems(1, 2, 3, 3), 0)
    decide = quick_jit(lambda: (static_pipeline(problem, 2), titanic(problem, 2, 3)))
    one, two = decide()
    np.testing.assert_array_equal(one.segments, np.ones((2, 3)))
    priced = quick_jit(price)
    jax.tree.map(np.testing.assert_array_equal, priced(problem, one), priced(problem, two))
