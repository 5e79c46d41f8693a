import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from collapipe_jax.errors import InputError
from collapipe_jax.models.config import TransformerConfig
from collapipe_jax.models.encoder import init_encoder
from collapipe_jax.pipeline.execution import forward

CONFIG = TransformerConfig(
    vocabulary_size=11,
    width=8,
    heads=2,
    feed_forward_width=16,
    encoder_blocks=4,
    decoder_blocks=1,
    source_length=5,
    target_length=4,
    dropout_rate=0.2,
)
KEY = jax.random.key(5)


@pytest.fixture(scope="module")
def problem():
    params = init_encoder(jax.random.key(0), CONFIG)
    x = jax.random.normal(jax.random.key(1), (3, 5, 8))
    return params, x, jnp.arange(5)[None] < jnp.array([5, 2, 4])[:, None]


@functools.partial(jax.jit, static_argnames="backend")
def value_and_gradient(params, x, mask, segments, backend):
    def loss(params, x):
        y = forward(params, CONFIG, x, mask, segments, KEY, backend=backend)
        return (y**2).sum(), y

    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, x)


def test_every_partition_equals_the_stack_in_one_compilation(problem):
    """All partitions of 4 blocks over 3 devices, idle devices included."""
    params, x, mask = problem
    (_, expected), gradient = value_and_gradient(params, x, mask, None, "sequential")
    # The scale of rounding: a key's bias has gradient 0 (softmax ignores a shift), all noise.
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient))
    before = value_and_gradient._cache_size()
    partitions = [p for p in itertools.product(range(5), repeat=3) if sum(p) == 4]
    assert len(partitions) == 15
    for sizes in partitions:
        segments = jnp.array(sizes)
        (_, got), got_gradient = value_and_gradient(params, x, mask, segments, "segmented")
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
        for a, b in zip(jax.tree.leaves(got_gradient), jax.tree.leaves(gradient), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * largest)
    assert value_and_gradient._cache_size() == before + 1


def test_a_missing_block_shows(problem):
    params, x, mask = problem
    (_, expected), _ = value_and_gradient(params, x, mask, None, "sequential")
    (_, got), _ = value_and_gradient(params, x, mask, jnp.array([1, 0, 2]), "segmented")
    assert not np.allclose(got, expected, atol=1e-2)


def test_wrong_calls_are_named(problem):
    with pytest.raises(InputError, match=r"pipeline\.backend"):
        forward(problem[0], CONFIG, *problem[1:], backend="quantum")
    with pytest.raises(InputError, match="segments"):
        forward(problem[0], CONFIG, *problem[1:], backend="segmented")
