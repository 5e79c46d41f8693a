import pytest

from collapipe_jax.cli.options import make_parser
from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.solver.joint_search import SearchConfig
from experiments.benchmarks.solver.options import SEARCH_OPTIONS, search_config


def given(*arguments):
    return search_config(make_parser(None, **SEARCH_OPTIONS).parse_args(arguments))


def test_the_default_and_every_option():
    assert given() == SearchConfig()
    config = given(
        *("--allocation-steps=3,4", "--candidates=2", "--cluster-candidates=5"),
        *("--cluster-steps=6", "--starts=2"),
    )
    assert config == SearchConfig((3, 4), 2, 5, 6, 2)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--allocation-steps", "3,x"),
        ("--allocation-steps", ""),
        ("--allocation-steps", "3"),
        ("--allocation-steps", "3,0"),
        ("--candidates", "1"),
        ("--cluster-candidates", "0"),
        ("--cluster-steps", "-1"),
    ],
)
def test_wrong_numbers_are_refused(option, value):
    with pytest.raises(InputError, match=option):
        given(f"{option}={value}")
