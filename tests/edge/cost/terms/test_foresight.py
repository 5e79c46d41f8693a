"""Terms of the cost in decisions: one that knows of them costs less."""

import numpy as np
import pytest
from support.against_reference import base_case
from support.compiled import dssra, evaluate, static_pipeline
from support.random_networks import WHOLE_TABLE, rows_section, signalling_section
from support.structs import as_problem

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.edge.solver.allocate import allocate

NETWORK = base_case()[0]
WITHOUT = {
    "workload": NETWORK["workload"],
    "signalling": {"report_bits": 0.0, "grant_bits": 0.0},
    "embedding_rows": rows_section() | WHOLE_TABLE,
}
"""Sections that add nothing, so that one program decides with and without every term."""

TERMS = {
    "short updates": {"workload": NETWORK["workload"] | {"update_ratio": 0.29}},
    "signals": {"signalling": signalling_section()},
    "rows": {"embedding_rows": rows_section() | {"number_bits": 13.0}},
}


@quick_jit
def allocated(problem):
    """Shares and powers alone are decided."""
    return allocate(problem, static_pipeline(problem, 6), 400)


@pytest.mark.parametrize("decide", [allocated, pytest.param(dssra, marks=pytest.mark.slow)])
@pytest.mark.parametrize("term", TERMS)
@pytest.mark.usefixtures("x64")
def test_decisions_foresee_every_term(decide, term):
    without = as_problem(NETWORK | WITHOUT)
    problem = as_problem(NETWORK | WITHOUT | TERMS[term])
    solution = decide(problem)
    exact = evaluate(problem, solution.decision).objective
    np.testing.assert_allclose(solution.objective, exact, rtol=1e-9)
    blind = evaluate(problem, decide(without).decision).objective
    assert exact <= blind * (1 + 1e-9)
