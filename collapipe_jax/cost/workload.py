"""What a model asks of the network: operations, bits and bytes from its sizes."""

from flax import struct
from jax import Array

from collapipe_jax.cost.model_counts import (
    activation_bytes,
    block_flops,
    block_parameters,
)


@struct.dataclass(kw_only=True)
class ModelEnds:
    """Sizes of embedding and decoder, where devices hold them besides encoder blocks.

    Attributes:
      decoder_param_bits: ``D_dec``, parameters of the decoder on a link.
      embedding_static_bytes: ``m_emb``, weights, gradients and optimiser state.
      decoder_static_bytes: ``m_dec``, likewise.
    """

    decoder_param_bits: Array
    embedding_static_bytes: Array
    decoder_static_bytes: Array


@struct.dataclass(kw_only=True)
class Workload:
    """The work of one round, per encoder block and sample.

    Attributes:
      blocks: encoder blocks ``L`` (fixes shapes).
      batch: samples ``B`` of a cluster's mini-batch.
      local_steps: ``H``.
      micro_batch_choices: allowed numbers of micro-batches, divisors of ``B``, ``[C]``.
      block_flops: ``c_F``, forward pass of a block on a sample.
      embed_flops: forward pass of the embedding on a sample.
      decoder_flops: forward and backward pass of the decoder on a sample.
      backward_ratio: ``rho``, backward over forward.
      activation_bits: ``D_A``, activations of a sample on a link.
      target_bits: ``D_T``, targets of a sample on the uplink.
      block_param_bits: ``D_P``, parameters of a block on a link.
      embedding_param_bits: ``D_E``.
      block_static_bytes: weights, gradients and optimiser state of a block.
      block_kept_bytes: kept for the backward pass, per block and sample.
      block_working_bytes: needed once while a block is recomputed, per sample.
      ends: embedding and decoder as a data-parallel policy needs them; a network on file
        does not tell.
    """

    blocks: int = struct.field(pytree_node=False)
    batch: Array
    local_steps: Array
    micro_batch_choices: Array
    block_flops: Array
    embed_flops: Array
    decoder_flops: Array
    backward_ratio: Array
    activation_bits: Array
    target_bits: Array
    block_param_bits: Array
    embedding_param_bits: Array
    block_static_bytes: Array
    block_kept_bytes: Array
    block_working_bytes: Array
    ends: ModelEnds | None = None


def encoder_workload(
    *,
    sequence: int,
    width: int,
    heads: int,
    feed_forward_width: int,
    encoder_blocks: int,
    dropout: bool,
    rematerialise: bool,
    batch: int,
    local_steps: int,
    micro_batch_choices: Array,
    activation_number_bits: int,
    parameter_number_bits: int,
    token_bits: int,
    state_bytes_per_parameter: int,
    trained_fraction: float = 1.0,
    embedding_parameters: int,
    decoder_parameters: int,
    embed_flops: float,
    target_tokens: int,
    decoder_flops: float,
) -> Workload:
    """The workload of any model whose encoder is a stack of our blocks.

    Args:
      sequence: tokens of a sample.
      width, heads, feed_forward_width, encoder_blocks: sizes of the encoder.
      dropout: whether dropout masks are kept.
      rematerialise: recompute a block's activations in the backward pass: only its input
        is kept, and backward costs a forward pass more.
      batch, local_steps, micro_batch_choices: as in :class:`Workload`.
      activation_number_bits, parameter_number_bits: precision on the links.
      token_bits: of a target on the uplink.
      state_bytes_per_parameter: weights, gradient and optimiser state on a device, of a
        parameter that is trained.
      trained_fraction: share of the parameters that is trained, and so has a gradient and a
        state, and travels; below 1 with adapters (Hu et al. 2106.09685).
      embedding_parameters, decoder_parameters: numbers of embedding and decoder.
      embed_flops, decoder_flops: as in :class:`Workload`.
      target_tokens: targets of a sample.

    Returns:
      A :class:`Workload` of plain numbers.
    """
    number_bytes = 4  # the devices compute in single precision
    everything = activation_bytes(
        sequence=sequence,
        width=width,
        feed_forward_width=feed_forward_width,
        heads=heads,
        number_bytes=number_bytes,
        dropout=dropout,
    )
    block_input = float(number_bytes * sequence * width)
    parameters = block_parameters(width, feed_forward_width)

    def param_bits(parameters):
        return float(parameter_number_bits * trained_fraction * parameters)

    def static_bytes(parameters):
        training = trained_fraction * (state_bytes_per_parameter - number_bytes)
        return float((number_bytes + training) * parameters)

    return Workload(
        blocks=encoder_blocks,
        batch=batch,
        local_steps=local_steps,
        micro_batch_choices=micro_batch_choices,
        block_flops=block_flops(sequence, width, feed_forward_width),
        embed_flops=embed_flops,
        decoder_flops=decoder_flops,
        backward_ratio=3.0 if rematerialise else 2.0,
        activation_bits=float(activation_number_bits * sequence * width),
        target_bits=float(token_bits * target_tokens),
        block_param_bits=param_bits(parameters),
        embedding_param_bits=param_bits(embedding_parameters),
        block_static_bytes=static_bytes(parameters),
        block_kept_bytes=block_input if rematerialise else everything,
        block_working_bytes=everything if rematerialise else 0.0,
        ends=ModelEnds(
            decoder_param_bits=param_bits(decoder_parameters),
            embedding_static_bytes=static_bytes(embedding_parameters),
            decoder_static_bytes=static_bytes(decoder_parameters),
        ),
    )
