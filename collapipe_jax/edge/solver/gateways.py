"""Gateways that are likely to be good, by the ways of a round's parameters.

Most of a round moves parameters. So a gateway is judged by the time of their ways alone.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from collapipe_jax.core.batch_axis import batch_last
from collapipe_jax.edge.cost.computing import product_or_zero
from collapipe_jax.edge.cost.decision import Routes
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.terms import reading
from collapipe_jax.edge.network.channel import (
    bit_time_s,
    d2d_sinr,
    narrowed_bit_time_s,
    uplink_sinr,
)


def likeliest_routes(problem: RoundProblem) -> Routes:
    """Every cluster's likeliest gateway, and parameters by broadcast."""

    def find(problem):
        gateway = likely_gateways(problem, 1)[0]
        return Routes(gateway=gateway, broadcast=jnp.ones_like(gateway[0]))

    return batch_last(find)(problem)


def control_unit_routes(problem: RoundProblem) -> Routes:
    """The published routes: control units are gateways, and no parameters come by broadcast."""
    gateway = jnp.zeros(problem.clusters, jnp.int32)
    return Routes(gateway=gateway, broadcast=jnp.zeros_like(gateway[0]))


class Uplinks(NamedTuple):
    """Logarithms of D2E shares, and of D2E powers over their maxima, ``[N, ..., R]``."""

    share: Array
    power: Array


def uplinks_at(problem: RoundProblem, own: Uplinks, before: Array, gateway: Array) -> Uplinks:
    """Uplinks of clusters of which some change their gateway, to start from.

    A new gateway has full power: the power over the old link tells nothing of the new one. Its
    share grows as the root of a bit's time, as where the price of the band balances that time.

    Args:
      problem: with an axis of candidates, if gateways have one.
      own: at the gateways before.
      before: these gateways, ``[N, ..., R]``.
      gateway: others, likewise.
    """
    radio, gain = problem.radio, problem.by_node.d2e_gain
    share = jnp.exp(own.share)

    def bit_s(node):
        at_node = jnp.take_along_axis(gain, node[None], axis=0)[0]
        sinr = uplink_sinr(radio, radio.d2e_power_max_w, at_node, share)
        return bit_time_s(radio, share * radio.d2e_bandwidth_hz, sinr)

    growth = jnp.nan_to_num(0.5 * jnp.log(bit_s(gateway) / bit_s(before)))
    moves = gateway != before
    return Uplinks(
        share=jnp.where(moves, jnp.minimum(own.share + growth, 0.0), own.share),
        power=jnp.where(moves, 0.0, own.power),
    )


def likely_gateways(
    problem: RoundProblem, count: int, left_out: Int[Array, "N R"] | int = -1
) -> Int[Array, "count N R"]:
    """Gateways with the shortest ways of all parameters, best first, ``[count, N, R]``.

    D2E messages have an equal share of the band and full power. A block moves at the mean rate of
    the devices that are there. Gateways that are ``left_out [N, R]`` come last.
    """
    radio, nodes = problem.radio, problem.by_node
    work = reading(problem, problem.workload.batch)
    is_there = jnp.concatenate([jnp.ones_like(nodes.memory_bytes[:1]), nodes.memory_bytes]) > 0
    share = 1.0 / len(radio.d2e_power_max_w)
    up_sinr = uplink_sinr(radio, radio.d2e_power_max_w, nodes.d2e_gain, share)
    d2e_s = work.update_bits * bit_time_s(radio, share * radio.d2e_bandwidth_hz, up_sinr)
    sinr = d2d_sinr(radio, nodes.d2d_power_max_w[:, None], nodes.d2d_gain, 1.0, jnp.zeros(()))
    bit_s = narrowed_bit_time_s(radio, radio.d2d_bandwidth_hz, sinr)
    itself = jnp.eye(len(bit_s), dtype=bool)[:, :, None, None]
    both_s = bit_s + work.update_ratio * jnp.swapaxes(bit_s, 0, 1)  # [gateway, other, N, R]
    both_s = jnp.where(itself, 0.0, both_s)
    others = is_there[None, 1:] & ~itself[:, 1:]
    rates = jnp.where(others, 1.0 / jnp.where(others, both_s[:, 1:], 1.0), 0.0)
    mean_s = jnp.sum(others, axis=1) / jnp.sum(rates, axis=1)
    moved_bits = work.cluster_blocks * work.block_param_bits
    moves_s = product_or_zero(moved_bits, jnp.nan_to_num(mean_s, posinf=jnp.inf))
    moves_s = moves_s + product_or_zero(work.embedding_param_bits, both_s[:, 0])
    possible = is_there & (jnp.arange(len(is_there))[:, None, None] != left_out)
    total_s = jnp.where(possible, jnp.nan_to_num(d2e_s + moves_s, nan=jnp.inf), jnp.inf)
    ranked = jnp.argsort(total_s, axis=0)[:count].astype(jnp.int32)
    # Of fewer nodes than the count the best comes again.
    found = jnp.take_along_axis(possible, ranked, axis=0)
    return jnp.where(found, ranked, ranked[:1])
