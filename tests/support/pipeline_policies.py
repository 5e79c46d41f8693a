"""Names of the policies of pipelines; the search of some takes long to compile."""

import pytest

from collapipe_jax.edge.policies.registry import POLICIES

_SEARCHING = ("alternating", "dssra", "dssra_wide", "greedy")

PIPELINE_POLICIES = [
    pytest.param(name, marks=pytest.mark.slow) if name in _SEARCHING else name
    for name, entry in POLICIES.items()
    if not (entry.by_clients or entry.offline)  # offline ones decide as others do
]
