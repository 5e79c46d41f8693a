"""What a model asks of the network, counted from its sizes."""

from typing import Any

from collapipe_jax.edge.cost.workload import ModelEnds, Workload
from collapipe_jax.learning.models.config import EncoderConfig
from collapipe_jax.learning.models.counts import NUMBER_BYTES, block_counts


def encoder_workload(
    sizes: EncoderConfig,
    *,
    sequence: int,
    activation_number_bits: int,
    parameter_number_bits: int,
    token_bits: int,
    target_tokens: int,
    state_bytes_per_parameter: int,
    trained_fraction: float = 1.0,
    embedding_parameters: int,
    decoder_parameters: int,
    **others: Any,
) -> Workload:
    """The workload, in plain numbers, of any model whose encoder is a stack of our blocks.

    Args:
      sizes: sizes and kind of the blocks. Where activations are recomputed in the backward
        pass, only a block's input is kept, and backward costs a forward pass more. With adapters,
        they and the decoder are all that is trained.
      sequence: tokens of a sample.
      activation_number_bits, parameter_number_bits: precision on the links.
      token_bits: of a target on the uplink.
      state_bytes_per_parameter: weights, gradient and optimiser state on a device, of a
        parameter that is trained.
      trained_fraction: share of the parameters that is trained, and so has a gradient and a
        state, and travels.
      **others: the other fields of :class:`Workload`.
    """
    block, recomputes = block_counts(sizes, sequence), sizes.rematerialise
    activations = sequence * sizes.width
    every = block.parameters, embedding_parameters, decoder_parameters
    trained = tuple(trained_fraction * parameters for parameters in every)
    if sizes.adapters is not None:
        trained = block.trained, 0, decoder_parameters
    block_bits, embedding_bits, decoder_bits = (
        float(parameter_number_bits * parameters) for parameters in trained
    )
    training_bytes = state_bytes_per_parameter - NUMBER_BYTES
    block_static, embedding_static, decoder_static = (
        float(NUMBER_BYTES * parameters + training_bytes * changing)
        for parameters, changing in zip(every, trained, strict=True)
    )
    # Plain numbers, which a pytree of arrays may hold.
    numbers: dict[str, Any] = {
        "blocks": sizes.encoder_blocks,
        "block_flops": block.flops,
        "backward_ratio": block.backward_flops / block.flops + float(recomputes),
        "activation_bits": float(activation_number_bits * activations),
        "target_bits": float(token_bits * target_tokens),
        "block_param_bits": block_bits,
        "embedding_param_bits": embedding_bits,
        "block_static_bytes": block_static,
        "block_kept_bytes": float(NUMBER_BYTES * activations) if recomputes else block.kept_bytes,
        "block_working_bytes": block.kept_bytes if recomputes else 0.0,
    }
    ends: dict[str, Any] = {
        "decoder_param_bits": decoder_bits,
        "embedding_static_bytes": embedding_static,
        "decoder_static_bytes": decoder_static,
    }
    return Workload(**numbers, **others, ends=ModelEnds(**ends))


def block_moment_bits(
    sizes: EncoderConfig, state_bytes_per_parameter: int, trained_fraction: float
) -> float:
    """Moments of a block's optimiser on a link, in the precision in which devices compute."""
    moments_bytes = state_bytes_per_parameter - 2 * NUMBER_BYTES
    return float(8 * moments_bytes * trained_fraction * block_counts(sizes, 1).trained)
