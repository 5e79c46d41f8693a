"""Rows of the table of knobs; the numbers themselves are the simulation's."""

import numpy as np

from collapipe_jax.runs.config import default
from experiments.benchmarks.solver import knobs
from experiments.studies.rivals import Outcome


def test_every_row_is_a_policy_of_its_own():
    policies = knobs._policies(default.get_config().policy.to_dict())
    assert len(set(policies.values())) == len(policies) == 10


def test_a_row_by_hand():
    no = np.array([False, False, False])
    outcomes = {
        "dssra": Outcome(np.array([10.0, 20.0, 40.0]), {"energy": no, "divergence": no}),
        "other": Outcome(
            np.array([20.0, 30.0, 50.0]),
            {"energy": np.array([False, False, True]), "divergence": np.array([True, False, True])},
        ),
    }
    _, latency, over, budget, target, time = knobs._row("other", outcomes, 0.00123)
    assert latency.startswith("30 ")
    assert over.startswith("+50.0 ")
    assert (budget, target, time) == ("33 %", "67 %", "1.23")
