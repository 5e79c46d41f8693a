import io
import json
from pathlib import Path

import numpy as np
import pytest
import tiny_run
from rich.console import Console

from collapipe_jax.errors import InputError
from experiments import race as module
from experiments.race import race


def _lines(folder):
    return (folder / "metrics.jsonl").read_text().splitlines()


def test_policies_of_both_kinds_race_on_the_same_data(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(module, "draw_all", lambda *given: drawn.append(given) or ["a.png"])
    config = tiny_run.get_config()
    config.dynamics.availability = 1.0
    out = io.StringIO()
    race(config, ("static_pipeline", "vanilla_fl"), tmp_path, Console(file=out, width=120))
    lines = {
        name: [json.loads(line) for line in _lines(tmp_path / name)]
        for name in ("static_pipeline", "vanilla_fl")
    }
    # The same parameters on the same mini-batches, up to what a first local step changes.
    first = [rows[0]["train_loss"] for rows in lines.values()]
    assert first[0] == pytest.approx(first[1], rel=0.05)
    assert "simulated time to a validation score" in out.getvalue()
    assert "learning rates" not in out.getvalue()
    (records, folder), *_ = drawn  # figures have tests of their own
    assert [record.policy for record in records] == list(lines)
    assert folder == tmp_path / "figures"
    assert "figure: a.png" in out.getvalue()
    assert np.isfinite(lines["vanilla_fl"][-1]["score"])


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
    race(config, ("static_pipeline",), tmp_path, Console(file=out, width=120), (0.0625, 1.0))
    finals = {
        multiple: json.loads(_lines(tmp_path / folder)[-1])["score"]
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


@pytest.mark.parametrize("rates", ["1,x", "", "0,1", "nan"])
def test_wrong_rates_are_told(rates, tmp_path):
    path = Path(tiny_run.__file__)
    arguments = [f"--config={path}", f"--workdir={tmp_path}", f"--rates={rates}"]
    with pytest.raises(InputError, match="--rates"):
        module.main(arguments)
