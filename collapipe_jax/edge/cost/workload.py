"""What a model asks of the network: operations, bits and bytes from its sizes."""

from typing import Any

from jaxtyping import Array

from collapipe_jax.core.quantity import Struct, part, positive, quantity
from collapipe_jax.learning.models.config import MOST_BLOCKS, EncoderConfig
from collapipe_jax.learning.models.counts import NUMBER_BYTES, block_counts

SCHEDULES = ("gpipe", "1f1b")
"""Orders of the passes of a local step, docs/system-model.md, section 7."""


class ModelEnds(Struct):
    """Sizes of embedding and decoder, where devices hold them besides encoder blocks."""

    decoder_param_bits: Array = quantity("parameters of the decoder on a link", "D_{dec}")
    embedding_static_bytes: Array = quantity(
        "weights, gradient and state of the embedding", "m_{emb}"
    )
    decoder_static_bytes: Array = quantity("weights, gradient and state of the decoder", "m_{dec}")


class Workload(Struct):
    """The work of one round, per encoder block and sample."""

    blocks: int = quantity(
        "encoder blocks", "L", bounds=f"> 0 and <= {MOST_BLOCKS}", whole=True, static=True
    )
    batch: Array = positive("samples of a cluster's mini-batch", "B", unit="samples", whole=True)
    local_steps: Array = positive("local steps of a round", "H", whole=True)
    micro_batch_choices: Array = positive(
        "allowed numbers of micro-batches, divisors of `batch`", "M", "C", whole=True
    )
    block_flops: Array = positive("forward pass", "c_F", unit="FLOP per block and sample")
    embed_flops: Array = quantity("forward pass of embedding", "c_{emb}", unit="FLOP per sample")
    decoder_flops: Array = quantity("both passes of the decoder", "c_{dec}", unit="FLOP per sample")
    backward_ratio: Array = quantity("backward pass over forward pass", r"\rho")
    activation_bits: Array = positive("activations on a link", "D_A", unit="bit per sample")
    target_bits: Array = quantity("targets on the uplink", "D_T", unit="bit per sample")
    block_param_bits: Array = quantity("parameters on a link", "D_P", unit="bit per block")
    embedding_param_bits: Array = quantity(
        "parameters of the embedding on a link; 0 if it is not aggregated", "D_E"
    )
    block_static_bytes: Array = positive(
        "weights, gradients and optimiser state", "m_{static}", unit="byte per block"
    )
    block_kept_bytes: Array = quantity(
        "kept for the backward pass", "m_{kept}", unit="byte per block and sample"
    )
    block_working_bytes: Array = quantity(
        "needed once while a block is recomputed", "m_{work}", unit="byte per sample"
    )
    schedule: str = quantity(
        "order of a local step's passes, which fixes the activations that a device keeps",
        "m_s",
        choices=SCHEDULES,
        missing="gpipe",
        default="gpipe",
    )
    capacity: Array | None = quantity(
        "most blocks that a device of a pipeline may take; no limit but memory without it",
        r"\delta_{\max}",
        bounds="> 0",
        whole=True,
        default=None,
        optional=True,
    )
    ends: ModelEnds | None = part(
        "embedding and decoder as a data-parallel policy needs them; none for a network on file",
        default=None,
    )

    @property
    def uplink_bits(self) -> Array | float:
        """Bits of a sample on the uplink: its activations and its targets."""
        return self.activation_bits + self.target_bits

    @property
    def model_bits(self) -> Array | float:
        """Bits of all parameters on the link to the base station."""
        return self.blocks * self.block_param_bits + self.embedding_param_bits


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
