"""The Python of README.md, docs/pipeline.md and docs/how-to/own-policy.md runs as printed."""

import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from support import ROOT

from collapipe_jax.edge.cost.feasibility import can_run, is_feasible
from collapipe_jax.edge.system import sample_system
from collapipe_jax.runs.config import default
from collapipe_jax.runs.config.system import build_system_params


def blocks_of(page):
    """The code blocks in Python of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


BLOCKS = blocks_of("README.md")
POLICY_PAGE = "docs/how-to/own-policy.md"


def test_the_example_policy_is_feasible_on_every_network():
    (block,) = blocks_of(POLICY_PAGE)
    names = {"__name__": "page"}
    exec(compile(block, POLICY_PAGE, "exec"), names)
    params = build_system_params(default.get_config(), np.full(4, 0.25))

    def decide(key):
        problem = sample_system(key, params).mean_problem
        decision = names["fastest_first"](problem)
        return is_feasible(problem, decision), decision.segments, can_run(problem)

    feasible, segments, runs = jax.jit(jax.vmap(decide))(jax.random.split(jax.random.key(1), 50))
    assert np.all(feasible)
    np.testing.assert_array_equal(np.sum(segments, axis=2), np.where(runs, 6, 0))
    assert np.any(runs)


@pytest.mark.slow
def test_the_example_simulation_runs(capsys):
    (block,) = [block for block in BLOCKS if "simulate(" in block]
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out == "(64, 50)\n"


@pytest.mark.slow
def test_the_example_pipeline_runs():
    """In a process of its own: the devices have to be there before jax is."""
    (block,) = blocks_of("docs/pipeline.md")
    found = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, cwd=ROOT)
    assert found.stdout == "(1, 8, 16, 64) (1, 8, 16, 64)\n", found.stderr
