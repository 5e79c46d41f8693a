"""Operations and parameters of a model's parts, counted from its sizes."""

from collapipe_jax.models.config import AdapterConfig


def block_flops(sequence: int, width: int, feed_forward_width: int) -> float:
    """Forward FLOPs of an encoder block on one sequence.

    Source: docs/system-model.md, section 3: ``2 s (4 h^2 + 2 h d_ff) + 4 s^2 h``, the
    matrix products alone; norms, softmax and activation functions add under 5 % from a
    width of 256 on.
    """
    projections = 2 * sequence * (4 * width**2 + 2 * width * feed_forward_width)
    return float(projections + 4 * sequence**2 * width)


def adapter_parameters(width: int, feed_forward_width: int, adapters: AdapterConfig) -> int:
    """Parameters of the adapters of a block: ``r (inputs + outputs)`` of every adapted map."""
    inner = width + feed_forward_width
    sides = {"inner": inner, "outer": inner}
    return adapters.rank * sum(sides.get(target, 2 * width) for target in adapters.targets)


def block_passes_flops(
    sequence: int, width: int, feed_forward_width: int, adapters: AdapterConfig | None
) -> tuple[float, float]:
    """FLOPs of a block on one sequence, forward and backward, with its adapters where it has any.

    A product of two matrices that both change takes two more backward, one for each. The
    weights of a base do not change, so its maps take one: the gradient of their input. Products
    of the attention and of adapters take two.

    Source: docs/system-model.md, section 3.
    """
    forward = block_flops(sequence, width, feed_forward_width)
    if adapters is None:
        return forward, 2.0 * forward
    maps = forward - float(4 * sequence**2 * width)
    forward += 2.0 * sequence * adapter_parameters(width, feed_forward_width, adapters)
    return forward, 2.0 * forward - maps


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
    projection to the vocabulary follows. Backward counts twice forward, and three times
    where blocks are recomputed.
    """
    source, target = source_length, target_length
    cross = 4 * (target + source) * width**2 + 4 * source * target * width
    block = block_flops(target, width, feed_forward_width) + cross
    passes = 4.0 if rematerialise else 3.0
    return passes * blocks * block + 3.0 * 2 * target * width * vocabulary_size
