"""Low-rank adapters: what they compute, and where they end and the base begins."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.leaves_close import assert_close

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.adapters import NO_BASE, add_adapters, digest, fuse, join, split
from collapipe_jax.learning.models.block import encode, init_encoder
from collapipe_jax.learning.models.config import LINEAR_LAYERS, AdapterConfig, BertConfig
from collapipe_jax.learning.models.layers import Linear, bind

RANK = 3
ADAPTERS = AdapterConfig(rank=RANK, alpha=6.0, targets=LINEAR_LAYERS)
CONFIG = BertConfig(
    width=8,
    heads=2,
    feed_forward_width=12,
    encoder_blocks=2,
    vocabulary_size=9,
    adapters=ADAPTERS,
)
X = jax.random.normal(jax.random.key(5), (2, 4, 8))
MASK = jnp.array([[True] * 4, [True, True, False, False]])


@functools.partial(jax.jit, static_argnums=0)
def model(adapters=ADAPTERS):
    encoder = init_encoder(jax.random.key(0), CONFIG)
    params = {
        "embedding": {"word": jnp.ones((9, 8))},
        "encoder": encoder,
        "decoder": {"bias": jnp.ones(3)},
    }
    return add_adapters(jax.random.key(1), params, adapters)


@jax.jit
def moved(params):
    """The same with all numbers changed, ``B`` included."""

    def move(leaf):
        return leaf + 0.1 * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape)

    return jax.tree.map(move, params)


@jax.jit
def encoded(params):
    return encode(params["encoder"], CONFIG, X, MASK)


def test_a_map_with_an_adapter_is_its_formula():
    rng = np.random.default_rng(0)
    shapes = {"kernel": (8, 5), "bias": (5,), "lora_a": (8, RANK), "lora_b": (RANK, 5)}
    params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}

    def linear(config, rngs):
        return Linear(8, 5, config, rngs=rngs)

    w, b, low, high = (params[name].astype(np.float64) for name in shapes)
    x = np.asarray(X, np.float64)
    expected = x @ w + b + 6.0 / RANK * (x @ low) @ high
    np.testing.assert_allclose(bind(linear, CONFIG, params)(X), expected, rtol=1e-5, atol=1e-5)


def test_fresh_adapters_leave_the_base_as_it_is():
    plain, adapted = model(None), model()
    np.testing.assert_array_equal(encoded(adapted), encoded(plain))
    low = adapted["encoder"]["feed_forward"]["outer"]["lora_a"]
    assert low.shape == (2, 12, RANK)
    assert 0.0 < jnp.abs(low).max() <= 12**-0.5
    assert not jnp.allclose(low[0], low[1])


def test_fused_weights_compute_the_same():
    params = moved(model())
    fused = fuse(params, ADAPTERS)
    assert jax.tree.structure(fused) == jax.tree.structure(model(None))
    np.testing.assert_allclose(encoded(fused), encoded(params), rtol=1e-4, atol=1e-5)
    assert not np.allclose(encoded(split(params)[1]), encoded(params), atol=1e-2)


def test_parts_join_to_the_whole():
    params = moved(model())
    trained, base = split(params)
    whole = join(trained, base)
    assert jax.tree.structure(whole) == jax.tree.structure(params)
    assert_close(whole, params, 0.0)
    assert optax.tree.size(trained) == 3 + 2 * RANK * (4 * (8 + 8) + 2 * (8 + 12))
    plain = model(None)
    assert split(plain) == (plain, NO_BASE)


@pytest.mark.slow
def test_gradients_of_adapters_are_those_among_all_parameters():
    trained, base = split(moved(model()))

    def loss(params):
        return jnp.vdot(encoded(params), jnp.cos(X))

    @jax.jit
    def both(trained, base):
        alone = jax.grad(lambda own: loss(join(own, base)))(trained)
        return jax.grad(loss)(join(trained, base)), alone

    whole, alone = both(trained, base)
    among_all, _ = split({"embedding": {}, **whole})
    assert_close(alone["encoder"], among_all["encoder"], 1e-6)


def test_with_a_frozen_the_mean_of_models_is_the_model_of_means():
    frozen = dataclasses.replace(ADAPTERS, freezes_a=True)
    trained, base = split(model(), frozen)
    assert set(jax.tree.leaves(jax.tree.map(lambda leaf: leaf.ndim, trained["encoder"]))) == {3}
    assert optax.tree.size(trained["encoder"]) == 2 * RANK * (5 * 8 + 12)  # B alone
    one, other = moved(trained), jax.tree.map(lambda leaf: 2.0 * leaf + 0.3, moved(trained))

    def mean(one, other):
        return jax.tree.map(lambda a, b: 0.25 * a + 0.75 * b, one, other)

    whole = [fuse(join(part, base), ADAPTERS) for part in (one, other, mean(one, other))]
    assert_close(mean(*whole[:2]), whole[2], 1e-6)


def test_a_base_in_16_bits_computes_what_its_rounded_numbers_do():
    narrow = dataclasses.replace(ADAPTERS, base_dtype="bfloat16")
    trained, base = split(moved(model()), narrow)
    assert {leaf.dtype for leaf in jax.tree.leaves(base["encoder"])} == {jnp.dtype("bfloat16")}
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), base)
    np.testing.assert_array_equal(digest(base), digest(rounded))

    @jax.jit
    @jax.grad
    def slope(trained, base):
        return jnp.vdot(encoded(join(trained, base)), jnp.cos(X))

    assert_close(encoded(join(trained, base)), encoded(join(trained, rounded)), 1e-6)
    assert_close(slope(trained, base)["encoder"], slope(trained, rounded)["encoder"], 1e-6)
    fused = fuse(join(trained, base), narrow)
    assert {leaf.dtype for leaf in jax.tree.leaves(fused)} == {jnp.dtype("float32")}
    sizes = dataclasses.replace(CONFIG, adapters=None)
    plain = jax.jit(lambda own: encode(own, sizes, X, MASK))(fused["encoder"])
    assert_close(plain, encoded(join(trained, base)), 1e-5)


def test_a_digest_tells_bases_apart():
    _, base = split(model())
    assert digest(NO_BASE) is None
    assert digest(base).shape == (32,)
    np.testing.assert_array_equal(digest(base), digest(jax.tree.map(np.array, base)))
    assert (digest(base) != digest(moved(base))).any()


def test_adapters_need_sizes_that_tell_their_scale():
    sizes = dataclasses.replace(CONFIG, adapters=None)
    with pytest.raises(InputError, match="the sizes none"):
        encode(model()["encoder"], sizes, X, MASK)


def test_maps_that_a_block_lacks_are_refused():
    wrong = dataclasses.replace(ADAPTERS, targets=("query", "gate"))
    with pytest.raises(InputError, match=r"adapter_targets .* no map gate"):
        dataclasses.replace(CONFIG, adapters=wrong)
