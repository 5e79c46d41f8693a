"""First stage of a round's cost: all that shares and powers do not change.

Segments and micro-batches fix which links exist, what they carry and how long nodes
compute. :func:`fix_partition` works this out once; :func:`.round_terms.round_terms` then
takes any shares and powers.

Arrays have nodes first, ``P = K + 1``, clusters next and then any batch axes, none for a
single network. A problem with batch axes is one whose every leaf ends with them.
"""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from collapipe_jax.batching import sum_nodes
from collapipe_jax.cost.chain import Messages, gain_to_next, of_senders
from collapipe_jax.cost.computing import (
    ComputeStages,
    compute_stages,
    node_computing_energy_j,
    pass_times,
)
from collapipe_jax.cost.divergence import (
    ClusterDivergence,
    cluster_divergence,
    participating_weight,
)
from collapipe_jax.cost.objective import UnitCosts, unit_costs
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.switching import switching_cost
from collapipe_jax.network.channel import Radio, downlink_sinr, transport_block_hazard


class FixedPartition(struct.PyTreeNode, kw_only=True):
    """A round whose segments and micro-batches are fixed.

    Idle nodes hold harmless numbers: gain 1, no bits, no energy.

    Attributes:
      radio: bandwidths, noise, and the laws of rates and losses.
      active: nodes that compute, ``[P, N, ...]``.
      micro_batches: ``[N, ...]``.
      local_steps: ``[...]``.
      hop_gain: of a hop's forward and backward message, by the node where the hop starts,
        ``[2, P, N, ...]``.
      move_gain: from a device and to it, ``[2, K, N, ...]``.
      uplink_gain, downlink_sinr: ``[N, ...]``.
      cross_gain: from a sender to a receiver in another cluster, activity included; 0
        inside a cluster, ``[P, N, P, N, ...]``.
      cross_gain_to: the same by receiver and sender.
      hop_bits: of a micro-batch on a hop, ``[P, N, ...]``.
      uplink_bits, downlink_bits: of a micro-batch, ``[N, ...]``.
      move_bits: parameters that a device receives and returns, ``[K, N, ...]``.
      model_bits: encoder and embedding, ``[N, ...]``.
      hop_overhead_s, d2e_overhead_s: of a message, ``[P, N, ...]`` and ``[N, ...]``.
      compute: compute stages of a local step.
      computing_j: energy of a round's computing, ``[P, N, ...]``.
      computing_cost: the same at the nodes' unit costs, ``[N, ...]``.
      sender_cost_per_j: unit cost of energy of a message's sender.
      hop_blocks, uplink_blocks: transport blocks of a micro-batch's message, ``[N, ...]``.
      downlink_hazard: of a micro-batch, ``[N, ...]``.
      divergence: of every cluster, by its losses.
      costs: unit costs of the objective.
      switching_cost: of leaving the partition of the round before, ``[N, ...]``.
      caps: :class:`.allocation.energy_caps.EnergyCaps`, or None without caps in this round.
    """

    radio: Radio
    active: Array
    micro_batches: Array
    local_steps: Array
    hop_gain: Array
    move_gain: Array
    uplink_gain: Array
    downlink_sinr: Array
    cross_gain: Array
    cross_gain_to: Array
    hop_bits: Array
    uplink_bits: Array
    downlink_bits: Array
    move_bits: Array
    model_bits: Array
    hop_overhead_s: Array
    d2e_overhead_s: Array
    compute: ComputeStages
    computing_j: Array
    computing_cost: Array
    sender_cost_per_j: Messages
    hop_blocks: Array
    uplink_blocks: Array
    downlink_hazard: Array
    divergence: ClusterDivergence
    costs: UnitCosts
    switching_cost: Array
    caps: Any = None


def fix_partition(problem: RoundProblem, segments: Array, micro_batches: Array) -> FixedPartition:
    """Coefficients of a round with its partition fixed.

    Args:
      problem: one round, with or without batch axes.
      segments: ``[N, K, ...]``.
      micro_batches: ``[N, ...]``.
    """
    work, radio, learning = problem.workload, problem.radio, problem.learning
    segments = jnp.moveaxis(segments, 1, 0)
    participates = jnp.sum(segments, axis=0) > 0
    active = jnp.concatenate([participates[None], segments > 0])
    samples = work.batch / micro_batches

    def per_cluster(value):
        return jnp.where(participates, value, 0.0)

    step_bits = per_cluster(samples * work.activation_bits)
    uplink_bits = per_cluster(samples * (work.activation_bits + work.target_bits))
    d2d_gain = jnp.moveaxis(radio.d2d_gain, 0, 2)  # [P, P, N, ...]
    hop_gain = [gain_to_next(d2d_gain, active), gain_to_next(jnp.swapaxes(d2d_gain, 0, 1), active)]
    down_sinr = downlink_sinr(radio, radio.d2e_gain[:, 0])
    down_hazard = per_cluster(transport_block_hazard(radio, down_sinr))
    cross_gain = _cross_gain(radio)
    weight = participating_weight(learning.cluster_weight, participates)
    costs = unit_costs(problem.control)
    computing_j = node_computing_energy_j(problem, segments, participates)
    d2e_overhead_s = per_cluster(problem.compute.link_overhead_s)
    return FixedPartition(
        radio=radio,
        active=active,
        micro_batches=micro_batches.astype(samples.dtype),
        local_steps=work.local_steps,
        hop_gain=jnp.where(active, jnp.stack(hop_gain), 1.0),
        move_gain=jnp.where(active[1:], jnp.stack([d2d_gain[1:, 0], d2d_gain[0, 1:]]), 1.0),
        uplink_gain=jnp.where(participates, radio.d2e_gain[:, 0], 1.0),
        downlink_sinr=jnp.where(participates, down_sinr, 1.0),
        cross_gain=cross_gain,
        cross_gain_to=jnp.moveaxis(cross_gain, (0, 1), (2, 3)),
        hop_bits=jnp.where(active, step_bits, 0.0),
        uplink_bits=uplink_bits,
        downlink_bits=step_bits,
        move_bits=segments * work.block_param_bits,
        model_bits=per_cluster(work.blocks * work.block_param_bits + work.embedding_param_bits),
        hop_overhead_s=jnp.where(active, d2e_overhead_s, 0.0),
        d2e_overhead_s=d2e_overhead_s,
        compute=compute_stages(
            pass_times(problem, micro_batches), segments, participates, work.backward_ratio
        ),
        computing_j=computing_j,
        computing_cost=sum_nodes(costs.energy_per_j * computing_j),
        sender_cost_per_j=of_senders(costs.energy_per_j, active),
        hop_blocks=step_bits / radio.transport_block_bits,
        uplink_blocks=uplink_bits / radio.transport_block_bits,
        downlink_hazard=step_bits / radio.transport_block_bits * down_hazard,
        divergence=cluster_divergence(learning, weight, work.batch, micro_batches),
        costs=costs,
        switching_cost=switching_cost(problem.switching, segments, work.blocks),
    )


def _cross_gain(radio: Radio) -> Array:
    """Gains between clusters, times the activity, ``[P, N, P, N, ...]``."""
    gain = jnp.swapaxes(jnp.swapaxes(radio.cross_gain, 0, 1), 2, 3)
    clusters = gain.shape[1]
    other = ~jnp.eye(clusters, dtype=bool)
    other = other.reshape(1, clusters, 1, clusters, *[1] * (gain.ndim - 4))
    return jnp.where(other, radio.d2d_activity * gain, 0.0)
