"""Runs with secure aggregation: trained, priced, counted, and resumed."""

import io
import json

import jax
import numpy as np
import pytest
from rich.console import Console
from support import tiny_run

from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.training import loop as train
from collapipe_jax.runs.training.learning_rounds import LearningRounds

pytestmark = pytest.mark.slow
FAILED = "secure_failed"


def build(**changed):
    config = tiny_run.get_config()
    config.secure_aggregation.update({"enabled": True, "threshold": 0.5, **changed})
    return config


def run(config, workdir, resume=False):
    console = Console(file=io.StringIO())
    return train.train(build_experiment(config), workdir, resume=resume, console=console)


def test_a_run_counts_failed_rounds_and_resumes_to_the_same_bytes(tmp_path, monkeypatch):
    """A cluster sits out now and then, and one alone has no sum to hide in."""
    config = build(dropout_probability=0.1)
    history = run(config, tmp_path / "whole").record.history
    stopped, whole = tmp_path / "stopped", LearningRounds.advance
    calls = iter(range(100))

    def interrupted(self, *arguments):
        if next(calls) == 1:
            raise KeyboardInterrupt
        return whole(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(LearningRounds, "advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(config, stopped)
    run(config, stopped, resume=True)
    for file in ("metrics.jsonl", "summary.json"):
        assert (stopped / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    both = ~history["absent"].any(1)
    assert 0 < both.sum() < len(both)
    np.testing.assert_array_equal(history[FAILED][(~history["absent"]).sum(1) == 1], 1.0)
    failed = int((history[FAILED] == 1.0).sum())
    assert json.loads((stopped / "summary.json").read_text())["failed_aggregations"] == failed > 0


def test_a_run_trains_as_without_to_the_quantiser_at_a_higher_price(tmp_path):
    plain, secure = build(enabled=False), build()
    for config in (plain, secure):
        config.dynamics.availability = 1.0
        config.training.client_optimizer = config.training.decoder_optimizer = "momentum"
    runs = [run(config, tmp_path / name) for name, config in (("off", plain), ("on", secure))]
    off, on = (each.record.history for each in runs)
    assert FAILED not in off
    assert not on[FAILED].any()
    assert not on["secure_clipped"].any()
    np.testing.assert_allclose(on["train_loss"], off["train_loss"], rtol=1e-5)
    for a, b in zip(*(jax.tree.leaves(each.params) for each in runs), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert (on["latency_s"] > off["latency_s"]).all()
    assert (on["energy_j"][:, :, 0] > off["energy_j"][:, :, 0]).all()
