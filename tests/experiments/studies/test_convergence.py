"""The experiment on how losses slow a real task, on made-up and on tiny runs."""

import jax
import numpy as np
import pytest
from rich.console import Console
from support import tiny_run
from support.drawing import rendered
from support.tiny_system import tiny_params

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.feasibility import is_feasible
from collapipe_jax.edge.system import sample_system
from collapipe_jax.runs.results.datasets import open_results
from collapipe_jax.runs.results.experiment import Results
from collapipe_jax.runs.results.store import Shard
from collapipe_jax.runs.studies import race as shards
from experiments.studies import convergence
from experiments.studies.convergence import (
    AXES,
    BASE,
    ConvergenceStudy,
    Setting,
    compare_values,
    load_study,
    rank_agreement,
    save_study,
    steps_table,
)
from experiments.studies.seeds import experiments_of_seeds
from figures.convergence import GOAL, draw, times_to_goal

AROUND = {"base": BASE._asdict(), "axes": AXES}


def fitting():
    """A tiny configuration that all settings fit."""
    config = tiny_run.get_config()
    config.training.update({"batch": 16, "micro_batch_choices": (1, 2, 4, 8, 16)})
    config.network.devices = 4
    return config


SETTINGS = convergence.settings_of(fitting())


def made_up(seed, setting, loss, score=(1.0, 4.0, 10.0)):
    return {
        **setting._asdict(),
        "seed": seed,
        "divergence": 10 * loss,
        "erased": 0.1,
        "latency_s": 2.0,
        "train_loss": loss,
        "last_score": score[-1],
        "simulated_time_s": [5.0, 10.0, 15.0, 20.0, 25.0, 30.0],
        "score": [np.nan, score[0], np.nan, score[1], np.nan, score[2]],
    }


def study_of(rows):
    return ConvergenceStudy(**AROUND, rows=rows)


@pytest.fixture
def rows():
    """Losses that fall by 0.1 a micro-batch, of seed 1 by 0.3, and rise with the rest."""
    return [
        made_up(
            seed,
            setting,
            4.0 + seed - (0.1 + 0.2 * seed) * setting.micro_batches + setting.stages,
            score=(1.0, 4.0, 10.0 + setting.micro_batches),
        )
        for setting in SETTINGS
        for seed in (1, 0)
    ]


def test_neighbours_are_compared_seed_by_seed(rows):
    study = study_of(rows)
    steps = compare_values(study)
    assert [(step["axis"], step["from"], step["to"]) for step in steps[:2]] == [
        ("micro_batches", 1, 2),
        ("micro_batches", 2, 4),
    ]
    assert steps[0]["train_loss"]["mean"] == pytest.approx(-0.2)  # of 0.1 and 0.3
    # Student with one degree of freedom: 12.706 x 0.1.
    assert steps[0]["train_loss"]["ci95"] == pytest.approx(1.2706, rel=1e-3)
    assert steps[0]["last_score"] == {"mean": 1.0, "ci95": 0.0}
    assert steps[0]["divergence_rises"] == 0.0
    assert next(step for step in steps if step["axis"] == "stages")["divergence_rises"] == 1.0
    assert steps_table(steps).row_count == len(steps)
    assert steps[4]["train_loss"]["mean"] == pytest.approx(-3.0)  # from the first to the last
    assert [row["seed"] for row in study.of("stages", 2)] == [0, 1]


def test_order_by_the_bound_is_compared_within_seeds(rows):
    assert rank_agreement(rows)["mean"] == pytest.approx(1.0)  # divergence is made from the loss
    for row in rows:
        if row["seed"] == 1:
            row["divergence"] *= -1
    assert rank_agreement(rows)["mean"] == pytest.approx(0.0, abs=1e-12)


def test_times_are_interpolated_and_infinite_where_the_goal_is_missed(rows):
    for row in rows:
        if row["micro_batches"] == 1:
            row["score"][1::2] = [1.0, 1.5, 2.0]
        if row["micro_batches"] == 2:
            row["simulated_time_s"] = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    times = times_to_goal(study_of(rows))
    assert np.all(np.isinf(times[:, 0]))
    last = 10.0 + np.array([2, 4, 8, 16])
    expected = np.array([2, 1, 1, 1]) * (20 + 10 * (GOAL * last.max() - 4) / (last - 4))
    np.testing.assert_allclose(times[:, 1:], [expected / expected.min()] * 2)


def test_all_panels_are_drawn(rows):
    figure = draw(study_of(rows))
    assert len(figure.axes) == 6
    assert all(axes.has_data() for axes in figure.axes)
    assert [axes.get_xlabel().split()[0] for axes in figure.axes[:3]] == [
        "Micro-batches",
        "Stages",
        "Time",
    ]


def test_a_study_on_file_is_the_one_that_was_written(rows, tmp_path):
    results = Results.create(tmp_path, "convergence", AROUND, {})
    save_study(study_of(rows), results)
    found = load_study(tmp_path)
    np.testing.assert_equal(found, study_of(rows))
    assert found.of("micro_batches", 2) == found.of("activity", 0.5)  # both are the base
    assert open_results(tmp_path).score.dims == ("run", "round")
    assert list(rendered(draw(found)).axes[0].get_xticks()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("stages", "micro_batches"),
    [(3, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 4), (2, 1)))],
)
def test_blocks_stand_on_the_first_devices(stages, micro_batches):
    problem = jax.jit(sample_system)(jax.random.key(0), tiny_params()).mean_problem
    stages = min(stages, problem.devices)
    decide = jax.jit(convergence.fixed_pipeline(stages, micro_batches))
    decision = decide(jax.random.key(1), problem)
    assert is_feasible(problem, decision)
    runs = np.asarray(decision.segments).sum(axis=1) > 0
    assert runs.any()
    assert not np.asarray(decision.segments)[:, stages:].any()
    assert np.all(np.asarray(decision.micro_batches)[runs] == micro_batches)


@pytest.mark.slow
def test_every_run_is_trained_under_its_setting(tmp_path, monkeypatch):
    """What is handed to training, which has tests of its own."""
    trained = {}

    def fake_train(experiments, folders, **_):
        names = [folder.relative_to(tmp_path).as_posix() for folder in folders]
        trained.update(zip(names, experiments, strict=True))
        for folder in folders:
            folder.mkdir(parents=True)
            (folder / "summary.json").write_text("{}")

    monkeypatch.setattr(shards, "train_together", fake_train)
    settings = (Setting(1, 1, 0.0), Setting(4, 2, 1.0))
    experiments = experiments_of_seeds(tiny_run.get_config(), 2)
    arguments = list(experiments), settings, tmp_path, Console(quiet=True)
    assert convergence.train_settings(*arguments, Shard(1, 2))[0] == 2
    assert [*trained] == [f"seed{seed}/{settings[1].name}" for seed in (0, 1)]
    missing, labels = convergence.train_settings(*arguments, Shard(0, 2))
    assert missing == 0
    assert [*labels] == [tmp_path / f"seed{seed}" / one.name for seed in (0, 1) for one in settings]
    assert labels[tmp_path / "seed1" / settings[0].name] == settings[0]._asdict() | {"seed": 1}
    assert sorted(trained) == sorted(path.relative_to(tmp_path).as_posix() for path in labels)
    for folder, label in labels.items():
        experiment = trained[folder.relative_to(tmp_path).as_posix()]
        problem = experiment.system.mean_problem
        assert float(problem.radio.d2d_activity) == label["activity"]
        decision = experiment.policy(jax.random.key(0), problem)
        held = np.asarray(decision.segments).sum(axis=1) > 0
        assert np.all(np.asarray(decision.micro_batches)[held] == label["micro_batches"])
        assert experiment.config["seed"] == label["seed"]


def test_the_outcome_of_a_run():
    values = np.arange(1.0, 5.0)
    names = ("divergence", "erased_fraction", "latency_s", "train_loss", "simulated_time_s")
    score = np.array([np.nan, 3.0, np.nan, 7.0])
    row = convergence.outcome(dict.fromkeys(names, values) | {"score": score})
    assert row["train_loss"] == 4.0  # of the last quarter
    np.testing.assert_array_equal(row["simulated_time_s"], values)
    np.testing.assert_array_equal(row["score"], score)
    assert row["last_score"] == 7.0


@pytest.mark.parametrize(("name", "value"), [("micro_batch_choices", (1, 2, 4)), ("devices", 3)])
def test_settings_that_do_not_fit_are_named(name, value):
    config = fitting()
    section = config.network if name == "devices" else config.training
    section[name] = value
    with pytest.raises(InputError, match=name):
        convergence.settings_of(config)


def test_wrong_input_leaves_no_workdir(tmp_path):
    workdir = tmp_path / "run"
    common = [f"--config={tiny_run.__file__}", f"--workdir={workdir}"]
    fits = ["--config.network.devices=4", "--config.training.batch=16"]
    fits.append("--config.training.micro_batch_choices=(1, 2, 4, 8, 16)")
    for wrong, key in (
        (["--config.network.devices=3", *fits[1:]], r"network\.devices"),
        ([*fits, "--seeds=1"], "--seeds"),
        ([*fits, "--config.task.corpus=none.txt"], r"task\.corpus"),
    ):
        with pytest.raises(InputError, match=key):
            convergence.main([*common, *wrong])
        assert not workdir.exists()
