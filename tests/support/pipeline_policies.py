"""Names of the policies of pipelines; some take long to compile, or decide nearly as others do."""

import pytest

from collapipe_jax.edge.policies.registry import POLICIES

_SLOW = ("alternating", "dssra", "dssra_wide", "greedy", "titanic_pipelined")

PIPELINE_POLICIES = [
    pytest.param(name, marks=pytest.mark.slow) if name in _SLOW else name
    for name, entry in POLICIES.items()
    if not (entry.by_clients or entry.offline)  # offline ones decide as others do
]
