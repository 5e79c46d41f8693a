"""What a model asks of the network: operations, bits and bytes, as plain numbers."""

from typing import Any

from jaxtyping import Array

from collapipe_jax.core.quantity import MOST_BLOCKS, Struct, part, positive, quantity

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
    update_ratio: Array = positive(
        "bits of a parameter on its way up over those on its way down", "r_U", missing=1.0
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
    server_blocks: Array | int = quantity(
        "last encoder blocks of a pipeline, which the edge server holds beside the decoder",
        "L_{ES}",
        whole=True,
        missing=0,
        default=0,
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
    def cluster_blocks(self) -> Any:
        """Encoder blocks on the devices of a pipeline. Source: docs/system-model.md (46)."""
        return self.blocks - self.server_blocks

    @property
    def model_bits(self) -> Array | float:
        """Bits of a pipeline's parameters on the link from the base station."""
        return self.cluster_blocks * self.block_param_bits + self.embedding_param_bits

    @property
    def update_bits(self) -> Array | float:
        """Bits of a pipeline's updates on the link to the base station."""
        return self.update_ratio * self.model_bits
