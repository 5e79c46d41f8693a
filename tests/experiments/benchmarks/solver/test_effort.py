import argparse

import pytest

from collapipe_jax.errors import InputError
from collapipe_jax.policies.dssra import DEFAULT_EFFORT, Effort
from experiments.benchmarks.solver.effort import add_effort_options, effort_of


def given(*arguments):
    parser = argparse.ArgumentParser()
    add_effort_options(parser)
    return effort_of(parser.parse_args(arguments))


def test_the_default_and_every_option():
    assert given() == DEFAULT_EFFORT
    told = given("--joint-steps=3,4", "--plans=2", "--layouts=5", "--cluster-steps=6")
    assert told == Effort((3, 4), 2, 5, 6)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--joint-steps", "3,x"),
        ("--joint-steps", ""),
        ("--joint-steps", "3,0"),
        ("--plans", "1"),
        ("--layouts", "0"),
        ("--cluster-steps", "-1"),
    ],
)
def test_wrong_numbers_are_told(option, value):
    with pytest.raises(InputError, match=option):
        given(f"{option}={value}")
