"""A network drawn to a file is read, and decided, as any other."""

import jax
import pytest

from collapipe_jax.cli import sample
from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.feasibility import is_feasible
from collapipe_jax.edge.policies.registry import make_policy
from collapipe_jax.runs.documents import read_network


def test_a_drawn_network_can_be_read_and_decided(tmp_path):
    first, again, other = (tmp_path / f"{name}.json" for name in ("first", "again", "other"))
    for path, seed in ((first, 0), (again, 0), (other, 1)):
        sample.main(["--config=default", f"--config.seed={seed}", f"--out={path}"])
    assert first.read_bytes() == again.read_bytes()
    assert first.read_bytes() != other.read_bytes()
    problem = read_network(first)
    decision = quick_jit(make_policy("static_pipeline"))(jax.random.key(0), problem)
    assert (problem.clusters, problem.devices) == (4, 5)
    assert is_feasible(problem, decision)


def test_a_cut_to_decide_has_no_place_on_file(tmp_path):
    options = ["--config=default", "--config.model.min_cluster_blocks=2"]
    with pytest.raises(InputError, match="no place for it"):
        sample.main([*options, f"--out={tmp_path / 'network.json'}"])
