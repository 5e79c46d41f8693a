"""What (P2) still depends on once segments and micro-batches are fixed.

The solver asks for the price of thousands of shares and powers of the same layout, so all
that they do not change is worked out once. Arrays have *lanes* last: independent problems
(networks, candidates) in any number of trailing axes, which a processor's vector units
take side by side. A problem with lanes is one whose every leaf has these axes at its end.
"""

from typing import NamedTuple

import jax.numpy as jnp
from flax import struct
from jax import Array

from collapipe_jax.batching import computed_once, few_lanes
from collapipe_jax.cost.decision import Hops
from collapipe_jax.cost.divergence import erasure_terms, noise_weight, present_weight
from collapipe_jax.cost.energy import computing_energy_j
from collapipe_jax.cost.latency import forward_time_s
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.switching import price_of_moves
from collapipe_jax.network.channel import (
    downlink_sinr,
    spectral_efficiency,
    transport_block_hazard,
    uplink_sinr,
)


class Caps(NamedTuple):
    """Caps on what the nodes of a layout spend on air, ``[P, N, ...]`` each.

    Attributes:
      room_j: what a cap leaves of a node's energy once its computing is paid; positive.
      multiplier: to start with, in units of the objective.
      least: none falls below, ``[...]``; from 0 none would come back.
    """

    room_j: Array
    multiplier: Array
    least: Array


@struct.dataclass(kw_only=True)
class Chains:
    """The clusters' chains of active nodes, nodes first: ``P = K + 1`` of them.

    Idle entries hold harmless numbers: gain 1, no bits, no price.

    Attributes:
      active: ``[P, N, ...]``.
      gain: of every hop's two messages, by the node where the hop starts, ``[P, N, ...]``.
      collect_gain, distribute_gain: from and to a device, ``[P, N, ...]``.
      uplink_gain: over noise and interference, ``[N, ...]``.
      downlink_efficiency: bit/s/Hz, ``[N, ...]``.
      cross_gain: sender to receiver, activity included, 0 inside a cluster,
        ``[P, N, P, N, ...]``.
      gain_heard_from: the same by receiver and sender, laid out for its own sums.
      noise_w: at a node over the whole D2D band, ``[...]``.
      d2d_hz, d2e_hz: bandwidths, ``[...]``.
      micro_batches: ``[N, ...]``.
      hop_bits: of a micro-batch on a hop, ``[P, N, ...]``.
      uplink_bits, downlink_bits: of a micro-batch, ``[N, ...]``.
      move_bits: parameters that a device gets and returns, ``[P, N, ...]``.
      model_bits: of encoder and embedding, ``[N, ...]``.
      overhead_s: of a message, ``[...]``.
      fixed_s: sum of the compute stages of a flow, ``[N, ...]`` each.
      longest_fixed_s: the longest of them.
      local_steps: ``[...]``.
      price_per_s: of the round's latency, ``[...]``.
      price_per_w_s: of a node's energy on air, ``[P, N, ...]``.
      cluster_price: of the energy spent computing, of divergence without losses and of
        moved blocks, ``[N, ...]``.
      hazard_per_hop, hazard_per_uplink: transport blocks of a message, ``[N, ...]``.
      fixed_hazard: of the downlink, ``[N, ...]``.
      price_per_survival: of the inverse probability that a micro-batch survives, minus
        its part without losses, ``[N, ...]``.
      caps: on nodes' energies, where there are any; energy then has no other price.
    """

    active: Array
    gain: Hops
    collect_gain: Array
    distribute_gain: Array
    uplink_gain: Array
    downlink_efficiency: Array
    cross_gain: Array
    gain_heard_from: Array
    noise_w: Array
    d2d_hz: Array
    d2e_hz: Array
    micro_batches: Array
    hop_bits: Array
    uplink_bits: Array
    downlink_bits: Array
    move_bits: Array
    model_bits: Array
    overhead_s: Array
    fixed_s: Hops
    longest_fixed_s: Hops
    local_steps: Array
    price_per_s: Array
    price_per_w_s: Array
    cluster_price: Array
    hazard_per_hop: Array
    hazard_per_uplink: Array
    fixed_hazard: Array
    price_per_survival: Array
    caps: Caps | None = None


def heard_w(cross_gain: Array, power_w: Array) -> Array:
    """Interference at every node, docs/system-model.md (1), with lanes.

    Args:
      cross_gain: as in :class:`Chains`, ``[P, N, P, N, ...]``.
      power_w: 0 on idle nodes, ``[P, N, ...]``.
    """
    if few_lanes(cross_gain):
        return jnp.sum(power_w[:, :, None, None] * cross_gain, axis=(0, 1))
    nodes, clusters = cross_gain.shape[:2]
    each = (power_w[i, n] * cross_gain[i, n] for i in range(nodes) for n in range(clusters))
    return computed_once(sum(each))


def at_next_active(values: Array, active: Array) -> Array:
    """Each node's entry replaced by that of the next active node, at last node 0's.

    Args:
      values: ``[P, ...]``.
      active: ``[P, ...]``.
    """
    values = jnp.broadcast_to(values, active.shape)
    found = [values[0]]
    for node in range(active.shape[0] - 1, 0, -1):
        found.append(jnp.where(active[node], values[node], found[-1]))
    return jnp.stack(found[::-1])


def from_previous_active(values: Array, active: Array) -> Array:
    """Each active node's entry replaced by that of the node whose hop ends at it.

    Node 0 gets the last active node's; idle nodes get 0.

    Args:
      values: ``[P, ...]``.
      active: ``[P, ...]``.
    """
    last = values[0]
    moved = []
    for node in range(1, active.shape[0]):
        moved.append(jnp.where(active[node], last, 0.0))
        last = jnp.where(active[node], values[node], last)
    return jnp.stack([jnp.where(active[0], last, 0.0), *moved])


def chains(problem: RoundProblem, segments: Array, micro_batches: Array) -> Chains:
    """Chains of a layout.

    Args:
      problem: with lanes.
      segments: ``[N, K, ...]``.
      micro_batches: ``[N, ...]``.
    """
    work, radio, compute, control = (
        problem.workload,
        problem.radio,
        problem.compute,
        problem.control,
    )
    devices = jnp.moveaxis(segments, 1, 0)
    present = jnp.sum(devices, axis=0) > 0
    active = jnp.concatenate([present[None], devices > 0])
    samples = work.batch / micro_batches
    step_bits = jnp.where(present, samples * work.activation_bits, 0.0)
    up_bits = jnp.where(present, samples * (work.activation_bits + work.target_bits), 0.0)
    model_bits = work.blocks * work.block_param_bits + work.embedding_param_bits
    down_sinr = downlink_sinr(radio, radio.d2e_gain[:, 0])
    times = compute_times(problem, samples)
    decoder_s = jnp.where(present, times.decoder_s, 0.0)
    embed_s = jnp.where(present, times.embed_s, 0.0)
    forward_s = jnp.concatenate([embed_s[None], devices * times.block_s])
    price_per_j = jnp.moveaxis(control.energy_queue / control.energy_budget_j, 1, 0)
    divergence = divergence_prices(problem, present, micro_batches)
    cross_gain = _heard_gain(radio)
    cluster_gain = jnp.moveaxis(radio.d2d_gain, 0, 2)  # [P, P, N, ...]
    return Chains(
        active=active,
        gain=Hops(
            jnp.where(active, gain_to_next(cluster_gain, active), 1.0),
            jnp.where(active, gain_to_next(jnp.swapaxes(cluster_gain, 0, 1), active), 1.0),
        ),
        collect_gain=jnp.where(active, cluster_gain[:, 0], 1.0),
        distribute_gain=jnp.where(active, cluster_gain[0], 1.0),
        uplink_gain=uplink_sinr(radio, 1.0, radio.d2e_gain[:, 0], 1.0),
        downlink_efficiency=spectral_efficiency(down_sinr, radio),
        cross_gain=cross_gain,
        gain_heard_from=jnp.moveaxis(cross_gain, (0, 1), (2, 3)),
        noise_w=radio.d2d_bandwidth_hz * radio.node_noise_w_per_hz,
        d2d_hz=radio.d2d_bandwidth_hz,
        d2e_hz=radio.d2e_bandwidth_hz,
        micro_batches=micro_batches.astype(samples.dtype),
        hop_bits=jnp.where(active, step_bits, 0.0),
        uplink_bits=up_bits,
        downlink_bits=step_bits,
        move_bits=jnp.concatenate([jnp.zeros_like(up_bits)[None], devices * work.block_param_bits]),
        model_bits=jnp.where(present, model_bits, 0.0),
        overhead_s=compute.link_overhead_s,
        fixed_s=Hops(
            jnp.sum(forward_s, axis=0) + decoder_s,
            work.backward_ratio * jnp.sum(forward_s, axis=0),
        ),
        longest_fixed_s=Hops(
            jnp.maximum(jnp.max(forward_s, axis=0), decoder_s),
            work.backward_ratio * jnp.max(forward_s, axis=0),
        ),
        local_steps=work.local_steps,
        price_per_s=control.v / control.reference_latency_s,
        price_per_w_s=jnp.where(active, price_per_j, 0.0),
        cluster_price=jnp.sum(price_per_j * computing_j(problem, devices, present), axis=0)
        + divergence.sampling
        + divergence.drift
        + price_of_moves(problem.switching, devices, work.blocks),
        hazard_per_hop=step_bits / radio.transport_block_bits,
        hazard_per_uplink=up_bits / radio.transport_block_bits,
        fixed_hazard=step_bits
        / radio.transport_block_bits
        * transport_block_hazard(radio, down_sinr),
        price_per_survival=divergence.sampling + divergence.erasure,
    )


class ComputeTimes(NamedTuple):
    """Forward passes of a micro-batch.

    Attributes:
      embed_s, decoder_s: ``[N, ...]``.
      block_s: of one block, ``[K, N, ...]``.
    """

    embed_s: Array
    decoder_s: Array
    block_s: Array


def compute_times(problem: RoundProblem, samples: Array) -> ComputeTimes:
    """Forward passes of micro-batches of some samples, ``[N, ...]`` or ``[...]``."""
    work, compute = problem.workload, problem.compute
    speed, overhead_s = jnp.moveaxis(compute.flops_per_s, 1, 0), compute.block_overhead_s
    server_share = jnp.broadcast_to(compute.es_flops_per_s / speed.shape[1], speed.shape[1:])
    return ComputeTimes(
        forward_time_s(samples, work.embed_flops, speed[0], overhead_s),
        forward_time_s(samples, work.decoder_flops, server_share, overhead_s),
        forward_time_s(samples, work.block_flops, speed[1:], overhead_s),
    )


class DivergencePrices(NamedTuple):
    """Prices of the inverse probability that a micro-batch survives, ``[N, ...]`` each.

    Attributes:
      sampling: for the variance of samples, which is there without losses too.
      erasure: for what is lost.
      drift: of a cluster's share in what no decision changes, not by that probability.
    """

    sampling: Array
    erasure: Array
    drift: Array


def divergence_prices(
    problem: RoundProblem, present: Array, micro_batches: Array
) -> DivergencePrices:
    """Prices of docs/system-model.md (19) by the queue of divergence.

    Args:
      problem: with lanes.
      present: clusters that take part, ``[N, ...]``.
      micro_batches: ``[N, ...]`` or ``[...]``.
    """
    control, learning = problem.control, problem.learning
    share = present_weight(learning.cluster_weight, present)
    price = control.divergence_queue * noise_weight(learning, share) / control.divergence_target
    drift = 0.0 if learning.drift is None else learning.drift.divergence
    return DivergencePrices(
        price * learning.gradient_variance / problem.workload.batch,
        price * erasure_terms(learning) * learning.gradient_heterogeneity / micro_batches,
        control.divergence_queue * share * drift / control.divergence_target,
    )


def computing_j(problem: RoundProblem, devices: Array, present: Array) -> Array:
    """Energy that all nodes spend computing, ``[P, N, ...]``.

    Args:
      problem: with lanes.
      devices: segments, ``[K, N, ...]``.
      present: clusters that take part, ``[N, ...]``.
    """
    work = problem.workload
    joules_per_flop = jnp.moveaxis(problem.compute.joules_per_flop, 1, 0)
    embed = jnp.where(present, work.embed_flops, 0.0)[None]
    flops = jnp.concatenate([embed, devices * work.block_flops])
    return computing_energy_j(work, flops, joules_per_flop)


def gain_to_next(cluster_gain: Array, active: Array) -> Array:
    """Gain from every node to the next active one, at last to node 0.

    Args:
      cluster_gain: from the first to the second, ``[P, P, ...]``.
      active: ``[P, ...]``, with as many axes behind or with some more before these.
    """
    nodes, more = active.shape[0], active.ndim + 1 - cluster_gain.ndim
    gain = jnp.expand_dims(cluster_gain, tuple(range(2, 2 + more)))
    order = jnp.arange(nodes).reshape(-1, *[1] * (active.ndim - 1))
    found = jnp.broadcast_to(gain[:, 0], active.shape)
    for after in range(nodes - 1, 0, -1):
        found = jnp.where(active[after] & (order < after), gain[:, after], found)
    return found


def _heard_gain(radio):
    """Gains between clusters as (1) weighs them, ``[P, N, P, N, ...]``."""
    gain = jnp.swapaxes(jnp.swapaxes(radio.cross_gain, 0, 1), 2, 3)
    clusters = gain.shape[1]
    other = ~jnp.eye(clusters, dtype=bool)
    other = other.reshape(1, clusters, 1, clusters, *[1] * (gain.ndim - 4))
    return jnp.where(other, radio.d2d_activity * gain, 0.0)
