"""What a block keeps for its backward pass, and the behaviour of JAX that this rests on."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from collapipe_jax.learning.models.block import encoder_block, init_encoder
from collapipe_jax.learning.models.config import BertConfig, EncoderConfig
from collapipe_jax.learning.models.layers import example_keys
from collapipe_jax.learning.pipeline import sharded

SIZES = {"width": 8, "heads": 2, "feed_forward_width": 32, "encoder_blocks": 1}
CONFIGS = {
    "pre-norm": EncoderConfig(**SIZES),
    "dropout": EncoderConfig(**SIZES, dropout_rate=0.2),
    "bert": BertConfig(**SIZES, vocabulary_size=11),
    "rematerialised": EncoderConfig(**SIZES, rematerialise=True),
    "bfloat16": EncoderConfig(**SIZES, compute_dtype="bfloat16"),
}
LENGTH = 8  # twice the width is heads times length


@functools.partial(jax.jit, static_argnums=0)
def block_of(config):
    stack = init_encoder(jax.random.key(0), config)
    x = jax.random.normal(jax.random.key(1), (3, LENGTH, 8))
    mask = jnp.arange(LENGTH)[None] < jnp.array([[8], [5], [3]])
    keys = example_keys(jax.random.key(2), jnp.arange(3)) if config.dropout_rate else None
    return jax.tree.map(lambda leaf: leaf[0], stack), x, mask, keys


@functools.partial(jax.jit, static_argnums=0)
def kept_of(config, x, rest):
    return sharded._block_forward(config, x, *rest)[1]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in ("pre-norm", "bert")))
        for name in ("pre-norm", "dropout", "bert", "rematerialised")
    ],
)
def test_the_two_passes_are_one_gradient(name):
    config = CONFIGS[name]
    params, x, mask, keys = block_of(config)
    cotangent = jax.random.normal(jax.random.key(3), x.shape)

    @jax.jit
    def both_ways(params, x):
        y, kept = sharded._block_forward(config, x, params, {}, mask, keys)
        in_two = y, sharded._block_backward(config, cotangent, kept, params, {}, mask, keys)
        y, pull_back = jax.vjp(lambda x, p: encoder_block(p, config, x, mask, keys), x, params)
        return in_two, (y, pull_back(cotangent))

    for got, expected in zip(*map(jax.tree.leaves, both_ways(params, x)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "arrays"),
    [("pre-norm", 16), ("dropout", 16), ("bert", 17), ("bfloat16", 16), ("rematerialised", 1)],
)
def test_a_block_keeps_as_many_arrays_as_documented(name, arrays):
    """Counted in activations: input, q, k, v, mixed, 4 + 4 of the feed-forward, ..."""
    config = CONFIGS[name]
    params, x, *rest = block_of(config)
    slots, *rest = jax.tree.map(lambda leaf: leaf[None], (params, *rest))
    kept = sharded.Stage(config, slots, jnp.int32(0), jnp.int32(1), *rest, {}).empty_kept(x, 1)
    broken = "jax.checkpoint keeps other outputs than its policy says: see passes._policy"
    assert sum(leaf.size for leaf in kept) / x.size == arrays, broken


def test_a_function_of_jax_vjp_tells_arguments_from_what_it_keeps_of_them():
    """Both can be taken out and put back: what ``passes`` does to a block."""
    _, pull_back = jax.vjp(lambda x, w: w * jnp.sin(x), jnp.float32(2.0), jnp.float32(3.0))
    broken = "jax.vjp keeps its arguments or residuals elsewhere: see passes._linearise"
    assert pull_back.args_res[1] == 3.0, broken
    assert sorted(map(float, pull_back.opaque_residuals)) == sorted(
        map(float, (jnp.sin(2.0), jnp.cos(2.0)))
    ), broken
    pull_back.args_res = [jnp.float32(0.0), jnp.float32(5.0)]
    assert pull_back(jnp.float32(1.0))[0] == jnp.float32(5.0) * jnp.cos(2.0), broken
    pull_back.opaque_residuals = [jnp.zeros_like(leaf) for leaf in pull_back.opaque_residuals]
    assert not any(pull_back(jnp.float32(1.0))), broken


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name != "dropout")) for name in CONFIGS],
)
def test_what_is_kept_for_each_micro_batch_depends_on_the_input(name):
    """Arrays that depend on parameters, mask and keys alone would be kept over and over."""
    params, x, mask, keys = block_of(CONFIGS[name])
    rest = params, {}, mask, keys
    kept = jax.device_get([kept_of(CONFIGS[name], z, rest) for z in (x, jnp.sin(x))])
    broken = "a block keeps arrays that do not depend on its input: see passes._policy"
    assert all((a != b).any() for a, b in zip(*kept, strict=True)), broken
