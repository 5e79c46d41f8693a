"""Collaborative against central training: paired by seed, central scores kept on file."""

import json

import pytest
from support import tiny_run

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import write_json
from collapipe_jax.runs.studies import race as shards
from experiments.studies import central_gap
from experiments.studies.central import CentralRun


def test_differences_are_paired_and_a_score_of_zero_has_no_share():
    ours = [
        {"seed": 0, "rate": 2.0, "score": 12.0, "trivial": 1.0, "simulated_time_s": 5.0},
        {"seed": 1, "rate": 2.0, "score": 11.0, "trivial": 3.0, "simulated_time_s": 5.0},
    ]
    theirs = [{"rate": 1.0, "score": 10.0}, {"rate": 1.0, "score": 12.0}]
    report = central_gap.summarise({"collaborative": ours, "central": theirs})
    assert (report["collaborative"], report["central"], report["trivial"]) == (11.5, 11.0, 2.0)
    assert report["rates"] == {"collaborative": 2.0, "central": 1.0}
    assert report["share"] == pytest.approx((1.2 + 11 / 12) / 2)
    assert report["difference"]["mean"] == pytest.approx(0.5)
    # Student with one degree of freedom: 12.706 x 1.5.
    assert report["difference"]["ci95"] == pytest.approx(19.06, rel=1e-3)
    none = {"collaborative": ours[:1], "central": [{"rate": 1.0, "score": 0.0}]}
    assert central_gap.summarise(none)["share"] == float("inf")


VALIDATION = {"collaborative": {0.5: 3.0, 1.0: 2.0, 2.0: 1.0}, "central": {0.5: 1, 1.0: 2, 2.0: 3}}


@pytest.fixture
def trained(monkeypatch):
    """What is handed to training, which has tests of its own: way, seed and rate."""
    asked = []

    def rate(experiment):
        rates = experiment.config["training"]
        assert rates["client_learning_rate"] == rates["decoder_learning_rate"]
        return rates["client_learning_rate"] / tiny_run.get_config().training.client_learning_rate

    def together(experiments, folders, **_):
        for experiment, folder in zip(experiments, folders, strict=True):
            if (folder / "summary.json").exists():
                continue
            asked.append(("collaborative", experiment.config["seed"], rate(experiment)))
            folder.mkdir(exist_ok=True)
            scores = {"test_bleu_copy": 1.0, "simulated_time_s": 5.0}
            score = 20.0 + experiment.config["seed"]
            write_json(folder / "summary.json", {"test_bleu": score, **scores})

    def centrally(experiments, console):
        asked.extend(("central", own.config["seed"], rate(own)) for own in experiments)
        return [CentralRun({}, VALIDATION["central"][rate(own)]) for own in experiments]

    class Loaded(central_gap.load_entry.__globals__["Run"]):
        validation_score = property(lambda run: VALIDATION["collaborative"][run.rate])

    def load(workdir, **entry):
        summary = json.loads((workdir / "summary.json").read_text())
        return Loaded(**entry, summary=summary, record=None)

    test = {"test_bleu": 18.0, "bleu_signature": "case:mixed", "dropped_pairs": {}}
    monkeypatch.setattr(shards, "train_together", together)
    monkeypatch.setattr(central_gap, "train_centrally", centrally)
    monkeypatch.setattr(central_gap, "load_entry", load)
    translation = "collapipe_jax.learning.tasks.translation.Translation"
    monkeypatch.setattr(f"{translation}.test", lambda *_: test)
    return asked


def test_a_central_run_is_not_repeated(tmp_path, trained):
    arguments = [f"--config={tiny_run.__file__}", f"--workdir={tmp_path / 'run'}", "--seeds=2"]
    for shard in (0, 1):
        central_gap.main([*arguments, f"--shard={shard}/2"])
        assert [seed for way, seed, _ in trained if way == "central"] == [0, 1][: shard + 1]
        assert (tmp_path / "run" / "summary.json").exists() == (shard == 1)
    report = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [row["collaborative"] for row in report["seeds"]] == [20.0, 21.0]
    assert report["central"] == 18.0
    central_gap.main(arguments)
    assert len(trained) == 4
    with pytest.raises(InputError, match="another configuration"):
        central_gap.main([*arguments, "--config.training.rounds=7"])
    with pytest.raises(InputError, match="--seeds"):
        central_gap.main([*arguments[:2], "--seeds=1"])


def test_both_ways_have_the_best_of_the_same_rates(tmp_path, trained):
    arguments = [f"--config={tiny_run.__file__}", f"--workdir={tmp_path}", "--seeds=2"]
    central_gap.main([*arguments, "--rates=0.5,1,2"])
    assert sorted(trained) == sorted(
        [(way, 0, rate) for way in central_gap.WAYS for rate in (0.5, 1.0, 2.0)]
        + [("collaborative", 1, 0.5), ("central", 1, 2.0)]
    )
    report = json.loads((tmp_path / "summary.json").read_text())
    assert report["rates"] == {"collaborative": 0.5, "central": 2.0}
