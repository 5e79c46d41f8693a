"""Speed and scalars beside the metrics."""

import io
import json
import sys
import types

import numpy as np
import pytest
from rich.console import Console
from support import tiny_run

from collapipe_jax.core.trackers import TensorBoard, find_tracker, finite_means
from collapipe_jax.learning.models.transformer import TranslationBatch
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.training.history import count_tokens, log_speed
from collapipe_jax.runs.training.loop import train


def test_tokens_are_counted_without_padding():
    ids = np.array([[[4, 5, 0, 0], [6, 0, 0, 0]]])
    assert count_tokens(TranslationBatch(ids, np.ones_like(ids))) == 3


def test_a_line_has_rounds_seconds_and_tokens(tmp_path):
    log_speed(tmp_path, 3, 3, 2.0, 500)
    log_speed(tmp_path, 4, 1, 0.5, 200)
    lines = [json.loads(line) for line in (tmp_path / "speed.jsonl").read_text().splitlines()]
    assert [(line["round"], line["rounds"]) for line in lines] == [(2, 3), (3, 1)]
    assert [line["tokens_per_s"] for line in lines] == [250.0, 400.0]


def test_trackers_get_finite_numbers_and_means():
    metrics = {"round": np.int32(2), "energy_j": np.array([1.0, 3.0]), "score": np.float32(np.nan)}
    assert finite_means(metrics) == {"energy_j": 2.0}


def test_tensorboard_keeps_every_number(tmp_path):
    board = TensorBoard(tmp_path, 0, {})
    for step in range(3):
        board.log({"energy_j": 2.0} | ({"score": 7.0} if step == 2 else {}), step)
    board.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    content = path.read_bytes()
    assert content.count(b"energy_j") == 3
    assert content.count(b"score") == 1


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_packages_with_runs_get_metrics_and_go_on(tmp_path, monkeypatch, name):
    """A stand-in for the package, as it needs a network or a server."""
    calls = []

    class Run:
        def log(self, values, step):
            calls.append(("log", values, step))

        def finish(self):
            calls.append(("finish",))

    def init(**settings):
        calls.append(("init", settings))
        return Run()

    monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(init=init))
    make = find_tracker(name)
    assert make is not None
    for done in (0, 1):
        tracker = make(tmp_path, done, {"seed": 3})
        tracker.log({"loss": 0.5}, step=done)
        tracker.close()
    settings = [call[1] for call in calls if call[0] == "init"]
    assert settings[0] == settings[1]
    assert settings[0]["name"] == tmp_path.name
    assert settings[0]["resume"] == "allow"
    assert [call[2] for call in calls if call[0] == "log"] == [0, 1]
    assert calls[-1] == ("finish",)


@pytest.mark.slow
def test_a_run_writes_both_and_resumes(tmp_path):
    config = tiny_run.get_config()
    config.tracker = "tensorboard"
    experiment = build_experiment(config)
    train(experiment, tmp_path, console=Console(file=io.StringIO()))
    lines = [json.loads(line) for line in (tmp_path / "speed.jsonl").read_text().splitlines()]
    assert sum(line["rounds"] for line in lines) == 6
    assert all(line["tokens_per_s"] > 0.0 for line in lines)
    train(experiment, tmp_path, resume=True, console=Console(file=io.StringIO()))
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
