import jax
import numpy as np
import pytest
from support.compilations import compiles

from collapipe_jax.learning.tasks.task import in_batches


@pytest.mark.parametrize("count", [1, 99, 100, 101, 250])
def test_every_sample_is_met_once_and_in_its_place(count):
    arrays = {"a": np.arange(count), "b": np.random.default_rng(0).normal(size=(count, 3))}
    double, total = in_batches(lambda batch: (2 * batch["a"], batch["b"].sum(1)), arrays)
    np.testing.assert_array_equal(double, 2 * arrays["a"])
    np.testing.assert_array_equal(total, arrays["b"].sum(1))


def test_sets_of_any_size_take_one_compilation():
    square = jax.jit(lambda batch: batch**2)
    with compiles(square, 1):
        for count in (7, 100, 205):
            found = in_batches(square, np.arange(count, dtype=np.float32))
            np.testing.assert_array_equal(found, np.arange(count, dtype=np.float32) ** 2)
