"""What holds for every figure of a comparison."""

import pytest
from support.made_up_comparisons import CASES, assert_readable, compared

from collapipe_jax.runs.figures import comparison, limits, style

FIGURES = {
    "policies": comparison.draw_policies,
    "memory": limits.draw_memory,
    "constraints": limits.draw_constraints,
    "reduction": comparison.draw_reduction,
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
