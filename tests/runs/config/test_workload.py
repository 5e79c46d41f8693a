"""Work and sizes by hand, and the literature's figures for known models."""

import pytest

from collapipe_jax.learning.models.config import EncoderConfig, encoder_sizes
from collapipe_jax.learning.models.counts import (
    activation_bytes,
    block_flops,
    block_parameters,
    decoder_flops,
    embedding_flops,
    embedding_parameters,
)
from collapipe_jax.learning.tasks.registry import TASKS
from collapipe_jax.runs.config.system import encoder_workload

SIZES = {
    "vocabulary_size": 1000,
    "width": 48,
    "heads": 4,
    "feed_forward_width": 160,
    "encoder_blocks": 5,
    "decoder_blocks": 2,
    "source_length": 20,
    "target_length": 14,
    "rematerialise": False,
    "adapter_rank": 0,
    "adapter_alpha": 8.0,
    "adapter_freezes_a": False,
    "base_dtype": "float32",
    "adapter_targets": ("value", "outer"),
    "batch": 24,
    "local_steps": 3,
    "micro_batch_choices": (2, 4),
    "activation_number_bits": 16,
    "parameter_number_bits": 32,
    "token_bits": 15,
    "state_bytes_per_parameter": 16,
}
ENDS = ("vocabulary_size", "decoder_blocks", "source_length", "target_length")


def translator_workload(**changes):
    sizes = SIZES | changes
    ends = TASKS["translation"].count_work({"task": sizes, "model": sizes})
    own = encoder_sizes(sizes)
    read = (*ENDS, *own, *(name for name in sizes if name.startswith(("adapter_", "base_"))))
    shared = {name: size for name, size in sizes.items() if name not in read}
    return encoder_workload(EncoderConfig(**own), **shared, **ends._asdict())


@pytest.mark.parametrize(("s", "h"), [(128, 768), (37, 96)])
def test_a_block_with_a_fourfold_feed_forward(s, h):
    assert block_flops(s, h, 4 * h) == 24 * s * h**2 + 4 * s**2 * h
    assert block_parameters(h, 4 * h) == 12 * h**2 + 13 * h


def test_a_block_operation_by_operation():
    s, h, f, heads = 20, 48, 160, 4
    multiply_adds = 4 * s * h * h  # query, key, value, output
    multiply_adds += heads * 2 * s * s * (h // heads)  # scores, and their mean of values
    multiply_adds += 2 * s * h * f
    assert block_flops(s, h, f) == 2 * multiply_adds
    weights = 4 * (h * h + h) + (h * f + f) + (f * h + h) + 2 * (2 * h)
    assert block_parameters(h, f) == weights


@pytest.mark.parametrize("number_bytes", [2, 4])
def test_activations_of_korthikanti(number_bytes):
    s, h, a = 128, 768, 12
    got = activation_bytes(
        sequence=s,
        width=h,
        feed_forward_width=4 * h,
        heads=a,
        number_bytes=number_bytes,
        dropout=True,
        attention_dropout=True,
    )
    linear, square = {2: (34, 5), 4: (66, 9)}[number_bytes]
    assert got == pytest.approx(s * h * (linear + square * a * s / h))


def test_without_dropout_no_masks_are_kept():
    sizes = {"sequence": 8, "width": 16, "feed_forward_width": 24, "heads": 2, "number_bytes": 2}
    with_masks = activation_bytes(dropout=True, attention_dropout=False, **sizes)
    with_weights = activation_bytes(dropout=False, attention_dropout=True, **sizes)
    without = activation_bytes(dropout=False, attention_dropout=False, **sizes)
    assert without == 2 * (8 * (8 * 16 + 2 * 24) + 2 * 8**2)
    assert with_masks - without == 2 * 8 * 16
    assert with_weights - without == (1 + 2) * 2 * 8**2


def test_a_bert_base_block():
    s, h, b = 128, 768, 8
    assert 3 * b * block_flops(s, h, 4 * h) == pytest.approx(44.7e9, rel=2e-3)
    sizes = {"sequence": s, "width": h, "feed_forward_width": 4 * h, "heads": 12}
    kept = activation_bytes(number_bytes=2, dropout=True, attention_dropout=True, **sizes)
    assert b * kept == pytest.approx(34.6e6, rel=1e-3)
    assert 32 * block_parameters(h, 4 * h) == pytest.approx(227e6, rel=2e-3)
    assert 32 * b * s * h == pytest.approx(25e6, rel=1e-2)


def test_the_decoder_product_by_product():
    s, t, h, f, blocks, vocabulary = 20, 14, 48, 160, 2, 1000
    own = 4 * t * h * h + 2 * t * t * h + 2 * t * h * f
    cross = 2 * t * h * h + 2 * s * h * h + 2 * t * s * h  # q, o over t; k, v over s
    forward = 2 * (blocks * (own + cross) + t * h * vocabulary)
    got = decoder_flops(
        source_length=s,
        target_length=t,
        width=h,
        feed_forward_width=f,
        blocks=blocks,
        vocabulary_size=vocabulary,
    )
    assert got == 3 * forward


def test_the_workload_puts_every_size_in_its_place():
    work = translator_workload()
    parameters = block_parameters(48, 160)
    kept = 4 * (20 * (8 * 48 + 2 * 160) + 4 * 20**2)
    assert work.blocks == 5
    assert (work.batch, work.local_steps, work.micro_batch_choices) == (24, 3, (2, 4))
    assert work.block_flops == block_flops(20, 48, 160)
    assert work.embed_flops == embedding_flops(20, 48) == 2 * 20 * 48
    assert work.activation_bits == 16 * 20 * 48
    assert work.target_bits == 15 * 14
    assert work.block_param_bits == 32 * parameters
    assert work.embedding_param_bits == 32 * embedding_parameters(1000, 48) == 32 * 48000
    assert work.block_static_bytes == 16 * parameters
    assert (work.block_kept_bytes, work.block_working_bytes) == (kept, 0)
    assert work.backward_ratio == 2
    assert work.decoder_flops == decoder_flops(
        source_length=20,
        target_length=14,
        width=48,
        feed_forward_width=160,
        blocks=2,
        vocabulary_size=1000,
    )


def test_adapters_alone_travel_and_have_gradients():
    work, plain = translator_workload(adapter_rank=4), translator_workload()
    own = 4 * (48 + 48) + 4 * (160 + 48)
    maps = 2 * 20 * (4 * 48**2 + 2 * 48 * 160)
    assert work.block_param_bits == 32 * own
    assert (work.embedding_param_bits, work.model_bits) == (0, 5 * 32 * own)
    assert work.block_static_bytes == 4 * block_parameters(48, 160) + 16 * own
    assert work.ends.embedding_static_bytes == 4 * embedding_parameters(1000, 48)
    assert work.ends.decoder_static_bytes == plain.ends.decoder_static_bytes
    assert work.ends.decoder_param_bits == plain.ends.decoder_param_bits
    narrow = translator_workload(adapter_rank=4, base_dtype="bfloat16")
    assert narrow.block_static_bytes == 2 * block_parameters(48, 160) + 16 * own
    assert work.block_flops == plain.block_flops + 2 * 20 * own
    assert work.block_flops * (2 - work.backward_ratio) == pytest.approx(maps)
    # Inputs of the maps `out` and `inner` are read by no adapter.
    assert work.block_kept_bytes == plain.block_kept_bytes - 4 * 20 * (2 * 48 - 2 * 4)


def test_rematerialisation_keeps_the_input_and_pays_a_forward_pass():
    """The block's last product is not computed again; one block has activations and gradients."""
    plain = translator_workload()
    work = translator_workload(rematerialise=True)
    last = 2 * 20 * 48 * 160
    assert work.block_flops * (3 - work.backward_ratio) == pytest.approx(last, rel=1e-5)
    assert work.block_kept_bytes == 4 * 20 * 48
    assert work.block_working_bytes == 2 * plain.block_kept_bytes
