"""Checks of ``dssra`` that hold under every law of physics."""

import jax
import numpy as np

from collapipe_jax.edge.cost.feasibility import is_feasible
from collapipe_jax.edge.policies.dssra import dssra
from collapipe_jax.edge.solver.allocate import OPTIMAL
from collapipe_jax.edge.solver.exhaustive import exhaustive
from support.compiled import evaluate
from support.random_problems import pick, plain_problems, random_problems, roomy


def assert_decides_for(law, share_optimal):
    """Decisions under a law cost what they say, and less than decisions that do not know it.

    Args:
      law: function from a problem to the same one under the law.
      share_optimal: least share of allocations whose certificate says ``OPTIMAL``.
    """
    problem = random_problems(12, 2, 3, 5, roomy, seed=5)
    true = law(problem)

    def decide(seen, true):
        found = dssra(seen)
        return found, evaluate(true, found.decision), is_feasible(true, found.decision)

    run = jax.jit(jax.vmap(decide))
    found, cost, feasible = run(true, true)
    _, unaware, _ = run(problem, true)
    assert np.all(feasible)
    np.testing.assert_allclose(found.objective, cost.objective, rtol=1e-4)
    assert np.all(found.lower_bound <= found.objective * (1 + 1e-5))
    assert np.mean(np.asarray(found.status) == OPTIMAL) > share_optimal
    assert np.all(cost.objective <= unaware.objective * (1 + 1e-3))
    assert np.mean(cost.objective) < 0.995 * np.mean(unaware.objective)


def assert_as_good_as_exhaustive(law):
    """On two small networks under a law no partition is better by over 0.1 %."""
    for seed in (3, 8):
        problem = law(pick(plain_problems(1, 2, 2, 3, seed=seed), 0))
        best = exhaustive(problem)
        found = jax.jit(dssra)(problem)
        assert best.lower_bound <= float(found.objective)
        assert float(found.objective) <= best.objective * (1 + 1e-3)
