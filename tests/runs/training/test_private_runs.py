"""Training runs with privacy: epsilon on file, interruptions, several at once."""

import io
import json

import jax
import numpy as np
import pytest
from rich.console import Console
from support import tiny_run
from support.compilations import compiles
from support.metrics import read_metrics

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.federated.privacy import epsilon_of
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.training.learning_rounds import learn
from collapipe_jax.runs.training.loop import train, train_together

pytest.importorskip("dp_accounting", reason='pip install -e ".[privacy]"')
PRIVATE = {"privacy.noise_multiplier": 4.0, "training.embedding_rate_factor": 1.0}


def built(**changes):
    config = tiny_run.get_config()
    config.update_from_flattened_dict(PRIVATE | changes)
    return build_experiment(config)


def quiet():
    return Console(file=io.StringIO())


def run(experiment, workdir, resume=False):
    train(experiment, workdir, resume=resume, console=quiet())
    return {name: (workdir / name).read_bytes() for name in ("metrics.jsonl", "summary.json")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("private")
    with compiles(learn, 1):  # clusters sit out in some rounds
        return workdir, run(built(), workdir)


@pytest.mark.slow
def test_every_evaluation_and_the_summary_tell_epsilon(undisturbed):
    workdir, _ = undisturbed
    told = [line["epsilon"] for line in read_metrics(workdir)]
    # A round of 2 local steps has 3 releases; rounds 3 and 6 are scored.
    assert told[2] == epsilon_of(4.0, 9.0, 1e-5)
    assert told[5] == epsilon_of(4.0, 18.0, 1e-5)
    assert [place for place, epsilon in enumerate(told) if epsilon is not None] == [2, 5]
    spent = json.loads((workdir / "summary.json").read_text())["privacy"]
    expected = {"unit": "cluster", "epsilon": told[5], "delta": 1e-5, "noise_multiplier": 4.0}
    assert spent == expected | {"releases": 18.0}


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_the_same_bytes(undisturbed, tmp_path, monkeypatch):
    from collapipe_jax.runs.training.ongoing_run import OngoingRun

    def save(run, state, save=OngoingRun.save):
        save(run, state)
        if run.done == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(OngoingRun, "save", save)
    with pytest.raises(KeyboardInterrupt):
        run(built(), tmp_path)
    monkeypatch.undo()
    assert run(built(), tmp_path, resume=True) == undisturbed[1]


@pytest.mark.slow
def test_other_noise_needs_no_other_program_and_another_seed_has_other_noise(undisturbed, tmp_path):
    changes = ({}, {"privacy.noise_multiplier": 8.0, "privacy.clip_norm": 0.5}, {"privacy.seed": 5})
    experiments = [built(**changed) for changed in changes]
    folders = [tmp_path / str(index) for index in range(len(experiments))]
    with compiles(learn, 0):
        runs = train_together(experiments, folders, console=quiet(), devices=jax.devices()[:1])
    losses = [run.history["train_loss"] for run in runs]
    alone = [line["train_loss"] for line in read_metrics(undisturbed[0])]
    np.testing.assert_allclose(losses[0], alone, rtol=1e-4)
    for other in losses[1:]:
        assert np.abs(other[1:] - losses[0][1:]).max() > 1e-3


def test_more_rounds_than_the_noise_was_set_for_are_refused(tmp_path):
    target = {"privacy.noise_multiplier": 0.0, "privacy.epsilon": 50.0, "training.rounds": 1}
    target |= {"training.warmup_steps": 1}
    run(built(**target), tmp_path)
    with pytest.raises(InputError) as told:
        run(built(**target | {"training.rounds": 2}), tmp_path, resume=True)
    assert told.value.key == "training.rounds"
    assert json.loads((tmp_path / "config.json").read_text())["training"]["rounds"] == 1
