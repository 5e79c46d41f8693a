import jax
import pytest
from support.random_problems import pick, plain_problems

from collapipe_jax.edge.cost.static_pipeline import static_pipeline


@pytest.fixture(scope="module")
def case():
    """A small problem, and a decision to start from."""
    problem = pick(plain_problems(1, clusters=2, devices=2, blocks=4), 0)
    return problem, jax.jit(static_pipeline, static_argnums=1)(problem, 6)
