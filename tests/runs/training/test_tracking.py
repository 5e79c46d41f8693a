"""Speed and scalars beside the metrics."""

import io
import json

import numpy as np
import pytest
from rich.console import Console
from support import tiny_run

from collapipe_jax.learning.models.transformer import TranslationBatch
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.training.history import TensorBoard, count_tokens, log_speed
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


def test_tensorboard_gets_finite_numbers_and_means(tmp_path):
    board = TensorBoard(tmp_path, 0)
    for step in range(3):
        score = np.float32(7.0 if step == 2 else np.nan)
        board.add({"round": np.int32(step), "energy_j": np.array([1.0, 3.0]), "score": score})
    board.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    content = path.read_bytes()
    assert content.count(b"energy_j") == 3
    assert content.count(b"score") == 1


@pytest.mark.slow
def test_a_run_writes_both_and_resumes(tmp_path):
    config = tiny_run.get_config()
    config.tensorboard = True
    experiment = build_experiment(config)
    train(experiment, tmp_path, console=Console(file=io.StringIO()))
    lines = [json.loads(line) for line in (tmp_path / "speed.jsonl").read_text().splitlines()]
    assert sum(line["rounds"] for line in lines) == 6
    assert all(line["tokens_per_s"] > 0.0 for line in lines)
    train(experiment, tmp_path, resume=True, console=Console(file=io.StringIO()))
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
