"""Runs whose updates are rounded: they resume to the same bytes, and cost less."""

import pytest
from support import tiny_run
from support.tiny_runs import Killed, assert_same_run, killed, run

from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.training.learning_rounds import LearningRounds


@pytest.mark.slow
def test_a_run_resumes_with_its_residuals_and_is_faster(undisturbed, tmp_path, monkeypatch):
    config = tiny_run.get_config()
    config.payload.update_number_bits = 4
    experiment = build_experiment(config)
    record = run(experiment, tmp_path / "whole")
    whole, calls = LearningRounds.advance, iter(range(100))

    def interrupted(self, *arguments):
        return (killed if next(calls) == 4 else whole)(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(LearningRounds, "advance", interrupted)
        with pytest.raises(Killed):
            run(experiment, tmp_path / "killed")
    run(experiment, tmp_path / "killed", resume=True)
    assert_same_run(experiment, tmp_path / "killed", tmp_path / "whole")
    plain = undisturbed[1].history["latency_s"]
    assert (record.history["latency_s"] <= plain).all()
    assert record.history["latency_s"].sum() < plain.sum()
