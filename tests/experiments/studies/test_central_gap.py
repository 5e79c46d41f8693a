"""Collaborative against central training: paired by seed, central scores kept on file."""

import json

import pytest
from support import tiny_run

from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import write_json
from collapipe_jax.training import shards
from experiments.studies import central_gap


def test_differences_are_paired_and_a_score_of_zero_has_no_share():
    rows = [
        {"collaborative": 12.0, "central": 10.0, "trivial": 1.0},
        {"collaborative": 11.0, "central": 12.0, "trivial": 3.0},
    ]
    report = central_gap.summarise(rows)
    assert (report["collaborative"], report["central"], report["trivial"]) == (11.5, 11.0, 2.0)
    assert report["share"] == pytest.approx((1.2 + 11 / 12) / 2)
    assert report["difference"]["mean"] == pytest.approx(0.5)
    # Student with one degree of freedom: 12.706 x 1.5.
    assert report["difference"]["ci95"] == pytest.approx(19.06, rel=1e-3)
    assert central_gap.summarise([{**rows[0], "central": 0.0}])["share"] == float("inf")


def test_a_central_run_is_not_repeated(tmp_path, monkeypatch):
    """What is handed to training, which has tests of its own."""
    scored = []

    def fake_train(experiments, folders, **_):
        scores = {"test_bleu_copy": 1.0, "simulated_time_s": 5.0}
        for experiment, folder in zip(experiments, folders, strict=True):
            folder.mkdir(exist_ok=True)
            score = 20.0 + experiment.config["seed"]
            write_json(folder / "summary.json", {"test_bleu_greedy": score, **scores})

    monkeypatch.setattr(shards, "train_together", fake_train)
    monkeypatch.setattr(central_gap, "train_centrally", lambda experiments, console: experiments)

    def test(objective, experiment):
        scored.append(experiment.config["seed"])
        return {"test_bleu_greedy": 18.0, "bleu_signature": "case:mixed", "dropped_pairs": {}}

    monkeypatch.setattr("collapipe_jax.tasks.translation.Translation.test", test)
    arguments = [f"--config={tiny_run.__file__}", f"--workdir={tmp_path / 'run'}", "--seeds=2"]
    for shard in (0, 1):
        central_gap.main([*arguments, f"--shard={shard}/2"])
        assert scored == [0, 1][: shard + 1]
        assert (tmp_path / "run" / "summary.json").exists() == (shard == 1)
    report = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [row["collaborative"] for row in report["seeds"]] == [20.0, 21.0]
    assert report["central"] == 18.0
    central_gap.main(arguments)
    assert len(scored) == 2
    with pytest.raises(InputError, match="another configuration"):
        central_gap.main([*arguments, "--config.training.rounds=7"])
    with pytest.raises(InputError, match="--seeds"):
        central_gap.main([*arguments[:2], "--seeds=1"])
