"""Rows of the table of rivals; the numbers themselves are the simulation's."""

import numpy as np

from collapipe_jax.runs.config import default
from experiments.benchmarks.solver import rivals


def test_every_row_is_a_policy_of_its_own():
    policies = rivals._policies(default.get_config().policy.to_dict())
    assert len(set(policies.values())) == len(policies) == 10


def test_a_row_by_hand():
    numbers = {
        "dssra": {"latency_s": np.array([10.0, 20.0, 40.0])},
        "other": {
            "latency_s": np.array([20.0, 30.0, 50.0]),
            "energy": np.array([0.5, 1.005, 1.5]),
            "divergence": np.array([2.0, 0.1, 3.0]),
        },
    }
    _, latency, over, budget, target, time = rivals._row("other", numbers, 0.00123)
    assert latency.startswith("30 ")
    assert over.startswith("+50.0 ")
    assert (budget, target, time) == ("33 %", "67 %", "1.23")
