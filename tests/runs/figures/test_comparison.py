"""What holds for every figure of a comparison."""

import pytest
from support.made_up_comparisons import CASES, assert_readable, compared

from collapipe_jax.runs.figures import constraints, memory, policies, reduction, style

FIGURES = {
    "policies": policies.draw,
    "memory": memory.draw,
    "constraints": constraints.draw,
    "reduction": reduction.draw,
}


@pytest.mark.parametrize("name", FIGURES)
def test_eight_policies_are_readable(name, tmp_path):
    figure = FIGURES[name](compared(tmp_path))
    assert_readable(figure)
    assert figure.get_figwidth() == style.DOUBLE_WIDTH_IN


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", FIGURES)
def test_hard_comparisons_draw(name, case, tmp_path):
    names = ("dssra", "greedy", "random")
    assert_readable(FIGURES[name](compared(tmp_path, names=names, **CASES[case])))
