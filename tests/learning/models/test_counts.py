"""Counts against the models that are trained: parameters and FLOPs."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest
from support.drawn_parameters import drawn

from collapipe_jax.learning.models import counts
from collapipe_jax.learning.models.adapters import add_adapters, join, split
from collapipe_jax.learning.models.bert import BertWithHead, MaskedBert
from collapipe_jax.learning.models.block import encoder_block, init_encoder
from collapipe_jax.learning.models.causal_lm import CausalLM
from collapipe_jax.learning.models.config import (
    LINEAR_LAYERS,
    AdapterConfig,
    BertConfig,
    CausalConfig,
    EncoderConfig,
    TransformerConfig,
)
from collapipe_jax.learning.models.transformer import (
    TranslationBatch,
    Translator,
    init_params,
)
from collapipe_jax.learning.tasks.registry import TASKS

BATCH = 4
ENCODER = {"width": 32, "heads": 4, "feed_forward_width": 80, "encoder_blocks": 1}


def make_config(width: int, feed_forward_width: int, **changes) -> TransformerConfig:
    sizes = {
        "vocabulary_size": 512,
        "width": width,
        "heads": 4,
        "feed_forward_width": feed_forward_width,
        "encoder_blocks": 3,
        "decoder_blocks": 2,
        "source_length": 64,
        "target_length": 48,
    }
    return TransformerConfig(**(sizes | changes))


def flops_of(function, *arguments) -> float:
    """FLOPs that XLA counts in a compiled function."""
    return jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"]


def shapes_of(init, *static):
    """Shapes of fresh parameters."""
    return jax.eval_shape(lambda key: init(key, *static), jax.random.key(0))


def numbers(shapes):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def block_shapes(config):
    """Shapes of the parameters of one encoder block."""

    def one(key):
        return jax.tree.map(lambda leaf: leaf[0], init_encoder(key, config))

    return shapes_of(one)


@pytest.mark.parametrize(("width", "feed_forward_width"), [(32, 128), (48, 80)])
def test_parameters_are_those_of_the_model(width, feed_forward_width):
    config = make_config(width, feed_forward_width)
    params, block = shapes_of(init_params, config), block_shapes(config)
    assert numbers(block) == counts.block_parameters(width, feed_forward_width)
    assert numbers(params["encoder"]) == 3 * numbers(block)
    assert numbers(params["embedding"]) == counts.embedding_parameters(512, width)
    decoder = counts.decoder_parameters(512, width, feed_forward_width, config.decoder_blocks)
    assert numbers(params["decoder"]) == decoder


@pytest.mark.parametrize("pools", [False, True])
def test_parameters_are_those_of_bert(pools):
    sizes = BertConfig(**ENCODER, vocabulary_size=99, positions=20, token_types=1)
    params = shapes_of(BertWithHead(sizes=sizes, labels=7, pools=pools).init)
    assert numbers(params["embedding"]) == counts.bert_embedding_parameters(99, 20, 32)
    assert numbers(params["decoder"]) == counts.head_parameters(32, 7, pools)


def test_parameters_are_those_of_n_grams_and_further_heads():
    sizes = BertConfig(**ENCODER, vocabulary_size=99, positions=20, token_types=1, ngram_buckets=50)
    tagger = BertWithHead(sizes=sizes, labels=7, pools=False, head="crf")
    for model, head in (
        (tagger, counts.head_parameters(32, 7, False, crf=True)),
        (MaskedBert(sizes=sizes), counts.masked_lm_parameters(99, 32)),
    ):
        params = shapes_of(model.init)
        assert numbers(params["embedding"]) == counts.bert_embedding_parameters(99, 20, 32, 50)
        assert numbers(params["decoder"]) == head


@pytest.mark.parametrize(
    ("width", "feed_forward_width", "sequence"),
    [(256, 1024, 128), pytest.param(384, 768, 64, marks=pytest.mark.slow)],
)
def test_block_flops_are_those_that_xla_counts(width, feed_forward_width, sequence):
    config = make_config(width, feed_forward_width, encoder_blocks=1, source_length=sequence)
    params = block_shapes(config)
    x = jnp.ones((BATCH, sequence, width))
    mask = jnp.ones((BATCH, sequence), bool)

    def forward(params, x):
        return encoder_block(params, config, x, mask)

    def forward_and_backward(params, x, cotangent):
        y, pull_back = jax.vjp(forward, params, x)
        return y, pull_back(cotangent)

    counted = flops_of(forward, params, x) / BATCH
    both = flops_of(forward_and_backward, params, x, x) / BATCH
    stated = counts.block_flops(sequence, width, feed_forward_width)
    assert counted == pytest.approx(stated, rel=0.05)
    assert both - counted == pytest.approx(2.0 * stated, rel=0.05)


@pytest.mark.parametrize(
    ("targets", "freezes_a"),
    [
        pytest.param(("query", "value"), False, marks=pytest.mark.slow),
        pytest.param(LINEAR_LAYERS, False, marks=pytest.mark.slow),
        (LINEAR_LAYERS, True),
    ],
)
def test_work_of_a_block_with_adapters_is_what_xla_counts(targets, freezes_a):
    width, inner, sequence = 256, 512, 64
    adapters = AdapterConfig(rank=16, alpha=16.0, targets=targets, freezes_a=freezes_a)
    config = make_config(width, inner, encoder_blocks=1, adapters=adapters)

    def parts(key):
        whole = {"embedding": {}, "encoder": init_encoder(key, config)}
        return [part["encoder"] for part in split(add_adapters(key, whole, adapters), adapters)]

    trained, base = jax.tree.map(lambda leaf: leaf[0], drawn(parts))
    x, mask = jnp.ones((BATCH, sequence, width)), jnp.ones((BATCH, sequence), bool)

    def forward(trained, x):
        return encoder_block(join(trained, base), config, x, mask)

    def forward_and_backward(trained, x, cotangent):
        y, pull_back = jax.vjp(forward, trained, x)
        return y, pull_back(cotangent)

    counted = flops_of(forward, trained, x) / BATCH
    both = flops_of(forward_and_backward, trained, x, x) / BATCH
    stated = counts.block_counts(config, sequence)
    assert counted == pytest.approx(stated.flops, rel=0.05)
    assert both - counted == pytest.approx(stated.backward_flops, rel=0.05)
    assert numbers(trained) == stated.trained


@pytest.mark.parametrize("norm", ["pre", pytest.param("post", marks=pytest.mark.slow)])
def test_a_rematerialised_block_runs_forward_twice(norm):
    """The backward pass of a block that kept its input alone: 3 forward passes instead of 2.

    XLA leaves out the last product of the repeated one, unless a norm reads its result.
    """
    width, inner, sequence = 256, 1024, 128
    config = EncoderConfig(
        width=width, heads=4, feed_forward_width=inner, encoder_blocks=1, norm=norm
    )
    params = block_shapes(config)
    x, mask = jnp.ones((BATCH, sequence, width)), jnp.ones((BATCH, sequence), bool)

    def forward(params, x):
        return encoder_block(params, config, x, mask)

    def backward(params, x, cotangent):
        return jax.vjp(forward, params, x)[1](cotangent)

    once, again = counts.block_flops(sequence, width, inner), counts.recomputed_flops
    stated = 2.0 * once + again(config, sequence)
    assert flops_of(backward, params, x, x) / BATCH == pytest.approx(stated, rel=0.03)
    left_out = 2 * sequence * width * inner
    assert 3.0 * once - stated == (left_out if norm == "pre" else 0)


@pytest.mark.parametrize(
    ("rematerialise", "blocks"), [pytest.param(False, 2, marks=pytest.mark.slow), (True, 1)]
)
def test_decoder_flops_are_those_that_xla_counts(rematerialise, blocks):
    # As many blocks as are unrolled, since XLA counts the body of a loop once.
    changes = {"rematerialise": rematerialise, "decoder_blocks": blocks}
    config = make_config(256, 1024, vocabulary_size=2000, **changes)
    params = shapes_of(init_params, config)["decoder"]
    memory = jnp.ones((BATCH, config.source_length, config.width))
    batch = TranslationBatch(
        jnp.ones((BATCH, config.source_length), jnp.int32),
        jnp.ones((BATCH, config.target_length + 1), jnp.int32),
    )

    def loss(params, memory):
        return Translator(config).losses(params, memory, batch, None)[0].sum()

    counted = flops_of(jax.value_and_grad(loss, argnums=(0, 1)), params, memory) / BATCH
    stated = counts.decoder_flops(
        source_length=config.source_length,
        target_length=config.target_length,
        width=config.width,
        feed_forward_width=config.feed_forward_width,
        blocks=config.decoder_blocks,
        vocabulary_size=config.vocabulary_size,
        rematerialise=rematerialise,
    )
    assert counted == pytest.approx(stated, rel=0.05)


CAUSAL = CausalConfig(
    vocabulary_size=99,
    positions=128,
    width=256,
    heads=8,
    key_value_heads=4,
    head_size=40,
    feed_forward_width=700,
    encoder_blocks=1,
    query_bias=True,
)


def test_parameters_are_those_of_the_causal_block():
    for config in (CAUSAL, dataclasses.replace(CAUSAL, query_bias=False, key_value_heads=8)):
        shapes = shapes_of(CausalLM(sizes=config).init)
        assert numbers(shapes["encoder"]) == counts.gated_block_parameters(config)
        work = TASKS["causal_lm"].count_work(
            {"task": {"vocabulary_size": 99, "source_length": 128}, "model": {"width": 256}}
        )
        assert numbers(shapes["embedding"]) == work.embedding_parameters
        assert numbers(shapes["decoder"]) == work.decoder_parameters


def test_gated_block_flops_are_those_that_xla_counts():
    params = block_shapes(CAUSAL)
    x, mask = jnp.ones((BATCH, 128, 256)), jnp.ones((BATCH, 128), bool)

    def forward(params, x):
        return encoder_block(params, CAUSAL, x, mask)

    def both(params, x, cotangent):
        y, pull_back = jax.vjp(forward, params, x)
        return y, pull_back(cotangent)

    counted, stated = flops_of(forward, params, x) / BATCH, counts.gated_block_flops(CAUSAL, 128)
    assert counted == pytest.approx(stated, rel=0.05)
    assert flops_of(both, params, x, x) / BATCH - counted == pytest.approx(2 * stated, rel=0.05)
