"""The best number of micro-batches against all of them, one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compiled import evaluate
from support.random_problems import plain_problems

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.policies.baselines import titanic
from collapipe_jax.edge.policies.registry import at_best_micro_batches, make_policy

KEY, NETWORKS = jax.random.key(0), 24


@pytest.fixture(scope="module")
def problem():
    """Networks on which some like few micro-batches and others many."""
    plain = plain_problems(NETWORKS, 2, 3, 5)
    scale = jnp.logspace(-2, 1, NETWORKS, dtype=jnp.float32)
    compute = plain.compute.replace(link_overhead_s=plain.compute.link_overhead_s * scale)
    return plain.replace(compute=compute)


@pytest.mark.slow
@pytest.mark.parametrize("decide", [static_pipeline, titanic])
def test_the_least_latency_of_all_allowed_numbers(decide, problem):
    choices = np.asarray(problem.workload.micro_batch_choices[0])

    @quick_jit
    @jax.vmap
    def latencies(problem):
        best = at_best_micro_batches(decide)(problem, 1, best_micro_batches=True)
        each = jax.vmap(lambda count: evaluate(problem, decide(problem, count)).latency_s)
        return best.micro_batches, evaluate(problem, best).latency_s, each(choices)

    counts, latency_s, each_s = latencies(problem)
    np.testing.assert_allclose(latency_s, np.min(each_s, axis=1), rtol=1e-6)
    assert np.all(np.asarray(counts) == choices[np.argmin(each_s, axis=1)][:, None])
    assert len(np.unique(counts)) > 1


def test_the_option_reaches_the_policy(problem):
    found = make_policy("static_pipeline", 8, best_micro_batches=True)
    decision = quick_jit(jax.vmap(found, in_axes=(None, 0)))(KEY, problem)
    assert len(np.unique(decision.micro_batches)) > 1
    assert found is not make_policy("static_pipeline", 8)
    assert make_policy("titanic", best_micro_batches=True) is make_policy("titanic")
