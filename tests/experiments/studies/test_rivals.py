"""A random search of rivals' keys: what is drawn, what is best, and how a killed run goes on."""

import json

import numpy as np
import pytest

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.policies.registry import POLICIES
from collapipe_jax.runs.config.files import read_config
from experiments.studies import rivals
from experiments.studies.rivals import RIVALS, Outcome, draw_settings, summarise, values_of


def outcome(latency_s, energy=0.0, memory=0.0):
    """Of 20 networks of one latency, with shares of networks that break limits."""
    broken = {"energy": energy, "memory": memory}
    return Outcome(
        np.full(20, float(latency_s)),
        {name: np.arange(20) < 20 * share for name, share in broken.items()},
    )


@pytest.mark.parametrize("name", RIVALS)
def test_every_drawn_value_is_one_of_the_configuration(name):
    config = read_config("paper")
    for option in POLICIES[name].options:
        values = values_of(option, config)
        assert len(set(values)) == len(values) > 1
        for value in values:
            assert read_config("paper", {f"policy.{option}": value}).policy[option] == value
    settings = draw_settings(name, config, 30, seed=0)
    assert settings[0] == {}
    assert settings == draw_settings(name, config, 30, seed=0)
    assert len({json.dumps(each, sort_keys=True) for each in settings}) == len(settings) > 1
    assert set().union(*settings) <= set(POLICIES[name].options)
    assert all(config.policy[key] != each[key] for each in settings for key in each)


def test_the_best_setting_is_the_fastest_that_breaks_no_limit_more_than_the_default():
    found = [
        ({}, outcome(100.0, energy=0.5)),
        ({"cut": "1"}, outcome(90.0, energy=0.5)),
        ({"cut": "2"}, outcome(50.0, energy=0.6)),
        ({"cut": "4"}, outcome(40.0, memory=0.1)),
        ({"cut": "3"}, outcome(95.0)),
    ]
    summary = summarise(found)
    assert summary["best"]["setting"] == {"cut": "1"}
    assert (summary["default"]["keeps"], summary["best"]["keeps"]) == (0.5, 0.5)
    assert summary["less_percent"] == pytest.approx({"median": 10.0, "mean": 10.0})
    assert summarise(found[:1])["best"]["setting"] == {}


def test_a_killed_run_goes_on_with_the_same_lines(tmp_path, monkeypatch):
    calls = []

    def simulate(name, setting, config, networks, rounds):
        calls.append((name, setting))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return outcome(len(calls))

    monkeypatch.setattr(rivals, "_simulate", simulate)
    arguments = ["--config=paper", f"--workdir={tmp_path}", "--draws=4", "--networks=1"]
    arguments += ["--rounds=1", "--policies=titanic,random"]
    with pytest.raises(KeyboardInterrupt):
        rivals.main(arguments)
    rivals.main(arguments)
    assert len(calls) == len({json.dumps(call) for call in calls}) + 1  # the killed one, twice
    count = len(calls)
    rivals.main(arguments)
    assert len(calls) == count
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert set(summary["policies"]) == {"titanic", "random"}
    with pytest.raises(InputError, match="workdir"):
        rivals.main([*arguments, "--config.policy.partitions=2"])


def test_the_method_is_no_rival(tmp_path):
    with pytest.raises(InputError, match="no rival"):
        rivals.main([f"--workdir={tmp_path}", "--config=paper", "--policies=dssra"])
