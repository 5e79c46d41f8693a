"""Energy of every node in a round, docs/system-model.md (16)."""

import jax.numpy as jnp
from jax import Array

from collapipe_jax.cost.decision import Decision, active_nodes, next_active
from collapipe_jax.cost.latency import LatencyParts
from collapipe_jax.cost.links import Links, message_time_s
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.workload import Workload


def computing_energy_j(work: Workload, flops: Array, joules_per_flop: Array) -> Array:
    """Energy to compute something forward and backward for all samples of a round.

    Source: docs/system-model.md (16). Shapes broadcast.

    Args:
      work: the workload.
      flops: of a sample's forward pass.
      joules_per_flop: of the node.
    """
    samples = work.local_steps * work.batch
    return samples * (1.0 + work.backward_ratio) * flops * joules_per_flop


def node_energy_j(
    problem: RoundProblem, decision: Decision, links: Links, parts: LatencyParts
) -> Array:
    """Energy of every node in the round, ``[N, K + 1]``. Source: docs/system-model.md (16).

    Entries of a broken cluster may be infinite or not a number.
    """
    work, compute = problem.workload, problem.compute
    active = active_nodes(decision.segments)
    samples = work.local_steps * work.batch
    blocks_flops = decision.segments * work.block_flops
    embed_flops = jnp.where(active[:, :1], work.embed_flops, 0.0)
    flops = jnp.concatenate([embed_flops, blocks_flops], axis=1)
    computing_j = computing_energy_j(work, flops, compute.joules_per_flop)

    step_bits = samples * work.activation_bits
    forward_s = jnp.where(active, message_time_s(step_bits, links.hop_rate_bps.forward), 0.0)
    backward_s = jnp.where(active, message_time_s(step_bits, links.hop_rate_bps.backward), 0.0)
    # A node sends the gradient of the hop that ends at it.
    sent_back_s = _arriving(backward_s, active)
    collect_s = message_time_s(decision.segments * work.block_param_bits, links.collect_rate_bps)
    collect_s = jnp.where(decision.segments > 0, collect_s, 0.0)
    moving_s = jnp.concatenate([parts.distribute_s[:, None], collect_s], axis=1)
    on_air_s = forward_s + sent_back_s + moving_s
    d2d_j = jnp.where(active, decision.d2d_power_w * on_air_s, 0.0)

    up_bits = samples * (work.activation_bits + work.target_bits)
    uplink_s = message_time_s(up_bits, links.uplink_rate_bps) + parts.upload_s
    d2e_j = jnp.where(active[:, 0], decision.d2e_power_w * uplink_s, 0.0)
    return (computing_j + d2d_j).at[:, 0].add(d2e_j)


def _arriving(values: Array, active: Array) -> Array:
    """Values of hops, moved from the node where a hop starts to the one where it ends."""
    following = next_active(active)
    ends_here = following[:, :, None] == jnp.arange(active.shape[1])[None, None, :]
    return jnp.sum(jnp.where(ends_here & active[:, :, None], values[:, :, None], 0.0), axis=1)
