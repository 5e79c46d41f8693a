"""The block of decoder-only models by its mathematics, and as part of a pipeline."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.drawn_parameters import drawn

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.block import Block, encode, encoder_block, init_encoder, rotate
from collapipe_jax.learning.models.config import CausalConfig
from collapipe_jax.learning.models.layers import bind, example_keys
from collapipe_jax.learning.pipeline import sharded
from collapipe_jax.learning.pipeline.execution import Execution, encode_clusters

CONFIG = CausalConfig(
    vocabulary_size=11,
    positions=8,
    width=8,
    heads=4,
    key_value_heads=2,
    head_size=6,
    feed_forward_width=20,
    encoder_blocks=3,
    query_bias=True,
    rotary_base=50,
)
DROPPING = dataclasses.replace(CONFIG, dropout_rate=0.3)
BATCH, LENGTH = 4, 5


@pytest.fixture(scope="module")
def params():
    return drawn(lambda key: init_encoder(key, CONFIG))


@pytest.fixture(scope="module")
def inputs():
    x = jax.random.normal(jax.random.key(1), (BATCH, LENGTH, CONFIG.width))
    mask = jnp.arange(LENGTH)[None] < jnp.array([5, 3, 4, 1])[:, None]
    return x, mask


block_of = jax.jit(encoder_block, static_argnums=1)
encoded = jax.jit(encode, static_argnums=1)


def first_of(params):
    return jax.tree.map(lambda leaf: leaf[0], params)


def test_a_block_equals_the_textbook(params, inputs):
    """In double precision, one head and one query at a time; rotations as complex numbers."""
    block = jax.tree.map(lambda leaf: np.asarray(leaf[0], np.float64), params)
    rate = 50.0 ** (-np.arange(3) / 3)

    def norm(p, x):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * p["scale"]

    def linear(p, x):
        return x @ p["kernel"] + p.get("bias", 0.0)

    def turned(x):
        """Heads as complex numbers: pair i is ``x_i + j x_(i + 3)``."""
        x = x.reshape(LENGTH, -1, 6)
        turn = np.exp(1j * np.arange(LENGTH)[:, None] * rate)[:, None]
        return (x[..., :3] + 1j * x[..., 3:]) * turn

    got = block_of(first_of(params), CONFIG, *inputs)
    for b, row in enumerate(np.asarray(inputs[0], np.float64)):
        a, n = block["attention"], norm(block["attention_norm"], row)
        q, k = turned(linear(a["query"], n)), turned(linear(a["key"], n))
        v = linear(a["value"], n).reshape(LENGTH, -1, 6)
        mixed = np.zeros((LENGTH, 4, 6))
        for s in range(LENGTH):
            for head in range(4):
                seen = [t for t in range(s + 1) if inputs[1][b, t]]
                scores = (q[s, head] * k[seen, head // 2].conj()).real.sum(-1) / np.sqrt(6)
                weights = np.exp(scores) / np.exp(scores).sum()
                mixed[s, head] = weights @ v[seen, head // 2]
        row = row + linear(a["out"], mixed.reshape(LENGTH, -1))
        f, n = block["feed_forward"], norm(block["feed_forward_norm"], row)
        gate = linear(f["gate"], n)
        row = row + linear(f["outer"], gate / (1 + np.exp(-gate)) * linear(f["inner"], n))
        np.testing.assert_allclose(got[b], row, rtol=1e-4, atol=1e-4)


def test_rotated_products_depend_on_distances_alone():
    query, key = jax.random.normal(jax.random.key(2), (2, 1, 1, 3, 10))
    rate = 100.0 ** (-np.arange(5, dtype=np.float32) / 5)

    def product(at, seen):
        places = (jnp.array([[place]]) for place in (at, seen))
        turned = (rotate(x, place, rate) for x, place in zip((query, key), places, strict=True))
        return jnp.einsum("bsnd,bsnd->n", *turned)

    np.testing.assert_allclose(product(7, 4), product(103, 100), rtol=1e-4)
    np.testing.assert_allclose(product(5, 5), (query * key).sum((0, 1, 3)), rtol=1e-5)
    assert not np.allclose(product(7, 4), product(8, 4), rtol=1e-3)


def test_no_token_reads_a_later_one(params, inputs):
    """The output at a place has no derivative by later inputs, and one by its own."""
    x, mask = inputs

    def run(x):
        return encode(params, CONFIG, x[None], mask[:1])[0]

    slopes = np.abs(jax.jit(jax.jacobian(run))(x[0])).sum((1, 3))  # [S out, S in]
    assert (np.triu(slopes, 1) == 0.0).all()
    assert (np.tril(slopes) > 0.0).sum() == LENGTH * (LENGTH + 1) / 2


def test_extending_by_cached_keys_is_the_whole_block(params, inputs):
    x, mask = inputs[0], jnp.ones((BATCH, LENGTH), bool)
    whole = block_of(first_of(params), CONFIG, x, mask)

    @jax.jit
    def rest_after(params, x):
        """The last two places, where three are known."""
        module = bind(Block, CONFIG, params)
        places, seen = jnp.arange(LENGTH)[None], jnp.tril(jnp.ones((1, LENGTH, LENGTH), bool))
        _, known = module(x[:, :3], seen[:, :3, :3], positions=places[:, :3])

        def remember(*new):
            return tuple(jnp.concatenate(pair, 1) for pair in zip(known, new, strict=True))

        return module(x[:, 3:], seen[:, 3:], positions=places[:, 3:], remember=remember)[0]

    np.testing.assert_allclose(rest_after(first_of(params), x), whole[:, 3:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["sharded", "vmapped"])
@pytest.mark.slow
def test_pipelines_run_these_blocks(params, inputs, backend):
    """Values and gradients with dropout, of two segments and two micro-batches."""
    keys = example_keys(jax.random.key(5), jnp.arange(BATCH))
    stacks, *rest = jax.tree.map(lambda leaf: leaf[None], (params, *inputs, keys))
    segments = jnp.array([[2, 1]])

    def loss(stacks, execution):
        y = encode_clusters(stacks, DROPPING, *rest[:2], segments, rest[2], execution)
        return (y**2).sum(), y

    run = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1)
    expected, outputs = run(stacks, Execution())
    gradient, same = run(stacks, Execution(backend, micro_batches=2))
    np.testing.assert_allclose(same, outputs, rtol=1e-5, atol=1e-5)
    for got, right in zip(*map(jax.tree.leaves, (gradient, expected)), strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-4 * np.abs(right).max())
    plain = encoded(params, CONFIG, *inputs)
    assert not np.allclose(outputs[0], plain, atol=1e-2)


@pytest.mark.parametrize(
    "changes",
    [{"dropout_rate": 0.2}, pytest.param({"rematerialise": True}, marks=pytest.mark.slow)],
)
def test_the_two_passes_of_a_stage_are_one_gradient(params, inputs, changes):
    config = dataclasses.replace(CONFIG, **changes)
    keys = example_keys(jax.random.key(2), jnp.arange(BATCH)) if config.dropout_rate else None
    x, rest = inputs[0], (first_of(params), {}, inputs[1], keys)
    cotangent = jax.random.normal(jax.random.key(3), x.shape)

    @jax.jit
    def both_ways(x):
        y, kept = sharded._block_forward(config, x, *rest)
        in_two = y, sharded._block_backward(config, cotangent, kept, *rest)
        run = lambda x, p: encoder_block(p, config, x, inputs[1], keys)  # noqa: E731
        y, pull_back = jax.vjp(run, x, rest[0])
        return in_two, (y, pull_back(cotangent))

    for got, right in zip(*map(jax.tree.leaves, both_ways(x)), strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5 * (1 + np.abs(right).max()))


def test_16_bit_products_stay_close(params, inputs):
    half = dataclasses.replace(CONFIG, compute_dtype="bfloat16")
    exact, got = (encoded(params, config, *inputs) for config in (CONFIG, half))
    assert got.dtype == jnp.float32
    error = np.abs(got - exact).max() / np.abs(exact).max()
    assert 1e-4 < error < 0.05


def products(jaxpr):
    """All matrix products of a program, also within loops and calls."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation
        for each in jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            inner = getattr(each, "jaxpr", each)
            if hasattr(inner, "eqns"):
                yield from products(inner)


def test_all_products_of_a_16_bit_step_have_16_bit_operands(params, inputs):
    half = dataclasses.replace(CONFIG, compute_dtype="bfloat16")

    def loss(params, x):
        return (encode(params, half, x, inputs[1]) ** 3).sum()

    program = jax.make_jaxpr(jax.value_and_grad(loss, (0, 1)))(params, inputs[0])
    operands = [[v.aval.dtype for v in each.invars] for each in products(program.jaxpr)]
    # Seven maps and two products of attention, each with two gradients.
    assert len(operands) >= 27
    assert all(dtype == jnp.bfloat16 for each in operands for dtype in each)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"key_value_heads": 3}, "model.key_value_heads"),
        ({"head_size": 5}, "model.head_size"),
        ({"norm": "post"}, "model.norm"),
        ({"rotary_base": 0.5}, "model.rotary_base"),
        ({"attention": "cudnn", "compute_dtype": "bfloat16"}, "model.attention"),
    ],
)
def test_wrong_sizes_are_named(changes, key):
    with pytest.raises(InputError) as caught:
        dataclasses.replace(CONFIG, **changes)
    assert caught.value.key == key
