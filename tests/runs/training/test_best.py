"""Which parameters of a run are tested: the best by validation, and the average of the server."""

import dataclasses
import io
import itertools
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from rich.console import Console
from support import tiny_run
from support.metrics import read_metrics

from collapipe_jax.learning.federated.optimizers import Rules
from collapipe_jax.learning.tasks.translation import Translation
from collapipe_jax.runs.config.experiment import build_experiment, build_rules
from collapipe_jax.runs.training.learning_rounds import LearningRounds
from collapipe_jax.runs.training.loop import train_together
from collapipe_jax.runs.training.ongoing_run import cluster_scores
from experiments.studies import central

QUIET = Console(file=io.StringIO())


def tiny(decay=0.0, **evaluation):
    """Two runs of one program that keep the best, with a score after rounds 3 and 6."""
    config = tiny_run.get_config()
    config.evaluation.update(evaluation)
    config.training.server_average = decay
    return config


@pytest.fixture(scope="module")
def experiments():
    first = build_experiment(tiny(0.5, keep_best=True))
    config = tiny(0.9, keep_best=True)
    config = {"config": config.to_dict(), "rules": build_rules(config)}
    return [first, dataclasses.replace(first, **config)]


@pytest.fixture
def worsening(monkeypatch):
    """A score that falls as models learn: the loss; with the parameters that it judged."""
    judged = []

    def score(objective, params):
        loss = objective.loss(params, objective.data.validation)
        judged.append((round(loss, 6), jax.tree.map(np.array, params)))
        return loss, loss

    monkeypatch.setattr(Translation, "validate", score)
    return judged


def together(experiments, root, **options):
    folders = [root / str(index) for index in range(len(experiments))]
    return train_together(experiments, folders, console=QUIET, devices=jax.devices()[:1], **options)


@pytest.mark.slow
def test_the_best_round_is_tested_and_survives_a_kill(
    experiments, worsening, tmp_path, monkeypatch
):
    runs, data = together(experiments, tmp_path / "whole"), experiments[0].task.data
    for index, run in enumerate(runs):
        scores = [row["score"] for row in read_metrics(tmp_path / "whole" / str(index))]
        assert scores[2] > scores[5]
        assert run.summary["best_round"] == 2
        (params,) = (own for loss, own in worsening if abs(loss - scores[2]) < 1e-5)
        jax.tree.map(np.testing.assert_array_equal, run.params, params)
        loss = experiments[0].task.loss(params, data.test)
        np.testing.assert_allclose(run.summary["test_loss"], loss, rtol=1e-6)
    whole, calls = LearningRounds.advance, itertools.count(1)

    def killed(learning, rounds):
        if next(calls) == 5:  # after the second checkpoint
            raise SystemExit
        return whole(learning, rounds)

    with monkeypatch.context() as patch:
        patch.setattr(LearningRounds, "advance", killed)
        with pytest.raises(SystemExit):
            together(experiments[:1], tmp_path / "killed")
    (again,) = together(experiments[:1], tmp_path / "killed", resume=True)
    jax.tree.map(np.testing.assert_array_equal, again.params, runs[0].params)
    first, second = (tmp_path / name / "0" / "summary.json" for name in ("whole", "killed"))
    assert first.read_bytes() == second.read_bytes()


def test_the_clusters_scores_weigh_samples_by_the_mix_of_their_own():
    """Domains 0, 1 and 2 with scores 100, 50 and 0; nobody trains on 3."""
    keys = np.array([0, 0, 1, 1, 2, 3])
    scores = np.array([100.0, 100.0, 100.0, 0.0, 0.0, 100.0])
    own = np.array([0, 0, 0, 1, 2, 2, 4])
    clusters = [np.array([0, 1, 3]), np.array([4]), np.array([2, 5]), np.array([0, 6]), [6]]
    task = SimpleNamespace(
        sample_scores=lambda params: (scores, keys), data=SimpleNamespace(split_keys=own)
    )
    experiment = SimpleNamespace(task=task, cluster_indices=clusters)
    found = cluster_scores(experiment, {})
    np.testing.assert_allclose(found, [250 / 3, 0.0, 50.0, 100.0, np.nan], rtol=1e-6)


@pytest.mark.parametrize(("keeps", "expected"), [(True, [6, 3]), (False, [8, 8])])
def test_central_training_keeps_the_best_where_the_runs_do(keeps, expected, monkeypatch):
    """Scores by round that peak in round 6 and 3 of 8, judged every third round."""

    class Counting:
        def __init__(self, learners, states, place, buckets):
            self.done = 0

        def advance(self, rounds):
            self.done = rounds[0].stop

        def state(self, run):
            return SimpleNamespace(scored_params={"w": np.array([run, self.done])})

    def score(params):
        run, done = params["w"]
        return -abs(done - (6, 3)[run])

    config = {"training": {"rounds": 8, "length_buckets": 1}}
    config["evaluation"] = {"every_rounds": 3, "keep_best": keeps}
    task = SimpleNamespace(merit=float, validate=lambda params: (0.0, score(params)))
    one = SimpleNamespace(config=config, task=task)
    state = SimpleNamespace(learning=SimpleNamespace(params={}))
    for name, fake in {
        "LearningRounds": Counting,
        "central_learner": lambda experiment: SimpleNamespace(init=lambda params: params),
        "initial_run_state": lambda experiment: state,
        "learning_place": lambda experiment: None,
        "central_rounds": lambda experiment, numbers: numbers,
    }.items():
        monkeypatch.setattr(central, name, fake)
    found = central.train_centrally([one, one], QUIET)
    assert [int(run.params["w"][1]) for run in found] == expected
    assert [run.score for run in found] == [score(run.params) for run in found]


def test_the_central_reference_averages_as_the_server_does(experiments):
    for experiment, decay in zip(experiments, (0.5, 0.9), strict=True):
        assert central.central_learner(experiment).rules == Rules(server_average=decay)
