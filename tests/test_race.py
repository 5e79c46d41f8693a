import io
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import tiny_run
from ml_collections import ConfigDict
from rich.console import Console

from collapipe_jax.build import build_experiment
from collapipe_jax.errors import InputError
from collapipe_jax.train import round_latencies_s
from configs import default
from experiments import race as module
from experiments.race import race
from experiments.race_files import load_race
from figures.all import kind_of


def _last_score(folder):
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["score"]


def test_policies_of_both_kinds_race_in_equal_time_on_two_seeds(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(module, "draw_all", lambda *given: drawn.append(given) or ["a.png"])
    config, out = tiny_run.get_config(), io.StringIO()
    config.dynamics.availability = 1.0
    config.training.rounds = 3
    names = ("static_pipeline", "vanilla_fl")
    race(config, names, tmp_path, Console(file=out, width=160), seeds=2, equal_time=True)

    runs = load_race(tmp_path)
    assert [(run.policy, run.seed) for run in runs] == [(name, s) for s in (0, 1) for name in names]
    assert {run.folder for run in runs} >= {"vanilla_fl", "vanilla_fl_seed1"}
    for first, other in (runs[:2], runs[2:]):
        assert len(first.record.history["round"]) == 3
        _assert_rounds_that_fit(other, first.summary["simulated_time_s"])
        # The same parameters on the same mini-batches, up to what a first local step changes.
        losses = [run.record.history["train_loss"][0] for run in (first, other)]
        assert losses[0] == pytest.approx(losses[1], rel=0.05)
        assert np.isfinite(other.last_score)

    table = out.getvalue()
    for words in ("simulated time to a validation score", "under static_pipeline", "of 2 seeds"):
        assert words in table
    assert "learning rates" not in table
    (records, folder), *_ = drawn  # figures of runs have tests of their own
    assert [record.policy for record in records] == list(names)
    assert folder == tmp_path / "figures"
    assert "figure: a.png" in table
    assert (folder / "race.png").is_file()
    assert kind_of(tmp_path) == "race.json"


def _assert_rounds_that_fit(run, time_s):
    """One round more would not; what was foreseen is what happened."""
    config = ConfigDict(run.record.config)
    latency_s = run.record.history["latency_s"]
    ahead = round_latencies_s(build_experiment(config, default.get_config()))
    ahead_s = list(itertools.islice(ahead, len(latency_s) + 1))
    np.testing.assert_array_equal(ahead_s[:-1], latency_s)
    assert sum(ahead_s[:-1]) <= time_s * (1 + 1e-6) < sum(ahead_s)
    assert config.training.rounds == config.evaluation.every_rounds == len(latency_s)


def test_a_wrong_name_is_told_before_any_work(tmp_path):
    with pytest.raises(InputError, match=r"policy\.name"):
        race(tiny_run.get_config(), ("static_pipeline", "none"), tmp_path, Console())
    assert not list(tmp_path.iterdir())


def test_every_policy_races_with_the_best_of_its_rates(tmp_path, monkeypatch):
    drawn, built = [], []
    monkeypatch.setattr(module, "draw_all", lambda *given: drawn.append(given) or [])
    build = module.build_experiment
    monkeypatch.setattr(module, "build_experiment", lambda *given: built.append(1) or build(*given))
    config, out = tiny_run.get_config(), io.StringIO()
    race(config, ("static_pipeline",), tmp_path, Console(file=out, width=120), rates=(0.0625, 1.0))
    finals = {
        multiple: _last_score(tmp_path / folder)
        for multiple, folder in ((0.0625, "static_pipeline_x0.0625"), (1.0, "static_pipeline"))
    }
    assert len(built) == 1  # the corpus is not read again for another rate
    used = json.loads((tmp_path / "static_pipeline_x0.0625" / "config.json").read_text())
    for key in ("client_learning_rate", "decoder_learning_rate"):
        assert used["training"][key] == config.training[key] * 0.0625
    ((record,), _), *_ = drawn
    assert record.history["score"][-1] == pytest.approx(max(finals.values()))
    rates = next(line for line in out.getvalue().splitlines() if "learning rates" in line)
    assert f"{max(finals, key=finals.get):g}" in rates.split()


def test_a_round_longer_than_the_time_is_one_round(monkeypatch):
    monkeypatch.setattr(module, "round_latencies_s", lambda experiment: iter([2.0, 2.0, np.inf]))
    assert [module.rounds_within(None, time_s) for time_s in (1.0, 2.0, 4.5)] == [1, 1, 2]


def test_a_folder_without_a_race_is_told(tmp_path):
    with pytest.raises(InputError, match=r"race\.json"):
        load_race(tmp_path)


@pytest.mark.parametrize("rates", ["1,x", "", "0,1", "nan"])
def test_wrong_rates_are_told(rates, tmp_path):
    path = Path(tiny_run.__file__)
    arguments = [f"--config={path}", f"--workdir={tmp_path}", f"--rates={rates}"]
    with pytest.raises(InputError, match="--rates"):
        module.main(arguments)
