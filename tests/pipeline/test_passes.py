"""What a block keeps for its backward pass, and the behaviour of JAX that this rests on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from collapipe_jax.models.config import BertConfig, EncoderConfig
from collapipe_jax.models.encoder import encoder_block, init_encoder
from collapipe_jax.models.layers import example_keys
from collapipe_jax.pipeline import passes
from collapipe_jax.pipeline.micro_batches import MicroBatches

SIZES = {"width": 8, "heads": 2, "feed_forward_width": 32, "encoder_blocks": 1}
CONFIGS = {
    "pre-norm": EncoderConfig(**SIZES),
    "dropout": EncoderConfig(**SIZES, dropout_rate=0.2),
    "bert": BertConfig(**SIZES, vocabulary_size=11),
    "rematerialised": EncoderConfig(**SIZES, rematerialise=True),
}
LENGTH = 8  # twice the width is heads times length


def block_of(config):
    stack = init_encoder(jax.random.key(0), config)
    x = jax.random.normal(jax.random.key(1), (3, LENGTH, 8))
    mask = jnp.arange(LENGTH)[None] < jnp.array([[8], [5], [3]])
    keys = example_keys(jax.random.key(2), jnp.arange(3)) if config.dropout_rate else None
    return jax.tree.map(lambda leaf: leaf[0], stack), x, mask, keys


@pytest.mark.parametrize("name", CONFIGS)
def test_the_two_passes_are_one_gradient(name):
    config = CONFIGS[name]
    params, x, mask, keys = block_of(config)
    cotangent = jax.random.normal(jax.random.key(3), x.shape)

    @jax.jit
    def in_two(params, x):
        y, kept = passes._block_forward(params, config, x, mask, keys)
        return y, passes._block_backward(params, config, kept, mask, keys, cotangent)

    @jax.jit
    def in_one(params, x):
        y, pull_back = jax.vjp(lambda p, x: encoder_block(p, config, x, mask, keys), params, x)
        return y, pull_back(cotangent)

    pairs = zip(*map(jax.tree.leaves, (in_two(params, x), in_one(params, x))), strict=True)
    for got, expected in pairs:
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "arrays"), [("pre-norm", 16), ("dropout", 16), ("rematerialised", 1)]
)
def test_a_block_keeps_as_many_arrays_as_documented(name, arrays):
    """Counted in activations: input, q, k, v, mixed, 4 + 4 of the feed-forward, ..."""
    config = CONFIGS[name]
    params, x, mask, keys = block_of(config)
    slots = jax.tree.map(lambda leaf: leaf[None], params)
    kept = passes.empty_kept(slots, config, x, MicroBatches(mask, keys), 1, 0.0)
    broken = "jax.checkpoint keeps other outputs than its policy says: see passes._policy"
    assert sum(leaf.size for leaf in kept) / x.size == arrays, broken


def test_a_function_of_jax_vjp_is_a_tree_of_its_residuals():
    """Its leaves can be taken out and put back: what ``passes`` does to a block."""
    _, pull_back = jax.vjp(lambda w, x: w * jnp.sin(x), jnp.float32(3.0), jnp.float32(2.0))
    leaves, structure = jax.tree.flatten(pull_back)
    broken = "jax.vjp no longer returns a pytree of residuals: see passes._linearise"
    assert leaves, broken
    assert all(isinstance(leaf, jax.Array) for leaf in leaves), broken
    other = jax.tree.unflatten(structure, [jnp.zeros_like(leaf) for leaf in leaves])
    assert not any(other(jnp.float32(1.0))), broken


def test_leaves_that_depend_on_the_input_are_told_from_the_others():
    config = CONFIGS["dropout"]
    params, x, mask, keys = block_of(config)
    dependent = passes._depends_on_input(params, config, x, mask, keys)

    def residuals(x):
        return jax.tree.leaves(passes._linearise(params, config, x, mask, keys)[1])

    broken = "jax.vmap batches other arrays than those that depend on its argument"
    for leaf, other, depends in zip(residuals(x), residuals(x + 1.0), dependent, strict=True):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf, other = map(jax.random.key_data, (leaf, other))
        assert np.array_equal(leaf, other) != depends, broken
