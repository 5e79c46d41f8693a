"""A run whose first round decides who trains."""

import pytest
from support import tiny_run

import collapipe_jax as cp
from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.federated.data_parallel_learner import DataParallelLearner
from collapipe_jax.learning.federated.pipeline_learner import PipelineLearner
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.training.network_ahead import decide_mode_and_cut


def with_modes(*modes):
    config = tiny_run.get_config()
    config.dynamics.availability = 1.0
    config.policy.update(
        {"name": "best_mode", "modes": modes or ("static_pipeline", "splitfed"), "cut": "best"}
    )
    # No budget binds, which static_pipeline would not see.
    config.control.update({"device_budget_j": 1e3, "control_unit_budget_j": 1e3})
    config.devices.memory_share = 5e-5
    return config


@pytest.mark.parametrize(
    ("other", "mode", "learner"),
    [
        ("splitfed", "splitfed", DataParallelLearner),
        ("vanilla_fl", "static_pipeline", PipelineLearner),  # no device holds the whole model
    ],
)
def test_the_first_round_chooses_who_learns(other, mode, learner):
    decided = decide_mode_and_cut(build_experiment(with_modes("static_pipeline", other)))
    assert decided.config["policy"]["name"] == mode
    assert isinstance(decided.learner, learner)


def test_a_run_goes_on_in_its_mode(tmp_path):
    config = with_modes()
    config.training.rounds = 4
    first = cp.train(config, tmp_path, quiet=True)
    assert first.summary["policy"] == first.record.policy == "splitfed"
    assert first.history["samples"].sum() > 0
    again = cp.train(config, tmp_path, quiet=True)
    assert again.summary == first.summary


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"training.activation_noise": 0.1}, "may train without a pipeline"),
        ({"privacy.unit": "example", "privacy.noise_multiplier": 1.0}, "micro-batches alone"),
        ({"model.min_cluster_blocks": 1}, "clients of a mode may hold fewer blocks than the 1"),
        ({"policy.modes": ("splitfed", "splitfed")}, "no different policies"),
    ],
)
def test_what_some_mode_cannot_do_is_refused(keys, message):
    config = with_modes()
    for key, value in keys.items():
        section, name = key.split(".")
        config[section][name] = value
    with pytest.raises(InputError, match=message):
        build_experiment(config)
