"""What active sets of a cluster and numbers of micro-batches cost, but for the blocks.

A node's power matters to the messages that it sends, whatever the other powers of its
cluster are. So with equal shares every node of every set is priced at a few powers, by
itself.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.allocation.smooth_maximum import add_up
from collapipe_jax.allocation.variables import Resources, Surroundings
from collapipe_jax.batching import computed_once
from collapipe_jax.cost.chains import (
    compute_times,
    divergence_prices,
    from_previous_active,
    gain_to_next,
)
from collapipe_jax.cost.energy import computing_energy_j
from collapipe_jax.cost.feasibility import can_run
from collapipe_jax.cost.messages import bit_time_s, message_loss
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.network.channel import downlink_sinr, uplink_sinr

LEVELS = (1.0, 0.25, 0.06, 0.015, 0.001)
"""Powers to choose from, over the largest."""


class Nodes(NamedTuple):
    """What a node pays.

    Attributes:
      full_w: most power, ``[P, N, R]``.
      price_per_j: of its energy, likewise.
      price_per_w: of its interference, likewise.
      block_price: of the energy to compute a block on a device, ``[K, N, R]``.
      collect_s, distribute_s: time to move a block from and to it, by level,
        ``[levels, P, N, R]``.
    """

    full_w: Array
    price_per_j: Array
    price_per_w: Array
    block_price: Array
    collect_s: Array
    distribute_s: Array


class Uplinks(NamedTuple):
    """Base station's links at given shares and powers, ``[N, R]`` each.

    Attributes:
      up_bit_s, down_bit_s: time on air of a bit.
      up_hazard, down_hazard: of a transport block.
    """

    up_bit_s: Array
    down_bit_s: Array
    up_hazard: Array
    down_hazard: Array


class Sets(NamedTuple):
    """Active sets, and the messages of their nodes at every power, shares being equal.

    Attributes:
      active: ``[P, sets, N, R]``.
      pull: SINR of both messages of a hop on the whole band at full power,
        ``[2, P, sets, N, R]``.
      air_s: seconds on air for a bit of the messages that a node sends, by level,
        ``[levels, P, sets, N, R]``.
      hazard: of a transport block of each of them, summed, likewise.
    """

    active: Array
    pull: Array
    air_s: Array
    hazard: Array


class Micro(NamedTuple):
    """What follows from a number of micro-batches.

    Attributes:
      batches: the number, ``[R]``.
      bits, up_bits: of a micro-batch on a hop and on the uplink, ``[R]``.
      pauses: for the longest stage in a round, ``[R]``.
      unit_s: of a block's forward pass on a device, ``[K, N, R]``.
      embed_s, decoder_s: ``[N, R]``.
      price_per_s: of the round's latency, ``[R]``.
      middle_price_per_s: between that and the cluster's part of it, ``[N, R]``.
      survival_price: of the inverse probability to survive, ``[N, R]``.
      fixed_hazard: of the base station's links, ``[N, R]``.
    """

    batches: Array
    bits: Array
    up_bits: Array
    pauses: Array
    unit_s: Array
    embed_s: Array
    decoder_s: Array
    price_per_s: Array
    middle_price_per_s: Array
    survival_price: Array
    fixed_hazard: Array


def price_nodes(problem: RoundProblem, around: Surroundings) -> Nodes:
    """Prices of nodes. Moves go over the whole band, so whoever is active."""
    radio, control = problem.radio, problem.control
    gain = jnp.moveaxis(radio.d2d_gain, 0, 2)
    noise_w = radio.d2d_bandwidth_hz * radio.node_noise_w_per_hz + around.heard_w
    full_w = jnp.swapaxes(radio.d2d_power_max_w, 0, 1)

    def block_s(sinr):
        bit_s = bit_time_s(radio, radio.d2d_bandwidth_hz, sinr)
        return problem.workload.block_param_bits * bit_s

    work, joules_per_flop = problem.workload, problem.compute.joules_per_flop[:, 1:]
    block_j = computing_energy_j(work, work.block_flops, joules_per_flop)
    price_per_j = control.energy_queue / control.energy_budget_j
    to_control_unit, from_control_unit = gain[:, 0] / noise_w[0], gain[0] / noise_w
    return Nodes(
        full_w,
        jnp.swapaxes(price_per_j, 0, 1),
        around.price_per_w,
        jnp.swapaxes(price_per_j[:, 1:] * block_j, 0, 1),
        jnp.stack([block_s(level * full_w * to_control_unit) for level in LEVELS]),
        jnp.stack([block_s(level * full_w[0] * from_control_unit) for level in LEVELS]),
    )


def price_uplinks(problem: RoundProblem, tentative: Resources) -> Uplinks:
    """Base station's links at tentative shares and powers."""
    radio = problem.radio
    gain, share = radio.d2e_gain[:, 0], tentative.d2e_share
    up_sinr = uplink_sinr(radio, tentative.d2e_power, gain, share)
    down_sinr = downlink_sinr(radio, gain)
    share_hz = share * radio.d2e_bandwidth_hz
    return Uplinks(
        bit_time_s(radio, share_hz, up_sinr),
        bit_time_s(radio, share_hz, down_sinr),
        message_loss(radio, up_sinr).hazard,
        message_loss(radio, down_sinr).hazard,
    )


def price_sets(problem: RoundProblem, around: Surroundings, nodes: Nodes, members: Array) -> Sets:
    """Messages of every set at every power, shares being equal.

    Args:
      problem: with lanes.
      around: what is heard.
      nodes: most powers.
      members: active devices, ``[sets, K, N, R]``.
    """
    radio = problem.radio
    active = jnp.concatenate([jnp.ones_like(members[:, :1]), members], axis=1)
    active = jnp.swapaxes(active, 0, 1)
    gain = jnp.moveaxis(radio.d2d_gain, 0, 2)
    noise_w = radio.d2d_bandwidth_hz * radio.node_noise_w_per_hz + around.heard_w
    full = nodes.full_w[:, None] * gain / noise_w[None]  # sender, receiver
    pull = jnp.stack([gain_to_next(full, active), gain_to_next(jnp.swapaxes(full, 0, 1), active)])
    senders = add_up(active.astype(pull.dtype))
    share_hz = radio.d2d_bandwidth_hz / senders

    # A node sends to the next one, and back to the one before.
    own = pull[0] * senders, from_previous_active(pull[1], active) * senders
    to_next, to_previous = computed_once(own)
    level = jnp.array(LEVELS).reshape(-1, 1, 1, 1, 1)

    def sent(cost):
        return jnp.where(active, cost(level * to_next) + cost(level * to_previous), 0.0)

    return Sets(
        active,
        pull,
        sent(functools.partial(bit_time_s, radio, share_hz)),
        sent(lambda sinr: message_loss(radio, sinr).hazard),
    )


def micro_batch_sizes(
    problem: RoundProblem, around: Surroundings, uplinks: Uplinks, micro_batches: Array
) -> Micro:
    """What follows from a number of micro-batches ``[R]``."""
    work, control = problem.workload, problem.control
    samples = work.batch / micro_batches
    bits = samples * work.activation_bits
    up_bits = samples * (work.activation_bits + work.target_bits)
    runs = jax.vmap(can_run, in_axes=-1, out_axes=-1)(problem)
    divergence = divergence_prices(problem, runs, micro_batches)
    times = compute_times(problem, samples)
    price_per_s = control.v / control.reference_latency_s
    hazard = bits * uplinks.down_hazard + up_bits * uplinks.up_hazard
    return Micro(
        batches=micro_batches,
        bits=bits,
        up_bits=up_bits,
        pauses=work.local_steps * (micro_batches - 1.0),
        unit_s=times.block_s,
        embed_s=times.embed_s,
        decoder_s=times.decoder_s,
        price_per_s=price_per_s,
        middle_price_per_s=0.5 * (price_per_s + around.price_per_s),
        survival_price=divergence.sampling + divergence.erasure,
        fixed_hazard=hazard / problem.radio.transport_block_bits,
    )
