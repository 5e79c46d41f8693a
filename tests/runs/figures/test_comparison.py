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


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    return compared(tmp_path_factory.mktemp("eight"))


QUICK = "some_infinite", "all_infinite"
HARD = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]


@pytest.fixture(scope="module", params=HARD)
def hard(request, tmp_path_factory):
    names = ("dssra", "greedy", "random")
    return compared(tmp_path_factory.mktemp("hard"), names=names, **CASES[request.param])


@pytest.mark.parametrize("name", FIGURES)
def test_eight_policies_are_readable(name, eight):
    figure = FIGURES[name](eight)
    assert_readable(figure)
    assert figure.get_figwidth() == style.DOUBLE_WIDTH_IN


@pytest.mark.parametrize("name", FIGURES)
def test_hard_comparisons_draw(name, hard):
    assert_readable(FIGURES[name](hard))
