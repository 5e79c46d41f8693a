"""Links that a decision uses, with their quality."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.edge.cost.chain import at_next
from collapipe_jax.edge.cost.client_round import client_links, replica_links, sends
from collapipe_jax.edge.cost.decision import (
    ClientDecision,
    Decision,
    decision_allocation,
    fill_idle,
)
from collapipe_jax.edge.cost.fixed_partition import fix_decision
from collapipe_jax.edge.cost.link_quality import link_bit_times, round_links
from collapipe_jax.edge.cost.maximum import hard_max
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.network.channel import d2d_sinr, downlink_sinr

NO_LINK = -1
"""In place of the node where a link ends."""


class UsedLinks(NamedTuple):
    """Links by the node that sends, ``[N, K + 1]`` each."""

    d2d_to: Array  # node of the cluster where its D2D link ends, or NO_LINK
    d2d_sinr: Array
    d2d_bit_s: Array  # time of a bit
    talks_d2e: Array  # whether it talks to the base station
    d2e_sinr: Array
    d2e_bit_s: Array


def used_links(problem: RoundProblem, decision: Decision | ClientDecision) -> UsedLinks:
    """Links of the local steps of a round, at their shares and powers and the interference.

    A pipeline has its hops, and gateways to the base station. Data-parallel clients have their
    ways to the base station, or first to the control unit.

    See docs/system-model.md, section 2.
    """
    if isinstance(decision, ClientDecision):
        return _of_clients(problem, decision)
    with jax.numpy_rank_promotion("allow"):
        return _of_pipeline(problem, decision)


def possible_links(problem: RoundProblem) -> UsedLinks:
    """Links from devices to control units and from there to the base station, without a decision.

    Each is alone on the whole band at full power. The quality to the base station is that of the
    downlink.
    """
    radio = problem.radio
    to_unit = d2d_sinr(radio, radio.d2d_power_max_w, radio.d2d_gain[:, :, 0], jnp.ones(()), 0.0)
    device = jnp.arange(problem.devices + 1) > 0
    d2d_to = jnp.broadcast_to(jnp.where(device, 0, NO_LINK), to_unit.shape)
    return UsedLinks(
        d2d_to=d2d_to,
        d2d_sinr=to_unit,
        d2d_bit_s=jnp.full_like(to_unit, jnp.nan),
        talks_d2e=d2d_to == NO_LINK,
        d2e_sinr=downlink_sinr(radio, radio.d2e_gain),
        d2e_bit_s=jnp.full_like(to_unit, jnp.nan),
    )


def _of_pipeline(problem: RoundProblem, decision: Decision) -> UsedLinks:
    fixed = fix_decision(problem, decision)
    chain = fixed.chain
    allocation = fill_idle(decision_allocation(decision), chain.used, 1.0)
    links = round_links(fixed, allocation)
    times = link_bit_times(fixed, allocation, links, hard_max)
    nodes = jnp.arange(problem.devices + 1)[:, None]
    gateway = nodes == 0 if chain.gateway is None else chain.gateway
    by_node = UsedLinks(
        d2d_to=jnp.where(chain.hops, at_next(nodes, chain), NO_LINK),
        d2d_sinr=links.sinr.hop[0],
        d2d_bit_s=times.hop.value[0],
        talks_d2e=gateway & chain.members[:1],
        d2e_sinr=jnp.broadcast_to(links.sinr.uplink, chain.members.shape),
        d2e_bit_s=jnp.broadcast_to(times.uplink.value, chain.members.shape),
    )
    return jax.tree.map(jnp.transpose, by_node)


def _of_clients(problem: RoundProblem, decision: ClientDecision) -> UsedLinks:
    links, shape = client_links(problem, decision), (problem.clusters, problem.devices + 1)
    first = 1 if decision.tier == "devices" else 0  # node of the first sender of a cluster
    last = first + links.uplink_sinr.shape[1]

    def to_nodes(values: Array, begin: int, end: int, other: float) -> Array:
        return jnp.full(shape, other, values.dtype).at[:, begin:end].set(values)

    found = UsedLinks(
        d2d_to=jnp.full(shape, NO_LINK),
        d2d_sinr=jnp.zeros(shape),
        d2d_bit_s=jnp.zeros(shape),
        talks_d2e=to_nodes(sends(decision), first, last, False),
        d2e_sinr=to_nodes(links.uplink_sinr, first, last, 0.0),
        d2e_bit_s=to_nodes(links.uplink_bit_s, first, last, 0.0),
    )
    if decision.tier != "hierarchical":
        return found
    replicas, end = replica_links(problem, decision), shape[1]
    return found._replace(
        d2d_to=to_nodes(jnp.where(decision.samples > 0, 0, NO_LINK), 1, end, NO_LINK),
        d2d_sinr=to_nodes(replicas.up_sinr, 1, end, 0.0),
        d2d_bit_s=to_nodes(replicas.up_bit_s, 1, end, 0.0),
    )
