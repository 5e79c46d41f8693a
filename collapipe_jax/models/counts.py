"""Operations, parameters and kept activations of a model's parts, counted from its sizes."""

from typing import NamedTuple

from collapipe_jax.models.config import CausalConfig, EncoderConfig

NUMBER_BYTES = 4
"""Devices compute in single precision."""


class BlockCounts(NamedTuple):
    """What one block asks of a device."""

    parameters: int
    flops: float  # forward pass on one sequence
    kept_bytes: float  # of one sequence, for the backward pass


def block_counts(sizes: EncoderConfig, sequence: int) -> BlockCounts:
    """Counts of the kind of block that these sizes are of, on sequences of so many tokens."""
    width, inner, heads = sizes.width, sizes.feed_forward_width, sizes.heads
    drops = sizes.dropout_rate > 0.0, sizes.attention_rate > 0.0
    if isinstance(sizes, CausalConfig):
        kept = NUMBER_BYTES * causal_block_numbers(sizes, sequence)
        kept += dropout_bytes(sequence, width, heads, NUMBER_BYTES, *drops)
        flops = causal_block_flops(sizes, sequence)
        return BlockCounts(causal_block_parameters(sizes), flops, float(kept))
    kept = activation_bytes(sequence, width, inner, heads, NUMBER_BYTES, *drops)
    flops = block_flops(sequence, width, inner)
    return BlockCounts(block_parameters(width, inner), flops, kept)


def activation_bytes(
    sequence: int,
    width: int,
    feed_forward_width: int,
    heads: int,
    number_bytes: int,
    dropout: bool,
    attention_dropout: bool,
) -> float:
    """Bytes that an encoder block keeps of one sequence for its backward pass.

    Source: Korthikanti et al., arXiv:2205.05198, eq. 1, split into numbers of
    ``number_bytes`` and dropout masks of one byte: 16-bit numbers, dropout and
    ``d_ff = 4 h`` give their ``s h (34 + 5 a s / h)``.
    """
    numbers = sequence * (8 * width + 2 * feed_forward_width) + heads * sequence**2
    kept = number_bytes * numbers
    kept += dropout_bytes(sequence, width, heads, number_bytes, dropout, attention_dropout)
    return float(kept)


def dropout_bytes(
    sequence: int,
    width: int,
    heads: int,
    number_bytes: int,
    dropout: bool,
    attention_dropout: bool,
) -> int:
    """Bytes that dropout adds to them, as in ``activation_bytes``."""
    kept = 0
    if dropout:  # two masks of a layer
        kept += 2 * sequence * width
    if attention_dropout:  # mask and dropped copy of the weights
        kept += (1 + number_bytes) * heads * sequence**2
    return kept


def causal_block_parameters(sizes: CausalConfig) -> int:
    """Parameters of a decoder-only block: attention, gated feed-forward, the scales of two norms.

    With g of a heads for keys and values: ``2 h d (a + g) + 3 h d_ff + 2 h``, and
    ``d (a + 2 g)`` biases where it has some.
    """
    shared = sizes.key_value_heads * sizes.head_size
    attention = 2 * sizes.width * (sizes.heads_width + shared)
    biases = sizes.heads_width + 2 * shared if sizes.query_bias else 0
    return attention + biases + 3 * sizes.width * sizes.feed_forward_width + 2 * sizes.width


def causal_block_flops(sizes: CausalConfig, sequence: int) -> float:
    """Forward FLOPs of a decoder-only block on one sequence, the matrix products alone.

    Source: docs/system-model.md, section 3: ``2 s (2 h d (a + g) + 3 h d_ff) + 4 s^2 a d``.
    Scores of later tokens are computed too, and then blocked.
    """
    shared = sizes.key_value_heads * sizes.head_size
    projections = 2 * sizes.width * (sizes.heads_width + shared)
    feed_forward = 3 * sizes.width * sizes.feed_forward_width
    products = 4 * sequence**2 * sizes.heads_width
    return float(2 * sequence * (projections + feed_forward) + products)


def causal_block_numbers(sizes: CausalConfig, sequence: int) -> int:
    """Numbers that a decoder-only block keeps of one sequence, as ``pipeline/passes.py`` has it.

    Of every token its input and what attention adds, queries, keys, values and what they read,
    and both inner products; and the scores of attention. Norms, rotations and the gate's product
    are computed again.
    """
    shared = sizes.key_value_heads * sizes.head_size
    wide = 2 * sizes.width + 2 * sizes.heads_width + 2 * shared + 2 * sizes.feed_forward_width
    return sequence * wide + sizes.heads * sequence**2


def block_flops(sequence: int, width: int, feed_forward_width: int) -> float:
    """Forward FLOPs of an encoder block on one sequence.

    Source: docs/system-model.md, section 3: ``2 s (4 h^2 + 2 h d_ff) + 4 s^2 h``, the
    matrix products alone; norms, softmax and activation functions add under 5 % from a
    width of 256 on.
    """
    projections = 2 * sequence * (4 * width**2 + 2 * width * feed_forward_width)
    return float(projections + 4 * sequence**2 * width)


def block_parameters(width: int, feed_forward_width: int) -> int:
    """Parameters of an encoder block: attention, feed-forward and two norms, with biases."""
    attention = 4 * width**2 + 4 * width
    feed_forward = 2 * width * feed_forward_width + feed_forward_width + width
    return attention + feed_forward + 4 * width


def embedding_parameters(vocabulary_size: int, width: int) -> int:
    """Parameters of the token embedding; positions are sinusoids and cost none."""
    return vocabulary_size * width


def bert_embedding_parameters(vocabulary_size: int, positions: int, width: int) -> int:
    """Parameters of BERT's tables, where all texts are of one type, and of their norm."""
    return (vocabulary_size + positions + 1) * width + 2 * width


def decoder_parameters(
    vocabulary_size: int, width: int, feed_forward_width: int, blocks: int
) -> int:
    """Parameters of the Transformer's decoder: table, norm of the encoded, blocks, last norm.

    A decoder block is an encoder block with a second attention and its norm.
    """
    block = block_parameters(width, feed_forward_width) + 4 * width**2 + 6 * width
    return vocabulary_size * width + blocks * block + 4 * width


def head_parameters(width: int, labels: int, pools: bool) -> int:
    """Parameters of a BERT head, and of the pooler where it labels the pooled text."""
    pooler = width**2 + width if pools else 0
    return pooler + width * labels + labels


def embedding_flops(sequence: int, width: int) -> float:
    """Forward FLOPs of the embedding on one sequence: scale a row, add a position."""
    return float(2 * sequence * width)


def decoder_flops(
    *,
    source_length: int,
    target_length: int,
    width: int,
    feed_forward_width: int,
    blocks: int,
    vocabulary_size: int,
    rematerialise: bool = False,
) -> float:
    """FLOPs of the decoder on one sample, forward and backward together.

    A decoder block is an encoder block over the target with, besides, attention to the
    source: two projections over each sequence and two products between them. The
    projection to the vocabulary follows. Backward counts twice forward, and three times
    where blocks are recomputed.
    """
    source, target = source_length, target_length
    cross = 4 * (target + source) * width**2 + 4 * source * target * width
    block = block_flops(target, width, feed_forward_width) + cross
    passes = 4.0 if rematerialise else 3.0
    return passes * blocks * block + 3.0 * 2 * target * width * vocabulary_size
