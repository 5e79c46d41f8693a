"""One round's problem: everything a policy may look at, and the cost depends on.

What a model asks of the network is in :class:`Workload`: operations, bits and bytes.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from collapipe_jax.core.quantity import MOST_BLOCKS, Struct, part, positive, quantity, same
from collapipe_jax.edge.cost.convergence import Learning
from collapipe_jax.edge.cost.decision import Decision, Routes
from collapipe_jax.edge.network.channel import Radio
from collapipe_jax.edge.network.devices import Compute

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


class Control(Struct):
    """Budgets, virtual queues and the trade-off between them. Source: docs/system-model.md (P1)."""

    v: Array = quantity("weight of latency against the queues", "V")
    reference_latency_s: Array = positive(
        "reference latency, with which one `v` means the same on every network", "T_{ref}"
    )
    energy_budget_j: Array = positive(
        "time-average energy budget of a node",
        r"\bar E",
        "NJ",
        unit="J per round",
        plausible=">= 1e-3 and <= 1e6",
        slip="In kJ, mJ or Wh? Give J",
    )
    energy_queue: Array = quantity("effective queue of energy", "q", "NJ", unit="budgets")
    divergence_target: Array = positive(
        "time-average target of the divergence", r"\bar\Gamma", unit="squared gradient"
    )
    divergence_queue: Array = quantity("effective queue of divergence", "z", unit="targets")


class SecureExchange(Struct):
    """What secure aggregation adds to the parameters of a round."""

    number_ratio: Array = positive("bits of a masked entry over those of a parameter", "r")
    count_bits: Array = quantity(
        "entries of a masked vector beside the parameters: a weight, and one for every row of the "
        "embedding's tables that is averaged over its readers",
        "D_C",
    )
    secret_bits: Array = positive("a public key, and a share of a secret", "a")
    dropout_probability: Array = quantity(
        "probability that a party drops out before its upload, and again before its answer",
        "d",
        bounds=">= 0 and < 1",
    )
    party_mask_bytes_per_s: Array = positive("speed at which a node draws masks", "v_C")
    server_mask_bytes_per_s: Array = positive("speed at which the edge server does", "v_{ES}")


class Signalling(Struct):
    """Messages that a decision needs, before a round."""

    report_bits: Array = quantity("state of its channel and queue that a node reports", "D_R")
    grant_bits: Array = quantity("blocks, shares and powers that a node is granted", "D_G")


class EmbeddingRows(Struct):
    """Rows of the embedding's table of tokens, where those that a round reads travel alone.

    The rows that are read are a line through points, by the samples of a mini-batch.
    """

    table_rows: Array = positive("rows of the table", "V")
    row_bits: Array = positive("parameters of a row on a link", "D_V")
    number_bits: Array = quantity("number of a row, with which it is asked for", "D_I")
    samples: Array = quantity(
        "samples of a mini-batch, increasing from 0 to those of all clusters", "b", "P"
    )
    rows_read: Array = quantity("rows that a round of such mini-batches reads", "U", "P")


class SwitchingParams(Struct):
    """Cost of changing partitions from round to round."""

    switching_cost: Array = quantity(
        "cost of moving a whole encoder between devices; at 0 none", unit="units of (P2)"
    )
    hysteresis: Array = quantity(
        "relative fall of (P2) under which `dssra` keeps the partition", bounds=">= 0 and <= 1"
    )
    block_moment_bits: Array | None = quantity(
        "optimiser state of a block that changes its device; not counted without it",
        "D_M",
        optional=True,
        default=None,
    )


class Switching(SwitchingParams):
    """The partition of the round before, and the cost of leaving it."""

    segments: Array = same(Decision, "segments")
    micro_batches: Array = same(Decision, "micro_batches")


class NumbersByNode(NamedTuple):
    """Numbers of a problem's nodes, these first, as cost and solver have them inside."""

    d2d_gain: Float[Array, "J J N *batch"]  # sender first
    d2e_gain: Float[Array, "J N *batch"]
    d2d_power_max_w: Float[Array, "J N *batch"]
    flops_per_s: Float[Array, "J N *batch"]
    joules_per_flop: Float[Array, "J N *batch"]
    memory_bytes: Float[Array, "K N *batch"]
    energy_budget_j: Float[Array, "J N *batch"]
    energy_queue: Float[Array, "J N *batch"]


class RoundProblem(Struct):
    """The network, the work and the queues of one round.

    It is everything that a policy may look at. docs/reference/documents.md lists all numbers with
    shapes and units.

    Example:
      >>> import collapipe_jax as cp
      >>> problem = cp.read_network("docs/examples/edge.network.json")
      >>> problem.clusters, problem.devices
      (2, 3)
      >>> problem.radio.d2e_gain.shape  # [N, K + 1], node 0 is the control unit
      (2, 4)
    """

    workload: Workload = part("operations, bits and bytes of a round")
    radio: Radio = part("the channel of this round")
    compute: Compute = part("the devices of this round; one that is away has memory 0")
    learning: Learning = part("constants of the convergence bound")
    control: Control = part("budgets and queues")
    switching: Switching | None = part(
        "partition of the round before and the cost of leaving it; none by default", default=None
    )
    secure_aggregation: SecureExchange | None = part(
        "what secure aggregation of the updates adds; none by default", default=None
    )
    signalling: Signalling | None = part(
        "what reports and grants add; none by default", default=None
    )
    embedding_rows: EmbeddingRows | None = part(
        "rows of the embedding that travel; whole tables by default", default=None
    )
    routes: Routes | None = part(
        "gateways and broadcast of pipelines whose decision has none; control units talk to the "
        "base station by default",
        default=None,
    )

    @property
    def as_policies_see(self) -> "RoundProblem":
        """The problem as policies see it, without attempts that are only counted."""
        if self.radio.retransmissions != "counted":
            return self
        return self.replace(radio=self.radio.replace(retransmissions="free"))

    @property
    def by_node(self) -> NumbersByNode:
        """Numbers of nodes, these before clusters."""
        radio, compute, control = self.radio, self.compute, self.control
        return NumbersByNode(
            d2d_gain=jnp.moveaxis(radio.d2d_gain, 0, 2),
            d2e_gain=jnp.swapaxes(radio.d2e_gain, 0, 1),
            d2d_power_max_w=jnp.swapaxes(radio.d2d_power_max_w, 0, 1),
            flops_per_s=jnp.swapaxes(compute.flops_per_s, 0, 1),
            joules_per_flop=jnp.swapaxes(compute.joules_per_flop, 0, 1),
            memory_bytes=jnp.swapaxes(compute.memory_bytes, 0, 1),
            energy_budget_j=jnp.swapaxes(control.energy_budget_j, 0, 1),
            energy_queue=jnp.swapaxes(control.energy_queue, 0, 1),
        )

    def with_routes_of(self, decision: Decision) -> "RoundProblem":
        """The problem with the routes of a decision, if it has any."""
        return self if decision.routes is None else self.replace(routes=decision.routes)

    def with_cut(self, server_blocks: ArrayLike) -> "RoundProblem":
        """The problem with another number of last blocks at the edge server."""
        blocks = jnp.asarray(server_blocks)
        return self.replace(workload=self.workload.replace(server_blocks=blocks))

    def with_energy_queue(self, queue: Array) -> "RoundProblem":
        """The problem with another energy queue, in budgets ``[N, K + 1]``."""
        return self.replace(control=self.control.replace(energy_queue=queue))

    @property
    def clusters(self) -> int:
        """Number of clusters ``N``."""
        return self.compute.memory_bytes.shape[-2]

    @property
    def devices(self) -> int:
        """Devices of a cluster ``K``."""
        return self.compute.memory_bytes.shape[-1]
