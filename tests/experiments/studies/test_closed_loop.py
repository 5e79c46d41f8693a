"""The closed loop on file: resumed, paired, honest about its constraints, and drawn."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict
from scipy import stats
from support import SUPPORT
from support.made_up_comparisons import random_loop

from collapipe_jax.cli.options import run_reporting_errors
from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import partial_path
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.environment import reset, simulate
from collapipe_jax.edge.policies.registry import POLICIES, PolicyEntry, make_policy
from collapipe_jax.runs.config.system import build_system_params
from collapipe_jax.runs.results.experiment import Results
from collapipe_jax.runs.results.realisations import DIVERGENCE_LIMIT, load_realisations
from collapipe_jax.runs.studies.montecarlo import realisation_keys
from experiments.studies import closed_loop
from experiments.studies.closed_loop import sample_path_excess, summarise
from experiments.studies.closed_loop_limits import network_groups
from figures import __main__ as all_figures

CONFIG = SUPPORT / "tiny_run.py"
ROUNDS, REALISATIONS = 6, 5
# Budgets near what is spent, so that queues move; devices always there, so that floors bind.
OVERRIDES = (
    "--config.dynamics.availability=1.0",
    "--config.control.control_unit_budget_j=0.002",
    "--config.control.control_unit_margin=0.0",
    "--config.control.device_budget_j=0.001",
)


def run(workdir, *more, policies="static_pipeline", v="1,10", overrides=OVERRIDES):
    closed_loop.main(
        [
            f"--config={CONFIG}",
            f"--workdir={workdir}",
            f"--rounds={ROUNDS}",
            f"--realisations={REALISATIONS}",
            "--chunk=2",
            f"--policies={policies}",
            f"--v={v}",
            *overrides,
            *more,
        ]
    )


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Workdir of a run that nothing disturbed; not to be changed."""
    workdir = tmp_path_factory.mktemp("closed_loop") / "run"
    run(workdir)
    return workdir


@pytest.fixture
def thriftier_with_v():
    """A policy that looks at V: the larger, the more power on the uplink."""

    def decide(problem):
        decision = static_pipeline(problem, 2)
        share = 0.01 + problem.control.v / (1.0 + problem.control.v)
        return decision.replace(d2e_power_w=decision.d2e_power_w * jnp.minimum(share, 1.0))

    traces = []

    def traced(problem):
        traces.append(1)
        return decide(problem)

    POLICIES["thrifty"] = PolicyEntry(traced)
    yield traces
    del POLICIES["thrifty"]


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(finished, tmp_path, monkeypatch):
    workdir, written, write = tmp_path / "run", [], Results.write

    def killed_at_the_fourth(results, part, data, place):
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(results.path(part))
        write(results, part, data, place)

    with monkeypatch.context() as patched:
        patched.setattr(Results, "write", killed_at_the_fourth)
        with pytest.raises(KeyboardInterrupt):
            run(workdir)
    kept = {path: path.stat().st_mtime_ns for path in written}
    run(workdir)
    assert contents(workdir) == contents(finished)
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())


@pytest.mark.slow
def test_shards_end_with_the_same_bytes(finished, tmp_path, capsys):
    run(tmp_path / "run", "--shard=1/2")
    assert "other shards lack 5 parts" in capsys.readouterr().out
    run(tmp_path / "run", "--shard=0/2")
    assert contents(tmp_path / "run") == contents(finished)


@pytest.mark.slow
def test_a_lost_chunk_is_made_again(finished, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(finished, workdir)
    (workdir / "parts" / "static_pipeline_v10.0" / "000004.json").unlink()  # the short one
    partial_path(workdir / "parts" / "half.json").write_text("{")  # of a process that was killed
    run(workdir)
    assert contents(workdir) == contents(finished)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    ["--rounds=7", "--realisations=6", "--v=1,11", "--policies=dssra", "--config.seed=1"],
)
def test_other_settings_are_refused(finished, more):
    before = contents(finished)
    with pytest.raises(InputError, match="another configuration"):
        run(finished, more)
    assert contents(finished) == before


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ("--rounds=0", "--rounds"),
        ("--v=1,-2", "--v"),
        ("--v=ten", "--v"),
        ("--policies=best", "policy.name"),
        ("--config.control.divergence_ratio=0.5", "divergence_ratio"),
    ],
)
def test_wrong_input_ends_with_one_message_and_leaves_nothing(more, word, tmp_path, capsys):
    workdir = tmp_path / "run"
    argv = [f"--config={CONFIG}", f"--workdir={workdir}", more]
    assert run_reporting_errors(closed_loop.main, argv) == 2
    message = capsys.readouterr().err
    assert word in message
    assert message.count("\n") == 1
    assert not workdir.exists()


@pytest.mark.slow
def test_the_summary_is_that_of_a_direct_simulation(finished):
    settings = json.loads((finished / "config.json").read_text())
    params = build_system_params(ConfigDict(settings["config"]), np.full(2, 0.5))
    kept = network_groups(load_realisations(finished, "closed_loop"))["within_floors"]
    keys = realisation_keys(settings["config"]["seed"], REALISATIONS)[kept]
    policy = make_policy("static_pipeline", 2)
    history = jax.jit(jax.vmap(lambda key: simulate(reset(key, params), policy, ROUNDS)))(keys)
    control = [closed_loop.drawn(key, params)[0].control for key in keys]

    reference_s = np.array([one.reference_latency_s for one in control])
    latency_s = np.asarray(history.cost.latency_s, float).mean(1)
    budget_j = np.asarray(control[0].energy_budget_j)
    energy = np.asarray(history.cost.energy_j, float) / budget_j
    target = np.array([one.divergence_target for one in control])
    divergence = np.asarray(history.cost.divergence, float) / target[:, None]
    summary = json.loads((finished / "summary.json").read_text())
    (one,) = (case for case in summary["cases"] if case["v"] == 10.0)
    group = one["within_floors"]
    assert summary["networks"]["within_floors"] == group["realisations"] == len(keys) > 2
    assert group["mean_latency_s"]["mean"] == pytest.approx(latency_s.mean(), rel=1e-5)
    ratio = latency_s / reference_s
    assert group["latency_over_reference"]["mean"] == pytest.approx(ratio.mean(), rel=1e-5)
    half = stats.t.ppf(0.975, len(keys) - 1) * ratio.std(ddof=1) / np.sqrt(len(keys))
    assert group["latency_over_reference"]["ci95"] == pytest.approx(half, rel=1e-3)
    assert group["energy_over_budget"]["worst"] == pytest.approx(energy.mean(1).max(), rel=1e-5)
    expected = {
        "final_energy_queue_over_rounds": np.max(history.queues.energy[:, -1]) / ROUNDS,
        "final_divergence_queue_over_rounds": np.max(history.queues.divergence[:, -1]) / ROUNDS,
        "divergence_over_target": divergence.mean(1).max(),
    }
    for name, worst in expected.items():
        assert group[name]["worst"] == pytest.approx(float(worst), rel=1e-4, abs=1e-6)
    steps = ((energy - 1) ** 2).sum((2, 3)).mean(1) / 2 + ((divergence - 1) ** 2).mean(1) / 2
    assert group["drift_constant"]["mean"] == pytest.approx(steps.mean(), rel=1e-4)
    backlog = np.asarray(history.queues.energy).sum((2, 3)).mean(1)
    backlog = backlog + np.asarray(history.queues.divergence).mean(1)
    assert group["mean_backlog"]["mean"] == pytest.approx(backlog.mean(), rel=1e-4)
    share = np.mean(np.all(energy.mean(1) <= 1.01, axis=(1, 2)))
    assert group["share_met"]["energy"] == pytest.approx(share)
    assert backlog.mean() > 0


@pytest.mark.slow
def test_a_policy_that_does_not_look_at_v_does_the_same(finished):
    one, ten = load_realisations(finished, "closed_loop").cases
    for name, value in one.values.items():
        np.testing.assert_array_equal(value, ten.values[name])


@pytest.mark.slow
def test_the_books_of_the_queues_balance(finished):
    result = load_realisations(finished, "closed_loop")
    values = result.cases[0].values
    assert np.max(values["final_energy_queue"]) > 0
    excess = sample_path_excess(values, ROUNDS)
    assert 0 <= max(excess.values()) < 1e-6
    assert all(case["sample_path_holds"] for case in summarise(result)["cases"])
    broken = {**values, "final_energy_queue": 0.9 * values["final_energy_queue"]}
    assert sample_path_excess(broken, ROUNDS)["energy"] > 1e-3


@pytest.mark.slow
def test_queues_end_no_lower_than_the_fades_that_were_met_allow(finished):
    result = load_realisations(finished, "closed_loop")
    least = result.networks["least_final_queue"]
    assert least.shape == (REALISATIONS, 2)
    assert least.max() > 0
    kept = result.cases[0].values["divergence_over_target"] <= DIVERGENCE_LIMIT
    assert kept.any()
    ended = result.cases[0].values["final_energy_queue"][:, :, 0]
    assert np.all(ended[kept] >= least[kept] * (1 - 1e-4))


@pytest.mark.slow
def test_a_sweep_compiles_once_and_is_drawn_from_its_files(thriftier_with_v, tmp_path, capsys):
    roomy = (OVERRIDES[0], "--config.control.divergence_ratio=5.0")
    run(tmp_path / "one", policies="thrifty", v="1", overrides=roomy)
    traced_for_one = len(thriftier_with_v)
    run(tmp_path / "three", policies="static_pipeline,thrifty", v="1,3,100", overrides=roomy)
    assert 0 < len(thriftier_with_v) == traced_for_one
    workdir = tmp_path / "three"
    thrifty = [
        case for case in load_realisations(workdir, "closed_loop").cases if case.policy == "thrifty"
    ]
    latency = [case.values["mean_latency_s"].mean() for case in thrifty]
    assert latency[0] > latency[1] > latency[2]

    capsys.readouterr()
    all_figures.main(["tradeoff", f"--workdir={workdir}"])
    told = capsys.readouterr().out
    assert "static_pipeline: the same whatever V is" in told
    assert "thrifty, 5 networks" in told
    for suffix in ("pdf", "png"):
        assert (workdir / "figures" / f"tradeoff.{suffix}").stat().st_size > 1000


def test_networks_that_no_policy_can_help_are_counted_apart():
    result = random_loop((1.0,), networks=7, rounds=100)
    result.networks["least_final_queue"][6, 1] = 1.01
    result.networks["least_final_queue"][5, 1] = 0.99
    result.networks["control_unit_floor"][0, 1] = 1.5
    result.networks["device_floor"][1, 0] = 1.0
    result.networks["can_run"][2] = False
    result.networks["reference_latency_s"][3] = np.inf
    groups = network_groups(result)
    np.testing.assert_array_equal(np.flatnonzero(groups["below_floors"]), [0, 1, 6])
    np.testing.assert_array_equal(np.flatnonzero(groups["cannot_run"]), [2, 3])
    np.testing.assert_array_equal(np.flatnonzero(groups["within_floors"]), [4, 5])
    summary = summarise(result)
    assert summary["networks"]["below_floors"] == 3
    assert summary["cases"][0]["below_floors"]["realisations"] == 3
    assert summary["cases"][0]["within_floors"]["constraints_met"]
    dynamics = result.settings["config"]["dynamics"]
    for key, value in (("availability", 0.9), ("speed_m_per_s", 1.4)):
        with pytest.MonkeyPatch.context() as changed:
            changed.setitem(dynamics, key, value)
            assert summarise(result)["networks"]["below_floors"] == 1


@pytest.mark.slow
def test_budgets_below_their_floor_are_reported(tmp_path):
    run(tmp_path / "run", v="1", overrides=(OVERRIDES[0], "--config.control.device_budget_j=1e-9"))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["networks"]["below_floors"] == REALISATIONS
    assert summary["cases"][0]["within_floors"] is None


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["missing", "cut", "foreign"])
def test_a_damaged_workdir_is_reported(damage, finished, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(finished, workdir)
    chunk = next((workdir / "results.zarr" / "mean_latency_s").glob("c/0/*/*"))
    if damage == "missing":
        chunk.unlink()
    elif damage == "cut":
        chunk.write_bytes(chunk.read_bytes()[:-3])
    else:
        (workdir / "config.json").write_text("{}")
    with pytest.raises(InputError) as told:
        load_realisations(workdir, "closed_loop")
    assert told.value.key == "workdir"
    assert "\n" not in str(told.value)
