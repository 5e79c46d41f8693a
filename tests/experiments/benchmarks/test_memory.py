"""Memory of a device as the compiler lays it out, against docs/system-model.md (15)."""

import functools

import pytest

from collapipe_jax.learning.models.config import CausalConfig, EncoderConfig
from collapipe_jax.learning.models.counts import block_parameters
from experiments.benchmarks.memory import ADAPTERS, STATE_BYTES, formula_bytes
from experiments.benchmarks.pipeline import Shape, device_bytes

WIDTH, HEADS, INNER = 128, 4, 512
SHAPE = Shape(stages=4, batch=32, micro_batches=8, sequence=64)


def encoder(capacity, rematerialise=False, adapters=None):
    """Sizes where every device holds so many blocks."""
    return EncoderConfig(
        width=WIDTH,
        heads=HEADS,
        feed_forward_width=INNER,
        encoder_blocks=SHAPE.stages * capacity,
        rematerialise=rematerialise,
        adapters=adapters,
    )


@functools.cache
def measured(capacity, schedule="gpipe", rematerialise=False, adapters=None):
    """Bytes of a device that holds so many blocks, for a step with Adam."""
    return device_bytes(encoder(capacity, rematerialise, adapters), SHAPE, schedule)


def stated(capacity, schedule="gpipe", rematerialise=False, adapters=None):
    """Bytes of the same by formula (15)."""
    return formula_bytes(encoder(capacity, rematerialise, adapters), SHAPE, schedule)


@pytest.mark.slow
def test_totals_are_those_of_the_formula():
    """Four capacities; what does not grow with the blocks weighs little from two on.

    That rest, under 10 MB here, is the batch, its gradient and the stage's output, whole
    on every device, and the work in progress on one block.
    """
    for capacity in (2, 4, 6, 8):
        assert measured(capacity) == pytest.approx(stated(capacity), rel=0.15)


@pytest.mark.parametrize(
    ("schedule", "rematerialise", "adapters"),
    [
        pytest.param("1f1b", False, None, marks=pytest.mark.slow),
        pytest.param("gpipe", True, None, marks=pytest.mark.slow),
        pytest.param("1f1b", False, ADAPTERS[0], marks=pytest.mark.slow),
        pytest.param("gpipe", False, None, marks=pytest.mark.slow),
        pytest.param("1f1b", True, None, marks=pytest.mark.slow),
        pytest.param("gpipe", False, ADAPTERS[0], marks=pytest.mark.slow),
        pytest.param("gpipe", True, ADAPTERS[0], marks=pytest.mark.slow),
        pytest.param("gpipe", False, ADAPTERS[1], marks=pytest.mark.slow),
    ],
)
def test_a_block_more_costs_what_the_formula_says(schedule, rematerialise, adapters):
    """Increments know nothing of the rest: M micro-batches for GPipe, min(M, S) for 1F1B."""
    way = schedule, rematerialise, adapters
    grown = measured(4, *way) - measured(2, *way)
    assert grown == pytest.approx(stated(4, *way) - stated(2, *way), rel=0.15)


@pytest.mark.slow
def test_a_block_keeps_its_input_its_products_and_its_transcendentals():
    """To the byte: input, query, key, value, mixed, out; inner and tanh; exponentials."""
    tokens, samples = SHAPE.sequence, SHAPE.batch
    numbers = tokens * (6 * WIDTH + 2 * INNER) + HEADS * tokens**2
    block = STATE_BYTES * block_parameters(WIDTH, INNER) + samples * 4 * numbers
    assert measured(8) - measured(4) == pytest.approx(4 * block, rel=1e-3)
    interleaved = measured(4, "1f1b") - measured(2, "1f1b")
    kept_samples = SHAPE.stages * samples // SHAPE.micro_batches
    block -= (samples - kept_samples) * 4 * numbers
    assert interleaved == pytest.approx(2 * block, rel=1e-3)


@pytest.mark.slow
def test_a_decoder_only_block_costs_what_its_formula_says():
    """It keeps just what the formula counts; GPipe keeps that of every sample."""

    def sizes(capacity):
        blocks = {"encoder_blocks": SHAPE.stages * capacity, "feed_forward_width": 344}
        heads = {"heads": HEADS, "key_value_heads": 2, "head_size": 32}
        return CausalConfig(vocabulary_size=9, positions=64, width=WIDTH, **heads, **blocks)

    few, many = (sizes(capacity) for capacity in (2, 4))
    grown = device_bytes(many, SHAPE, "gpipe") - device_bytes(few, SHAPE, "gpipe")
    stated = formula_bytes(many, SHAPE, "gpipe") - formula_bytes(few, SHAPE, "gpipe")
    assert grown == pytest.approx(stated, rel=0.01)


@pytest.mark.slow
def test_segments_and_interleaving_save_memory():
    """A device of four takes less than a third of the whole encoder, 1F1B less than GPipe."""
    whole = device_bytes(encoder(4), SHAPE._replace(stages=1), "gpipe")
    assert measured(4, "1f1b") < 0.7 * measured(4) < 0.7 * whole / 3
