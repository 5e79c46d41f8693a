"""Attempts that the cost of a round counts and decisions do not see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compiled import decide, evaluate, static_pipeline
from support.random_problems import pick, plain_problems, with_ends

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.network.channel import with_attempts
from collapipe_jax.edge.solver.allocate import allocate


@pytest.fixture(scope="module")
def problem():
    return with_ends(pick(plain_problems(1, 2, 3, 5), 0))


def with_law(problem, law):
    return problem.replace(radio=problem.radio.replace(retransmissions=law))


@pytest.mark.parametrize(
    "name", ["static_pipeline", "splitfed", pytest.param("dssra", marks=pytest.mark.slow)]
)
def test_decisions_are_those_without_attempts_and_costs_have_them(problem, name):
    options = {"shares": "equal", "split": "even", "client_micro_batches": 1}
    decision = decide(name, problem, **options)
    counted = decide(name, with_law(problem, "counted"), **options)
    jax.tree.map(np.testing.assert_array_equal, decision, counted)
    free = evaluate(problem, decision)
    counted = evaluate(with_law(problem, "counted"), decision)
    reliable = evaluate(with_law(problem, "reliable"), decision)
    for field in ("latency_s", "energy_j"):
        before, after, most = (getattr(cost, field) for cost in (free, counted, reliable))
        assert np.all(before <= after)
        assert np.all(after <= most * (1 + 1e-6))
        assert np.any(before * 1.001 < after)
    np.testing.assert_array_equal(counted.loss_probability, free.loss_probability)


def test_attempts_are_a_truncated_geometric_sum(problem):
    radio = with_law(problem, "counted").radio
    z = np.array([1e-6, 1e-3, 0.1, 1.0, 5.0, 29.0, 31.0, 1e4, 1e12])
    sinr = jnp.asarray(np.asarray(radio.outage_threshold) / z, jnp.float32)
    fails = -np.expm1(-z)
    expected = sum(fails**attempt for attempt in range(int(radio.harq_attempts)))
    found = with_attempts(radio, sinr, jnp.ones(len(z)))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_solver_refuses_what_is_not_convex(problem):
    counted = with_law(problem, "counted")
    with pytest.raises(InputError, match=r"radio\.retransmissions"):
        allocate(counted, static_pipeline(counted, 6))
