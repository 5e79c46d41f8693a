"""The bound over all partitions: below the best of all, and near it."""

import jax
import numpy as np
import pytest
from support.compiled import static_pipeline
from support.random_problems import pick, random_problems

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.policies.dssra import dssra
from collapipe_jax.edge.solver import partition_bound
from collapipe_jax.edge.solver.exhaustive import MOST_PARTITIONS, exhaustive
from collapipe_jax.edge.solver.partition_bound import (
    LimitMultipliers,
    bound_partitions,
    count_partitions,
    limit_multipliers,
)

NETWORKS = 3


@pytest.fixture(scope="module")
def problems():
    return random_problems(NETWORKS, 2, 2, 3, seed=5)


@pytest.fixture(scope="module")
def decided(problems):
    decision = jax.jit(jax.vmap(dssra))(problems).decision
    return decision, jax.jit(jax.vmap(limit_multipliers))(problems, decision)


@pytest.mark.slow
@pytest.mark.parametrize("most", [MOST_PARTITIONS, pytest.param(0, id="relaxed")])
def test_below_the_best_of_all_and_near_it(problems, decided, most, monkeypatch):
    monkeypatch.setattr(partition_bound, "MOST_PARTITIONS", most)
    gaps = []
    for index in range(NETWORKS):
        problem, decision, multipliers = pick((problems, *decided), index)
        best = exhaustive(problem, decision)
        found = bound_partitions(problem, decision, multipliers)
        assert found.exhaustive == (most > 0)
        assert found.partitions == best.partitions
        assert found.lower_bound <= best.objective
        gaps.append(1 - found.lower_bound / best.objective)
    assert np.median(gaps) < (1e-3 if most else 0.05)


@pytest.mark.slow
def test_a_chunk_more_changes_nothing(problems, decided, monkeypatch):
    problem, decision, multipliers = pick((problems, *decided), 0)
    monkeypatch.setattr(partition_bound, "MOST_PARTITIONS", 0)
    found = []
    for chunk in (5, 64):
        monkeypatch.setattr(partition_bound, "_CHUNK", chunk)
        found.append(bound_partitions(problem, decision, multipliers).lower_bound)
    np.testing.assert_allclose(*found, rtol=1e-3)


def test_too_many_partitions_are_refused_before_anything_is_computed():
    problem = pick(random_problems(1, 1, 9, 20), 0)
    assert count_partitions(problem) > partition_bound.MOST_OF_A_CLUSTER
    nothing = LimitMultipliers(*[None] * len(LimitMultipliers._fields))
    with pytest.raises(InputError, match="partitions of a cluster"):
        bound_partitions(problem, static_pipeline(problem, 1), nothing)
