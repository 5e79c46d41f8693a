"""A run from its first round to its summary."""

import dataclasses
import io
import json

import jax
import numpy as np
import pytest
from rich.console import Console
from support import tiny_run
from support.compilations import compiles
from support.leaves_close import assert_same
from support.metrics import read_metrics
from support.rounds import run_round
from support.tiny_runs import ROUNDS, interrupt_in, run

import collapipe_jax as cp
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.results.checkpoints import Checkpoints
from collapipe_jax.runs.training import history
from collapipe_jax.runs.training.history import run_constants
from collapipe_jax.runs.training.learning_rounds import LearningRounds, learn
from collapipe_jax.runs.training.ongoing_run import OngoingRun, initial_run_state


def test_one_line_a_round_with_finite_numbers(undisturbed):
    workdir, record, _ = undisturbed
    lines = read_metrics(workdir)
    assert [line["round"] for line in lines] == list(range(ROUNDS))
    for name in ("latency_s", "energy_j", "energy_queue", "simulated_time_s", "train_loss"):
        assert np.isfinite(np.array([line[name] for line in lines], float)).all()
        np.testing.assert_allclose([line[name] for line in lines], record.history[name])
    elapsed = np.cumsum([line["latency_s"] for line in lines])
    np.testing.assert_allclose([line["simulated_time_s"] for line in lines], elapsed)
    scored = [line["round"] for line in lines if line["score"] is not None]
    assert scored == [2, 5]
    assert [line["round"] for line in lines if line["validation_loss"] is not None] == scored


def test_constants_and_summary_agree_with_history(undisturbed, experiment):
    workdir, record, _ = undisturbed
    summary = json.loads((workdir / "summary.json").read_text())
    history = record.history
    assert summary["simulated_time_s"] == history["simulated_time_s"][-1]
    assert summary["rounds_with_absent_clusters"] == history["absent"].any(1).sum()
    sizes = experiment.task.model.sizes
    assert 0.0 < summary["test_loss"] < np.log(sizes.vocabulary_size) + 1.0
    assert {"best_round", "cluster_scores"}.isdisjoint(summary)  # of keys that are off
    budget_j = record.constants["energy_budget_j"]
    assert budget_j.shape == history["energy_j"].shape[1:]
    over = (history["energy_j"].mean(0) / budget_j).max()
    assert summary["worst_energy_over_budget"] == pytest.approx(over, rel=1e-6)


def test_it_learns(undisturbed):
    history = undisturbed[1].history
    assert history["train_loss"][-1] < history["train_loss"][0] - 0.3
    losses = history["validation_loss"][np.isfinite(history["validation_loss"])]
    assert losses[-1] < losses[0]


def test_absent_clusters_and_changing_decisions_cost_one_compilation(undisturbed):
    _, record, compilations = undisturbed
    segments, absent = record.history["segments"], record.history["absent"]
    assert len(np.unique(segments, axis=0)) > 2
    assert absent.any()
    assert not absent.all(1).any()
    np.testing.assert_array_equal(segments.sum(-1) == 0, absent)
    np.testing.assert_array_equal(record.history["energy_j"][absent], 0.0)
    assert compilations == [1, 1]


def test_a_round_that_everybody_misses(experiment):
    """The clock stands still, nothing is learnt, and the file stays JSON."""
    system = experiment.system
    nobody = system.replace(dynamics=system.dynamics.replace(availability=np.float64(0.0)))
    alone = dataclasses.replace(experiment, system=nobody)
    state = initial_run_state(alone)
    after, metrics = run_round(alone, state, 0)
    assert_same(after.learning, state.learning)
    assert metrics["absent"].all()
    assert metrics["latency_s"] == 0.0
    assert json.loads(history.metrics_line(metrics))["train_loss"] is None


def test_a_missing_number_is_null_in_lines_and_nan_in_arrays(undisturbed):
    workdir, record, _ = undisturbed
    scores = [row["score"] for row in read_metrics(workdir)]
    assert None in scores
    is_null = [score is None for score in scores]
    np.testing.assert_array_equal(np.isnan(record.history["score"]), is_null)
    assert "NaN" not in (workdir / "metrics.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "micro_batches", "schedule"),
    [("vmapped", 2, "gpipe"), ("sharded", 0, "gpipe"), ("sharded", 2, "1f1b")],
)
def test_a_run_on_a_pipeline_is_the_run_on_one_scan(
    backend, micro_batches, schedule, experiment, undisturbed, tmp_path
):
    """Segments as decided in every round, interrupted once; the same losses up to rounding."""
    config = tiny_run.get_config()
    config.pipeline.update({"backend": backend, "micro_batches": micro_batches})
    config.pipeline.schedule = schedule
    config.training.rounds = 3
    piped = build_experiment(config)
    # Three rounds of the schedule of six, like the run they are held against.
    piped = dataclasses.replace(piped, optimizers=experiment.optimizers)
    state = initial_run_state(piped)
    losses = []
    with compiles(learn, 1):
        for index in range(3):
            state, metrics = run_round(piped, state, index)
            losses.append(metrics["train_loss"])
            if index == 0:
                with Checkpoints(tmp_path) as checkpoints:
                    record = {"history": {"train_loss": np.float32(losses)}}
                    checkpoints.save(1, state, record | {"constants": run_constants(piped)})
                    state, _ = checkpoints.load(1, initial_run_state(piped))
    _, record, _ = undisturbed
    np.testing.assert_allclose(losses, record.history["train_loss"][:3], rtol=1e-4)


@pytest.mark.parametrize(
    ("devices", "told"),
    [(8, "2 x 2 devices run 2 clusters x 2 stages; 4 are idle"), (2, "2 x 1 devices run 2")],
)
def test_a_run_says_how_stages_share_devices(devices, told, tmp_path, monkeypatch):
    config, first, out = tiny_run.get_config(), jax.devices()[:devices], io.StringIO()
    config.pipeline.backend = "sharded"
    monkeypatch.setattr(jax, "devices", lambda: first)
    with OngoingRun(build_experiment(config), tmp_path, False, Console(file=out, width=200)):
        assert told in out.getvalue()


@pytest.mark.slow
def test_clients_train_whole_copies_and_resume_to_the_same_bytes(tmp_path, monkeypatch):
    config = tiny_run.get_config()
    config.policy.name = "splitfed"
    config.dynamics.availability = 0.8
    experiment = build_experiment(config)
    record = run(experiment, tmp_path / "whole")
    stopped = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        interrupt_in(patch, LearningRounds, "advance", ROUNDS // 2)
        with pytest.raises(KeyboardInterrupt):
            run(experiment, stopped)
    run(experiment, stopped, resume=True)
    for file in ("metrics.jsonl", "summary.json"):
        assert (stopped / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    history = record.history
    assert history["samples"].shape == (ROUNDS, 2, 2)
    assert np.all(np.isfinite(history["train_loss"]))
    assert np.all(history["energy_j"][:, :, 0] == 0.0)
    assert (history["loss_probability"] > 0).any()
    summary = json.loads((stopped / "summary.json").read_text())
    assert set(summary["violated_rounds"]) == {
        "samples",
        "d2e_share",
        "d2e_power",
        "memory",
        "server_memory",
    }


@pytest.mark.slow
@pytest.mark.parametrize(("name", "clients"), [("control_unit_fl", 1), ("hierarchical_fl", 2)])
def test_whole_models_train_on_control_units_and_over_two_hops(name, clients, tmp_path):
    config = tiny_run.get_config()
    config.policy.update({"name": name, "deadline": 100.0})
    record = run(build_experiment(config), tmp_path)
    assert record.history["samples"].shape == (ROUNDS, 2, clients)
    losses = record.history["train_loss"]
    assert np.all(np.isfinite(losses))
    assert losses[-1] < losses[0]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert 0.0 < summary["participation"] <= 1.0
    assert summary["peak_device_memory_bytes"] > 0.0


@pytest.mark.parametrize("section", ["network", "model", "task"])
def test_a_seed_of_its_own_changes_its_section_alone(section):
    config = tiny_run.get_config()
    plain, same = build_experiment(config), tiny_run.get_config()
    same.seed, same.network.seed, same.model.seed, same.task.seed = 7, 0, 0, 0
    same[section].seed = -1
    other = build_experiment(same)

    def drawn(experiment):
        state = initial_run_state(experiment)
        params = jax.tree.leaves(state.learning.params)
        return {
            "network": np.asarray(experiment.system.mean_problem.radio.d2e_gain),
            "model": np.concatenate([np.ravel(leaf) for leaf in params]),
            "task": experiment.cluster_indices[0],
        }

    for name, (a, b) in {n: (drawn(plain)[n], drawn(other)[n]) for n in drawn(plain)}.items():
        assert np.array_equal(a, b) is (name != section), name


@pytest.mark.slow
def test_a_run_from_python_needs_no_folder_and_may_be_repeated(tmp_path):
    config = tiny_run.get_config()
    config.training.rounds = 2
    kept = cp.train(config, tmp_path / "run", quiet=True)
    again = cp.train(config, tmp_path / "run", quiet=True)
    without = cp.train(config, quiet=True)
    for other in (again, without):
        assert_same(kept.params, other.params)
        assert other.summary == kept.summary
        assert len(other.history["train_loss"]) == 2
