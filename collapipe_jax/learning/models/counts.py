"""Operations, parameters and kept activations of a model's parts, counted from its sizes."""

from typing import NamedTuple

from collapipe_jax.learning.models.config import EncoderConfig

NUMBER_BYTES = 4
"""Devices compute in single precision."""


class BlockCounts(NamedTuple):
    """What one block asks of a device, its adapters included where it has some."""

    parameters: int
    trained: int  # of them: all, or those of the adapters
    flops: float  # forward pass on one sequence
    backward_flops: float  # of the backward pass
    kept_bytes: float  # of one sequence, for the backward pass


def block_counts(sizes: EncoderConfig, sequence: int) -> BlockCounts:
    """Counts of the kind of block that these sizes are of, on sequences of ``sequence`` tokens."""
    width, inner, heads = sizes.width, sizes.feed_forward_width, sizes.heads
    drops = sizes.dropout_rate > 0.0, sizes.attention_rate > 0.0
    if sizes.gated:
        parameters, flops = gated_block_parameters(sizes), gated_block_flops(sizes, sequence)
        kept = NUMBER_BYTES * _gated_block_numbers(sizes, sequence)
        kept += _dropout_bytes(sequence, width, heads, NUMBER_BYTES, *drops)
    else:
        parameters, flops = block_parameters(width, inner), block_flops(sequence, width, inner)
        kept = activation_bytes(sequence, width, inner, heads, NUMBER_BYTES, *drops)
    whole = BlockCounts(parameters, parameters, flops, 2.0 * flops, float(kept))
    return whole if sizes.adapters is None else _with_adapters(whole, sizes, sequence)


def _with_adapters(block: BlockCounts, sizes: EncoderConfig, sequence: int) -> BlockCounts:
    """Counts of a block whose adapters alone are trained.

    A product of two matrices that both change takes two more backward, one for each. The
    weights of a base do not change, so its maps take one: the gradient of their input. Products
    of the attention and of adapters take two. Of the inputs of maps, those that an adapter reads
    are kept, and so are the outputs of ``A``. An ``A`` that stays as it is belongs to the base.

    Source: docs/system-model.md, section 3.
    """
    adapters, maps, own = sizes.adapters, _linear_maps(sizes), _adapter_parameters(sizes)
    assert adapters is not None
    fixed = adapters.rank * sum(maps[name][0] for name in adapters.targets if adapters.freezes_a)
    readers = set() if adapters.freezes_a else set(adapters.targets)
    flops = block.flops + 2.0 * sequence * own
    frozen = 2.0 * sequence * (_weights(sizes) + fixed)
    numbers = adapters.rank * len(adapters.targets) - sum(
        maps[names[0]][0] for names in _kept_inputs(sizes) if not set(names) & readers
    )
    return BlockCounts(
        parameters=block.parameters + own,
        trained=own - fixed,
        flops=flops,
        backward_flops=2.0 * flops - frozen,
        kept_bytes=block.kept_bytes + NUMBER_BYTES * sequence * numbers,
    )


def recomputed_flops(sizes: EncoderConfig, sequence: int) -> float:
    """FLOPs of the second forward pass of a block whose activations are recomputed.

    No gradient needs the block's last product, unless a norm follows it. XLA leaves it out.
    """
    flops = block_counts(sizes, sequence).flops
    if sizes.norm == "post":
        return flops
    inputs, adapters = sizes.feed_forward_width, sizes.adapters
    if adapters is not None and "outer" in adapters.targets:
        inputs += adapters.rank
    return flops - 2.0 * sequence * inputs * sizes.width


def _linear_maps(sizes: EncoderConfig) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of every linear map of a block."""
    width, inner = sizes.width, sizes.feed_forward_width
    query, shared = sizes.heads_width, sizes.groups * sizes.head_width
    maps = {"inner": (width, inner), "outer": (inner, width)}
    if sizes.gated:
        maps |= {"gate": (width, inner)}
    maps |= {"query": (width, query), "key": (width, shared), "value": (width, shared)}
    return maps | {"out": (query, width)}


def _weights(sizes: EncoderConfig) -> int:
    """Entries of all matrices of a block."""
    return sum(inputs * outputs for inputs, outputs in _linear_maps(sizes).values())


def _kept_inputs(sizes: EncoderConfig) -> tuple[tuple[str, ...], ...]:
    """Maps that read one kept array which nothing else reads.

    A decoder-only block computes the inputs of the others again.
    """
    if sizes.gated:
        return (("out",),)
    return ("query", "key", "value"), ("out",), ("inner",)


def _adapter_parameters(sizes: EncoderConfig) -> int:
    """Parameters of the adapters of a block: ``r (inputs + outputs)`` of every adapted map."""
    adapters, maps = sizes.adapters, _linear_maps(sizes)
    return adapters.rank * sum(sum(maps[name]) for name in adapters.targets) if adapters else 0


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
    kept += _dropout_bytes(sequence, width, heads, number_bytes, dropout, attention_dropout)
    return float(kept)


def _dropout_bytes(
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


def gated_block_parameters(sizes: EncoderConfig) -> int:
    """Parameters of a decoder-only block: attention, gated feed-forward, the scales of two norms.

    With g of a heads for keys and values: ``2 h d (a + g) + 3 h d_ff + 2 h``, and where it has
    them ``d (a + 2 g)`` biases, and ``2 d`` scales of the norms of queries and keys.
    """
    maps = _linear_maps(sizes)
    biased = ("query", "key", "value") if sizes.query_bias else ()
    scales = 2 * sizes.width + (2 * sizes.head_width if sizes.query_key_norm else 0)
    return _weights(sizes) + sum(maps[name][1] for name in biased) + scales


def gated_block_flops(sizes: EncoderConfig, sequence: int) -> float:
    """Forward FLOPs of a decoder-only block on one sequence, the matrix products alone.

    Source: docs/system-model.md, section 3: ``2 s (2 h d (a + g) + 3 h d_ff) + 4 s^2 a d``.
    Scores of later tokens are computed too, and then blocked.
    """
    return float(2 * sequence * _weights(sizes) + 4 * sequence**2 * sizes.heads_width)


def _gated_block_numbers(sizes: EncoderConfig, sequence: int) -> int:
    """Numbers that a decoder-only block keeps of one sequence.

    ``learning/pipeline/sharded.py`` keeps them.
    Of every token its input and what attention adds, queries, keys, values and what they read,
    and both inner products; and the scores of attention. Norms, rotations and the gate's product
    are computed again.
    """
    shared = sizes.groups * sizes.head_width
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


def bert_embedding_parameters(
    vocabulary_size: int, positions: int, width: int, ngram_buckets: int = 0
) -> int:
    """Parameters of BERT's tables, where all texts are of one type, and of their norm."""
    return (vocabulary_size + ngram_buckets + positions + 1) * width + 2 * width


def decoder_parameters(
    vocabulary_size: int, width: int, feed_forward_width: int, blocks: int
) -> int:
    """Parameters of the Transformer's decoder: table, norm of the encoded, blocks, last norm.

    A decoder block is an encoder block with a second attention and its norm.
    """
    block = block_parameters(width, feed_forward_width) + 4 * width**2 + 6 * width
    return vocabulary_size * width + blocks * block + 4 * width


def head_parameters(width: int, labels: int, pools: bool, crf: bool = False) -> int:
    """Parameters of a BERT head, of its pooler or of its scores of pairs of tags."""
    pooler = width**2 + width if pools else 0
    return pooler + width * labels + labels + (labels**2 if crf else 0)


def masked_lm_parameters(vocabulary_size: int, width: int) -> int:
    """Parameters of BERT's head for masked pieces: map, norm and the server's own table."""
    return width**2 + 3 * width + vocabulary_size * width + vocabulary_size


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
    projection to the vocabulary follows. Backward counts twice forward. Blocks that are
    recomputed run forward once more, without their last product.
    """
    source, target = source_length, target_length
    cross = 4 * (target + source) * width**2 + 4 * source * target * width
    block = block_flops(target, width, feed_forward_width) + cross
    again = block - 2.0 * target * width * feed_forward_width if rematerialise else 0.0
    return blocks * (3.0 * block + again) + 3.0 * 2 * target * width * vocabulary_size
