"""``collapipe train`` with several runs."""

import json

import numpy as np
import pytest
from support import tiny_run

import collapipe_jax as cp
from collapipe_jax.cli.train import main
from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.figures import training
from collapipe_jax.runs.figures.draw import draw_folders

RATES = "--sweep=training.client_learning_rate=1e-3,4e-3"
COMMON = [f"--config={tiny_run.__file__}", RATES, "--seeds=2"]
COMMON += ["--config.evaluation.every_rounds=1"]
COMMON += ["--config.training.rounds=2", "--config.training.warmup_steps=2"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "run"
    main([*COMMON, f"--workdir={folder}"])
    return folder


def test_every_point_is_a_run_and_an_entry_of_one_dataset(swept):
    found = cp.open_results(swept)
    assert dict(found.train_loss.sizes) == {
        "training.client_learning_rate": 2,
        "seed": 2,
        "round": 2,
    }
    assert found.energy_j.attrs["units"] == "J"
    assert list(found.seed.values) == [0, 1]
    run = cp.open_results(swept / "runs" / "0003")
    last = found.isel({"training.client_learning_rate": 1, "seed": 1})
    np.testing.assert_array_equal(last.train_loss, run.train_loss)
    np.testing.assert_array_equal(last.energy_j, run.energy_j)
    summary = json.loads((swept / "summary.json").read_text())
    assert summary["points"][3]["at"] == {"training.client_learning_rate": 4e-3, "seed": 1}
    assert float(last.test_loss) == summary["points"][3]["test_loss"]


@pytest.mark.slow
def test_shards_make_the_same_results(swept, tmp_path, capsys):
    for shard in ("1/2", "0/2"):
        main([*COMMON, f"--workdir={tmp_path}", f"--shard={shard}", "--at-once=1"])
        said = capsys.readouterr().out
        assert ("other shards lack 2 parts" in said) is (shard == "1/2")
    expected = cp.open_results(swept)
    for name, values in cp.open_results(tmp_path).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-4, err_msg=str(name))


def test_scores_of_all_points_are_drawn(swept, tmp_path):
    paths = draw_folders([str(swept)], tmp_path)
    assert {path.name for path in paths} == {"training_sweep.pdf", "training_sweep.png"}
    figure = training.draw_training_sweep(cp.open_results(swept))
    rows, curves = figure.axes
    assert [text.get_text() for text in rows.get_yticklabels()] == ["0.001", "0.004"]
    assert rows.get_ylabel() == "client_learning_rate"
    assert [line.get_label() for line in curves.lines]


def test_the_last_score_is_the_last_one_known():
    values = np.array([[1.0, np.nan, 3.0, np.nan], [np.nan, np.nan, np.nan, np.nan]])
    np.testing.assert_array_equal(training._last_known(values), [3.0, np.nan])


def test_a_damaged_summary_of_a_run_is_mended(swept):
    paths = swept / "summary.json", swept / "runs" / "0002" / "summary.json"
    before = [path.read_bytes() for path in paths]
    paths[1].write_bytes(before[1][:20])
    main([*COMMON, f"--workdir={swept}"])
    assert [path.read_bytes() for path in paths] == before


def test_a_finished_sweep_trains_nothing_anew(swept, monkeypatch):
    before = (swept / "summary.json").read_bytes()
    monkeypatch.setattr("collapipe_jax.runs.training.train.train_together", None)
    main([*COMMON, f"--workdir={swept}"])
    assert (swept / "summary.json").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--sweep=training.rate=1,2"], "training.rate"),
        (["--sweep=training.rounds=2,0"], "training.rounds"),
        (["--sweep=payload.trained_fraction=1,0.5"], "trained_fraction"),
        (["--sweep=seed=1,2", "--seeds=2"], "two axes"),
        (["--sweep=seed=1,2", "--shard=2/2"], "--shard"),
        (["--sweep=seed=1,2", "--linear-baseline"], "--linear-baseline"),
        (["--sweep=seed=1,2", "--host=0"], "--host"),
        (["--shard=0/2"], "of a single run"),
        (["--at-once=3"], "of a single run"),
    ],
)
def test_wrong_sweeps_are_reported_before_any_work(arguments, told, tmp_path):
    workdir = tmp_path / "run"
    with pytest.raises(InputError, match=told):
        main([f"--config={tiny_run.__file__}", f"--workdir={workdir}", *arguments])
    assert not workdir.exists()
