import inspect

import jax
import numpy as np
import pytest
from random_problems import pick, random_problems

from collapipe_jax.cost.decision import Decision
from collapipe_jax.errors import InputError
from collapipe_jax.scheduling.policies import POLICIES, make_policy


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_has_one_signature(name):
    """Shapes alone: nothing is compiled."""
    policy = make_policy(name, 3)
    assert list(inspect.signature(policy).parameters) == ["key", "problem"]
    problem = pick(random_problems(1, 3, 4, 7), 0)
    decision = jax.eval_shape(policy, jax.random.key(0), problem)
    assert isinstance(decision, Decision)
    shapes = {field: leaf.shape for field, leaf in vars(decision).items()}
    assert shapes == {
        "segments": (3, 4),
        "micro_batches": (3,),
        "d2d_share": (3, 5),
        "d2d_power_w": (3, 5),
        "d2e_share": (3,),
        "d2e_power_w": (3,),
    }
    assert decision.segments.dtype == decision.micro_batches.dtype == np.int32


def test_the_number_of_micro_batches_reaches_the_static_pipeline():
    problem = pick(random_problems(1, 3, 4, 7), 0)
    for count in (2, 12):
        decision = make_policy("static_pipeline", count)(jax.random.key(0), problem)
        assert decision.micro_batches.tolist() == [count] * 3


def test_an_unknown_policy_is_named_with_the_known_ones():
    with pytest.raises(InputError, match=r"policy\.name") as caught:
        make_policy("no_such_policy")
    for name in ("no_such_policy", *POLICIES):
        assert name in str(caught.value)
