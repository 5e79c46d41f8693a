"""What a configuration with privacy refuses, and the noise that it asks for."""

import dataclasses

import numpy as np
import pytest
from support import tiny_run

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.federated import privacy as federated_accountant
from collapipe_jax.runs.config.experiment import build_experiment, build_rules, check_experiment

pytestmark = pytest.mark.usefixtures("no_data")

ON = {"privacy.noise_multiplier": 2.0, "training.embedding_rate_factor": 1.0}
EXAMPLES = ON | {"privacy.unit": "example", "policy.name": "control_unit_fl"}


def make_config(changes):
    config = tiny_run.get_config()
    config.update_from_flattened_dict(changes)
    return config


@pytest.fixture
def accountant(monkeypatch):
    """As if it was there."""
    monkeypatch.setattr(federated_accountant, "is_installed", lambda: True)


@pytest.mark.usefixtures("accountant")
@pytest.mark.parametrize(
    ("base", "key", "value"),
    [
        (ON, "training.embedding_rate_factor", 0.0),
        (ON, "training.control_variates", True),
        (ON, "training.client_moments", "average"),
        (ON, "privacy.unit", "example"),
        (ON, "secure_aggregation.enabled", True),
        (ON, "payload.update_number_bits", 8),
        ({"policy.name": "vanilla_fl"}, "training.activation_noise", 1.0),
        (ON | {"privacy.epsilon": 1.0}, "privacy.noise_multiplier", 2.0),
        (EXAMPLES, "training.length_buckets", 2),
        (EXAMPLES | {"task.kind": "causal_lm"}, "task.packing", True),
        (EXAMPLES, "training.embedding_rate_factor", 0.0),
        (ON | {"task.train": "pairs.tsv"}, "task.kind", "translation"),
        (
            ON | {"task.train": "texts.csv", "task.test": "t.csv", "task.kind": "classification"},
            "task.vocabulary",
            "",
        ),
    ],
)
def test_what_the_noise_does_not_cover_is_refused(base, key, value):
    with pytest.raises(InputError) as told:
        check_experiment(make_config(base | {key: value}))
    assert (told.value.key, told.value.value) == (key, value)


@pytest.mark.usefixtures("accountant")
@pytest.mark.parametrize(
    "changes",
    [
        ON,
        EXAMPLES | {"training.control_variates": True},
        EXAMPLES | {"secure_aggregation.enabled": True},
        EXAMPLES | {"payload.update_number_bits": 8},
    ],
)
def test_what_the_noise_covers_is_allowed(changes):
    check_experiment(make_config(changes))


def test_a_missing_accountant_is_told_before_training(monkeypatch):
    monkeypatch.setattr(federated_accountant, "is_installed", lambda: False)
    with pytest.raises(InputError, match=r"collapipe-jax\[privacy\]") as told:
        check_experiment(make_config(ON))
    assert told.value.key == "privacy.noise_multiplier"
    check_experiment(make_config({}))


def test_without_privacy_nothing_is_spent():
    experiment = build_experiment(tiny_run.get_config())
    assert experiment.account is None
    assert experiment.learner.rules == experiment.rules == build_rules(tiny_run.get_config())


def test_a_target_of_epsilon_sets_the_noise():
    pytest.importorskip("dp_accounting", reason='pip install -e ".[privacy]"')
    experiment = build_experiment(
        make_config({"privacy.epsilon": 3.0, "training.embedding_rate_factor": 1.0})
    )
    account, rule = experiment.account, experiment.learner.rules.cluster_privacy
    np.testing.assert_array_equal(account.releases, 3.0 * np.arange(1, 7))
    assert account.epsilon(6) == pytest.approx(3.0, rel=1e-6)
    assert account.epsilon(3) < 3.0
    assert rule.noise_multiplier == account.noise_multiplier > 1.0
    assert rule.largest_share == experiment.cluster_weight.max()
    config = experiment.config | {"training": experiment.config["training"] | {"rounds": 12}}
    longer = dataclasses.replace(experiment, config=config)
    assert longer.account.epsilon(12) == pytest.approx(3.0, rel=1e-6)
    assert longer.learner.rules.cluster_privacy.noise_multiplier > rule.noise_multiplier
