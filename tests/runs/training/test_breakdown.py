import jax.numpy as jnp
import numpy as np

from collapipe_jax.learning.federated.learner import LearningReport
from collapipe_jax.runs.training.ongoing_run import broken_array, broken_number


def report(loss=1.0, erased_fraction=0.0, gradient_norm=1.0):
    return LearningReport(*map(np.float32, (loss, erased_fraction, gradient_norm)))


def test_only_a_round_with_participants_can_break_down():
    assert broken_number(report()) == ""
    assert broken_number(report(np.nan, np.nan, np.nan)) == ""
    assert broken_number(report(loss=np.nan)) == "loss"
    assert broken_number(report(np.inf, 0.5, np.inf)) == "loss and gradient_norm"


def test_the_first_array_that_is_not_finite_is_named():
    state = {"a": {"kernel": jnp.ones(3), "count": jnp.int32(1)}, "b": jnp.array([1.0, 2.0])}
    assert broken_array(state) == ""
    assert broken_array(state | {"b": jnp.array([1.0, jnp.inf])}) == "b"
    state["a"]["kernel"] = state["a"]["kernel"].at[1].set(jnp.nan)
    assert broken_array(state) == "a/kernel"
