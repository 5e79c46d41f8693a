import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.drawn_parameters import drawn

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.block import encode, encoder_block, init_encoder
from collapipe_jax.learning.models.config import TransformerConfig
from collapipe_jax.learning.models.layers import dropout, example_keys, layer_keys

CONFIG = TransformerConfig(
    vocabulary_size=11,
    width=8,
    heads=2,
    feed_forward_width=32,
    encoder_blocks=3,
    decoder_blocks=1,
    source_length=5,
    target_length=4,
    dropout_rate=0.3,
)
BATCH = 6

init = jax.jit(init_encoder, static_argnums=1)
encoded = jax.jit(encode, static_argnums=1)
one_block = jax.jit(encoder_block, static_argnums=1)


def slopes(params, x, mask, weights, keys, config):
    """Weighted sum of squared outputs, and its gradients by parameters and inputs."""

    def loss(params, x):
        return (encode(params, config, x, mask, keys) ** 2 * weights[..., None]).sum()

    return jax.value_and_grad(loss, (0, 1))(params, x)


slopes_of = jax.jit(slopes, static_argnames="config")
KEYS = example_keys(jax.random.key(2), jnp.arange(BATCH))


@pytest.fixture(scope="module")
def params():
    return init(jax.random.key(0), CONFIG)


@pytest.fixture(scope="module")
def inputs():
    x = jax.random.normal(jax.random.key(1), (BATCH, 5, CONFIG.width))
    mask = jnp.arange(5)[None] < jnp.array([5, 3, 4, 1, 5, 2])[:, None]
    return x, mask


@pytest.mark.parametrize(("width", "inner"), [(8, 32), (6, 10)])
def test_a_block_has_the_promised_number_of_parameters(width, inner):
    config = dataclasses.replace(CONFIG, width=width, feed_forward_width=inner)
    shapes = jax.eval_shape(lambda key: init_encoder(key, config), jax.random.key(0))
    assert all(leaf.shape[0] == 3 for leaf in jax.tree.leaves(shapes))
    attention, norms = 4 * width**2 + 4 * width, 4 * width
    expected = attention + 2 * width * inner + inner + width + norms
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 3 * expected
    if inner == 4 * width:
        assert expected == 12 * width**2 + 13 * width


def test_blocks_start_differently(params):
    kernel = params["attention"]["query"]["kernel"]
    assert not np.allclose(kernel[0], kernel[1])


def test_a_block_equals_the_textbook(params, inputs):
    """Pre-norm attention and feed-forward, written out for one head at a time."""
    block = jax.tree.map(lambda leaf: np.asarray(leaf[0], np.float64), params)
    x, mask = (np.asarray(a) for a in inputs)

    def norm(p, x):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]

    def linear(p, x):
        return x @ p["kernel"] + p["bias"]

    for b in range(BATCH):
        row, a = x[b].astype(np.float64), block["attention"]
        n = norm(block["attention_norm"], row)
        q, k, v = (linear(a[name], n) for name in ("query", "key", "value"))
        heads = []
        for i in range(CONFIG.heads):
            part = slice(4 * i, 4 * i + 4)
            scores = np.where(mask[b][None], q[:, part] @ k[:, part].T / 2.0, -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, part])
        row = row + linear(a["out"], np.concatenate(heads, -1))
        f = block["feed_forward"]
        z = linear(f["inner"], norm(block["feed_forward_norm"], row))
        gelu = 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
        row = row + linear(f["outer"], gelu)
        first = jax.tree.map(lambda leaf: leaf[0], params)
        got = one_block(first, CONFIG, inputs[0][b : b + 1], inputs[1][b : b + 1])[0]
        np.testing.assert_allclose(got, row, rtol=1e-4, atol=1e-5)


def test_micro_batches_and_block_loop_compute_what_the_scan_does(params, inputs):
    x, mask = inputs
    keys = example_keys(jax.random.key(7), jnp.arange(BATCH))
    whole = encoded(params, CONFIG, x, mask, keys)
    parts = [
        encoded(params, CONFIG, x[rows], mask[rows], keys[rows])
        for rows in (jnp.array([4, 0]), jnp.array([1, 3]), jnp.array([5, 2]))
    ]
    np.testing.assert_allclose(
        np.concatenate(parts), np.asarray(whole)[[4, 0, 1, 3, 5, 2]], rtol=1e-5, atol=1e-6
    )
    y = x
    for layer in range(3):
        block = jax.tree.map(lambda leaf, layer=layer: leaf[layer], params)
        y = one_block(block, CONFIG, y, mask, layer_keys(keys, layer))
    np.testing.assert_allclose(y, whole, rtol=1e-5, atol=1e-6)
    assert not np.allclose(whole, encoded(params, CONFIG, x, mask), atol=1e-2)
    others = example_keys(jax.random.key(8), jnp.arange(BATCH))
    assert not np.allclose(whole, encoded(params, CONFIG, x, mask, others), atol=1e-2)


def test_rematerialising_changes_neither_value_nor_gradient(params, inputs):
    arguments = params, *inputs, np.ones((BATCH, 5), np.float32), KEYS
    value, gradient = slopes_of(*arguments, CONFIG)
    remat = dataclasses.replace(CONFIG, rematerialise=True)
    again, gradient_again = slopes_of(*arguments, remat)
    np.testing.assert_allclose(again, value, rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
        gradient,
        gradient_again,
    )


@pytest.mark.slow
def test_rematerialised_blocks_keep_only_their_inputs():
    """Memory of eight blocks: one block's activations, and an input of each."""
    sizes = {"encoder_blocks": 8, "width": 32, "feed_forward_width": 128, "dropout_rate": 0.0}
    kept = dataclasses.replace(CONFIG, **sizes)
    x, mask = jnp.zeros((32, 16, 32)), jnp.ones((32, 16), bool)
    params = jax.eval_shape(lambda key: init_encoder(key, kept), jax.random.key(0))

    def temporary_bytes(config):
        gradient = jax.jit(jax.grad(lambda p: (encode(p, config, x, mask) ** 2).sum()))
        return gradient.lower(params).compile().memory_analysis().temp_size_in_bytes

    assert (
        temporary_bytes(dataclasses.replace(kept, rematerialise=True)) < temporary_bytes(kept) / 3
    )


def test_what_is_chosen_for_a_cpu_changes_no_values(params, inputs, monkeypatch):
    arguments = params, *inputs, np.ones((BATCH, 5), np.float32), KEYS
    value, gradient = slopes_of(*arguments, CONFIG)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    again, gradient_again = jax.jit(lambda *given: slopes(*given, CONFIG))(*arguments)
    np.testing.assert_allclose(again, value, rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
        gradient,
        gradient_again,
    )


def test_padding_does_not_reach_real_tokens(params, inputs):
    x, mask = inputs
    _, (_, gradient) = slopes_of(params, x, mask, np.float32(mask), KEYS, CONFIG)
    assert np.all(np.asarray(gradient)[~np.asarray(mask)] == 0.0)
    assert np.all(np.abs(np.asarray(gradient)[np.asarray(mask)]).sum(-1) > 0.0)


def test_an_example_without_tokens_stays_finite(params, inputs):
    empty, weights = np.zeros((BATCH, 5), bool), np.ones((BATCH, 5), np.float32)
    value, gradient = slopes_of(params, inputs[0], empty, weights, KEYS, CONFIG)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_dropout_has_the_right_rate_mean_and_no_visible_correlation():
    keys = example_keys(jax.random.key(3), jnp.arange(64))
    ones = jnp.ones((64, 1000))
    masks = np.stack([np.asarray(dropout(ones, keys, site, 0.25)) for site in (0, 1)])
    kept = masks > 0
    assert np.allclose(masks[kept], 1 / 0.75)
    count = kept[0].size
    five_sigma = 5 * np.sqrt(0.25 * 0.75 / count)
    assert abs(kept[0].mean() - 0.75) < five_sigma
    # Every example by itself, neighbouring entries, examples and sites: each pair has a
    # correlation within noise.
    per_example = kept[0].mean(1) - 0.75
    assert np.abs(per_example).max() < 5 * np.sqrt(0.25 * 0.75 / 1000)
    centred = (kept - 0.75) / np.sqrt(0.25 * 0.75)
    for a, b in (
        (centred[0][:, 1:], centred[0][:, :-1]),
        (centred[0][1:], centred[0][:-1]),
        (centred[0], centred[1]),
    ):
        assert abs((a * b).mean()) < 5 / np.sqrt(count)


def test_attention_weights_have_a_rate_of_their_own(params, inputs):
    first = jax.tree.map(lambda leaf: leaf[0], params)
    keys = layer_keys(example_keys(jax.random.key(7), jnp.arange(BATCH)), 0)

    def outputs(**rates):
        return np.asarray(one_block(first, dataclasses.replace(CONFIG, **rates), *inputs, keys))

    both = outputs(dropout_rate=0.3)
    np.testing.assert_array_equal(both, outputs(dropout_rate=0.3, attention_dropout_rate=0.3))
    weights, activations = (
        outputs(dropout_rate=0.0, attention_dropout_rate=0.3),
        outputs(dropout_rate=0.3, attention_dropout_rate=0.0),
    )
    none = outputs(dropout_rate=0.0)
    for one, other in itertools.combinations((both, weights, activations, none), 2):
        assert not np.allclose(one, other, atol=1e-2)


def test_the_fused_kernel_gets_the_same_attention(params, inputs, monkeypatch):
    """By XLA's implementation in the kernel's place: there is no GPU in tests."""
    config = dataclasses.replace(
        CONFIG, width=16, heads=2, dropout_rate=0.0, compute_dtype="bfloat16"
    )
    params = drawn(lambda key: init_encoder(key, config))
    x, mask = jnp.pad(inputs[0], [(0, 0), (0, 0), (0, 16)])[..., :16], inputs[1]
    fused = dataclasses.replace(config, attention="cudnn")
    with pytest.raises(InputError, match="needs a GPU"):
        encode(params, fused, x, mask)
    plain, kernel = encoded(params, config, x, mask), jax.nn.dot_product_attention

    def on_cpu(*given, implementation, **options):
        assert implementation == "cudnn"
        return kernel(*given, **options, implementation="xla")

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax.nn, "dot_product_attention", on_cpu)
    found = jax.jit(lambda *given: encode(params, fused, *given))(x, mask)
    np.testing.assert_allclose(found, plain, atol=0.1)
    for wrong in ({"compute_dtype": "float32"}, {"heads": 4}, {"attention_dropout_rate": 0.1}):
        with pytest.raises(InputError, match=r"model\.attention"):
            dataclasses.replace(fused, **wrong)
