"""Computing of a round: times of the forward and backward passes, and their energy."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.batching import max_nodes, sum_nodes
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.workload import Workload


class PassTimes(NamedTuple):
    """Passes of a micro-batch.

    Attributes:
      embed_s: forward, on the control unit, ``[N, ...]``.
      block_s: forward, of one block on a device, ``[K, N, ...]``.
      decoder_s: forward and backward, on the edge server, ``[N, ...]``.
    """

    embed_s: Array
    block_s: Array
    decoder_s: Array


class ComputeStages(NamedTuple):
    """Compute stages of both flows of a local step, 0 where idle.

    Attributes:
      forward_s: of the control unit and the devices, ``[P, N, ...]``.
      decoder_s: the last stage of the forward flow, ``[N, ...]``.
      sum_s: of all stages of both flows, ``[N, ...]``.
      longest_s: the longest stage of either flow, ``[2, N, ...]``.
    """

    forward_s: Array
    decoder_s: Array
    sum_s: Array
    longest_s: Array


def forward_time_s(samples: Array, flops: Array, flops_per_s: Array, overhead_s: Array) -> Array:
    """Time of a micro-batch's forward pass. Source: docs/system-model.md (8). Shapes broadcast."""
    return samples * flops / flops_per_s + overhead_s


def pass_times(problem: RoundProblem, micro_batches: Array) -> PassTimes:
    """Passes of a micro-batch on every node. Source: docs/system-model.md (10).

    Args:
      problem: one round.
      micro_batches: ``[N, ...]`` or ``[...]``.
    """
    work, compute = problem.workload, problem.compute
    samples = work.batch / micro_batches
    speed, overhead_s = jnp.moveaxis(compute.flops_per_s, 1, 0), compute.block_overhead_s
    server_share = jnp.broadcast_to(compute.es_flops_per_s / speed.shape[1], speed.shape[1:])
    return PassTimes(
        embed_s=forward_time_s(samples, work.embed_flops, speed[0], overhead_s),
        block_s=forward_time_s(samples, work.block_flops, speed[1:], overhead_s),
        decoder_s=forward_time_s(samples, work.decoder_flops, server_share, overhead_s),
    )


def compute_stages(
    passes: PassTimes, segments: Array, participates: Array, backward_ratio: Array
) -> ComputeStages:
    """Compute stages of a partition.

    Args:
      passes: of a micro-batch.
      segments: devices first, ``[K, N, ...]``.
      participates: ``[N, ...]``.
      backward_ratio: backward over forward.
    """
    embed_s = jnp.where(participates, passes.embed_s, 0.0)
    decoder_s = jnp.where(participates, passes.decoder_s, 0.0)
    forward_s = jnp.concatenate([embed_s[None], segments * passes.block_s])
    sum_s, longest_s = sum_nodes(forward_s), max_nodes(forward_s)
    return ComputeStages(
        forward_s=forward_s,
        decoder_s=decoder_s,
        sum_s=(1.0 + backward_ratio) * sum_s + decoder_s,
        longest_s=jnp.stack([jnp.maximum(longest_s, decoder_s), backward_ratio * longest_s]),
    )


def computing_energy_j(work: Workload, flops: Array, joules_per_flop: Array) -> Array:
    """Energy to compute something forward and backward for all samples of a round.

    Shapes broadcast.

    Args:
      work: the workload.
      flops: of a sample's forward pass.
      joules_per_flop: of the node.
    """
    samples = work.local_steps * work.batch
    return samples * (1.0 + work.backward_ratio) * flops * joules_per_flop


def node_computing_energy_j(problem: RoundProblem, segments: Array, participates: Array) -> Array:
    """Energy that every node spends computing in a round, ``[P, N, ...]``.

    Args:
      problem: one round.
      segments: devices first, ``[K, N, ...]``.
      participates: ``[N, ...]``.
    """
    work = problem.workload
    embed = jnp.where(participates, work.embed_flops, 0.0)[None]
    flops = jnp.concatenate([embed, segments * work.block_flops])
    return computing_energy_j(work, flops, jnp.moveaxis(problem.compute.joules_per_flop, 1, 0))
