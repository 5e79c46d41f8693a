import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.leaves_close import assert_close

from collapipe_jax.core.compilation import WITHOUT_FUSION_EMITTERS
from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.block import init_encoder
from collapipe_jax.learning.models.config import BertConfig, TransformerConfig
from collapipe_jax.learning.models.layers import example_keys
from collapipe_jax.learning.pipeline.execution import Execution, encode_clusters

SIZES = {"width": 8, "heads": 2, "feed_forward_width": 16, "encoder_blocks": 3, "dropout_rate": 0.2}
TRANSFORMER = TransformerConfig(
    vocabulary_size=11, decoder_blocks=1, source_length=5, target_length=4, **SIZES
)
BERT = BertConfig(vocabulary_size=11, **SIZES)
CONFIGS = {
    "transformer": TRANSFORMER,
    "bert": BERT,
    "bfloat16": TransformerConfig(
        vocabulary_size=11,
        decoder_blocks=1,
        source_length=5,
        target_length=4,
        compute_dtype="bfloat16",
        **SIZES,
    ),
}
DEVICES, BATCH, LENGTH = 3, 4, 5
KEYS = example_keys(jax.random.key(5), jnp.arange(BATCH))[None]
QUICK = {"xla_backend_optimization_level": 0, **WITHOUT_FUSION_EMITTERS}
PARTITIONS = [p for p in itertools.product(range(4), repeat=DEVICES) if sum(p) == 3]


@functools.cache
def problem(name):
    draw = jax.jit(lambda key: init_encoder(key, CONFIGS[name]), compiler_options=QUICK)
    return jax.tree.map(lambda leaf: leaf[None], draw(jax.random.key(0)))


@functools.partial(
    jax.jit, static_argnames=("name", "backend", "micro_batches"), compiler_options=QUICK
)
def value_and_gradient(params, x, mask, weights, segments, name, backend, micro_batches=1):
    """Of a loss that weighs examples and entries differently."""

    def loss(params, x):
        execution = Execution(backend, micro_batches)
        y = encode_clusters(params, CONFIGS[name], x, mask, segments, KEYS, execution)
        return (weights * jnp.sin(3.0 * y).sum((2, 3))).sum(), y

    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, x)


@st.composite
def batches(draw):
    """Activations, a padding mask, weights of examples (erased ones 0), and a partition."""
    seed = draw(st.integers(0, 2**31 - 1))
    lengths = draw(st.lists(st.integers(1, LENGTH), min_size=BATCH, max_size=BATCH))
    erased = draw(st.lists(st.sampled_from([0.0, 1.0, 1.5]), min_size=BATCH, max_size=BATCH))
    x = jax.random.normal(jax.random.key(seed), (1, BATCH, LENGTH, 8))
    mask = jnp.arange(LENGTH)[None, None] < jnp.array(lengths)[None, :, None]
    return x, mask, jnp.array([erased]), jnp.array([draw(st.sampled_from(PARTITIONS))])


def assert_backends_agree(name, batch, cases):
    *inputs, segments = batch
    params = problem(name)
    expected, gradient = value_and_gradient(params, *inputs, None, name, "sequential")
    for backend, micro_batches in cases:
        rest = segments, name, backend, micro_batches
        got, got_gradient = value_and_gradient(params, *inputs, *rest)
        assert_close(got, expected, 1e-5)
        assert_close(got_gradient, gradient, 1e-5)


@settings(max_examples=10)
@given(batches())
def test_backends_give_the_same_values_and_gradients(batch):
    """NaN in every bubble, dropout, padding, erased examples, idle devices; M below K or above."""
    assert_backends_agree("bert", batch, [("vmapped", 2), ("sharded", 4)])


@pytest.mark.slow
@settings(max_examples=10)
@given(batches())
def test_backends_agree_on_the_other_numbers_of_micro_batches(batch):
    assert_backends_agree("bert", batch, [("vmapped", 4), ("sharded", 2)])


@pytest.mark.slow
@settings(max_examples=10)
@given(batches(), st.sampled_from([1, 2, 4]))
def test_backends_agree_on_pre_norm_blocks_and_one_micro_batch(batch, micro_batches):
    cases = [("vmapped", micro_batches), ("sharded", micro_batches)]
    assert_backends_agree("transformer", batch, cases)


@pytest.mark.slow
@settings(max_examples=5)
@given(batches(), st.sampled_from([1, 2, 4]))
def test_backends_agree_in_16_bits_up_to_the_order_of_sums(batch, micro_batches):
    *inputs, segments = batch
    params = problem("bfloat16")
    expected, gradient = value_and_gradient(params, *inputs, None, "bfloat16", "sequential")
    for backend in ("vmapped", "sharded"):
        rest = segments, "bfloat16", backend, micro_batches
        got, got_gradient = value_and_gradient(params, *inputs, *rest)
        assert got[1].dtype == jnp.float32
        np.testing.assert_allclose(got[1], expected[1], rtol=0.0, atol=2e-2)
        assert_close(got_gradient, gradient, 3e-2)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["vmapped", "sharded"])
def test_devices_with_room_for_fewer_blocks_give_the_same(backend):
    x = jax.random.normal(jax.random.key(3), (1, BATCH, LENGTH, 8))
    rest = x, jnp.ones(x.shape[:3], bool), jnp.array([[2, 0, 1]]), KEYS

    @functools.partial(jax.jit, compiler_options=QUICK)
    def in_rooms(params, *rest):
        """With room for all blocks, for as many as are needed, and for more."""
        executions = (Execution(backend, 2, capacity) for capacity in (0, 2, 9))
        return [encode_clusters(params, CONFIGS["bert"], *rest, each) for each in executions]

    results = in_rooms(problem("bert"), *rest)
    for got in results[1:]:
        assert_close(got, results[0], 1e-5)
    with pytest.raises(InputError, match="capacity of 1"):
        encode_clusters(problem("bert"), CONFIGS["bert"], *rest, Execution(backend, 2, 1))


def test_wrong_calls_are_named():
    config, params = CONFIGS["bert"], problem("bert")
    x, mask, sizes = jnp.ones((1, 4, 2, 8)), jnp.ones((1, 4, 2), bool), jnp.array([[1, 1, 1]])
    for key, segments, execution in (
        ("pipeline.backend", sizes, Execution("quantum")),
        ("segments", None, Execution("vmapped")),
        ("micro_batches", sizes, Execution("vmapped", 3)),
        ("mesh", sizes[:, :0], Execution("sharded")),
    ):
        with pytest.raises(InputError) as caught:
            encode_clusters(params, config, x, mask, segments, execution=execution)
        assert caught.value.key == key
