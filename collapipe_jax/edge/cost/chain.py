"""The chain of active nodes of a cluster, and the messages along it.

The chain begins at the control unit and leads through the devices with blocks. A hop leads from
a node to the next one, at last to the gateway, which talks to the base station and exchanges
parameters with all other nodes. The control unit is the gateway, unless the round has routes.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num, Shaped

from collapipe_jax.core.batch_axis import sum_nodes
from collapipe_jax.edge.cost.decision import (
    ActiveNodes,
    Allocation,
    Broadcast,
    PerCluster,
    PerHop,
    PerMove,
    PerNode,
    Routes,
    Segments,
    active_nodes,
)
from collapipe_jax.edge.cost.problem import RoundProblem

_Broadcast = Num[Array, "#J #N *#batch"]
_Gateway = Bool[Array, "J ..."] | None
"""Which node is the gateway; by default the control unit."""


class Chain(NamedTuple):
    """Nodes of a cluster's chain."""

    members: ActiveNodes  # the devices with blocks, and the control unit of who takes part
    gateway: _Gateway = None

    @property
    def active(self) -> ActiveNodes:
        """Nodes of the round: members and the gateway."""
        if self.gateway is None:
            return self.members
        return self.members | (self.gateway & self.members[:1])

    @property
    def senders(self) -> ActiveNodes:
        """Nodes that send over D2D: the active ones, unless one is alone."""
        return self.active & jnp.any(self.hops, axis=0, keepdims=True)

    @property
    def hops(self) -> ActiveNodes:
        """Nodes where a hop starts: members, but for a last one that is the gateway."""
        if self.gateway is None:
            return self.members & jnp.any(self.members[1:], axis=0, keepdims=True)
        left = jnp.flip(jnp.cumsum(jnp.flip(self.members, 0), 0), 0)  # from a node on, itself too
        return self.members & ~(self.gateway & (left == 1))

    @property
    def used(self) -> Allocation:
        """Shares and powers that count, as booleans."""
        takes_part = self.members[0]
        return Allocation(self.hops, self.senders, takes_part, takes_part)


def gateway_nodes(routes: Routes | None, nodes: int) -> _Gateway:
    """Which of a cluster's nodes is its gateway, nodes first."""
    if routes is None:
        return None
    gateway = jnp.asarray(routes.gateway)
    return gateway[None] == jnp.arange(nodes).reshape(-1, *[1] * gateway.ndim)


def chain_of(problem: RoundProblem, segments: Segments) -> Chain:
    """The chain through the devices with blocks, along the problem's routes."""
    members = active_nodes(segments, axis=0, blocks=problem.workload.cluster_blocks)
    return Chain(members, gateway_nodes(problem.routes, len(members)))


class Messages(NamedTuple):
    """One number for every kind of message."""

    hop: PerHop  # activations and gradients
    move: PerMove  # parameters to the gateway and back, of every other node
    uplink: PerCluster  # gateway to base station


def at_gateway(values: Shaped[Array, "#J ..."], gateway: _Gateway) -> Shaped[Array, "..."]:
    """The gateway's entry of numbers by node."""
    found = values[0]
    if gateway is not None:
        for node in range(1, len(gateway)):
            found = jnp.where(gateway[node], values[node], found)
    return found


def gateway_gains(
    gain: Float[Array, "J J ..."], gateway: _Gateway
) -> tuple[Float[Array, "J ..."], Float[Array, "J ..."]]:
    """Gains from every node to the gateway and back, from gains sender first."""
    return at_gateway(jnp.swapaxes(gain, 0, 1), gateway), at_gateway(gain, gateway)


def at_others(values: Shaped[Array, "J ..."], gateway: _Gateway) -> Shaped[Array, "K ..."]:
    """Entries of all nodes but the gateway, where the control unit takes the gateway's place."""
    if gateway is None:
        return values[1:]
    return jnp.where(gateway[1:], values[:1], values[1:])


def _to_nodes(
    others: Float[Array, "K ..."], own: Float[Array, "..."], gateway: _Gateway
) -> Float[Array, "J ..."]:
    """Numbers by node from the gateway's ``own`` and from all others', as :func:`at_others`."""
    if gateway is None:
        return jnp.concatenate([own[None], others])
    of_control_unit = sum_nodes(jnp.where(gateway[1:], others, 0.0))
    of_control_unit = jnp.where(gateway[0], own, of_control_unit)
    return jnp.concatenate([of_control_unit[None], jnp.where(gateway[1:], own, others)])


def add_at_gateway(
    by_node: Float[Array, "J ..."], own: Broadcast, gateway: _Gateway
) -> Float[Array, "J ..."]:
    """Numbers by node, with one more at the gateway."""
    if gateway is None:
        return by_node.at[0].add(own)
    return by_node + jnp.where(gateway, own, 0.0)


def at_next(values: _Broadcast, chain: Chain) -> Num[Array, "J N *batch"]:
    """Each node's entry replaced by that of the node where its hop ends."""
    members = chain.members
    values = jnp.broadcast_to(values, members.shape)
    found = [at_gateway(values, chain.gateway)]
    for node in range(members.shape[0] - 1, 0, -1):
        found.append(jnp.where(members[node], values[node], found[-1]))
    return jnp.stack(found[::-1])


def ending_hops(values: PerNode, chain: Chain) -> list[tuple[PerNode, ActiveNodes]]:
    """Numbers by hop at the nodes where hops end, and which nodes these are; 0 at all others.

    With routes two hops may end at the gateway. So the last one has an entry to itself.
    """
    members, last = chain.members, values[0]
    moved = []
    for node in range(1, members.shape[0]):
        moved.append(jnp.where(members[node], last, 0.0))
        last = jnp.where(members[node], values[node], last)
    if chain.gateway is None:
        return [(jnp.stack([jnp.where(members[0], last, 0.0), *moved]), members)]
    along = members.at[0].set(False)
    at_gateway = chain.gateway & members[:1] & (chain.hops | ~members)
    return [
        (jnp.stack([jnp.zeros_like(last), *moved]), along),
        (jnp.where(at_gateway, last, 0.0), at_gateway),
    ]


def from_previous(values: PerNode, chain: Chain) -> PerNode:
    """Each node's entry replaced by the sum over nodes whose hop ends at it; 0 where none does."""
    return functools.reduce(jnp.add, (at_ends for at_ends, _ in ending_hops(values, chain)))


def gain_to_next(gain: Float[Array, "J J #N *#batch"], chain: Chain) -> PerNode:
    """Gain of every node's hop; gains sender first."""
    members = chain.members
    nodes = members.shape[0]
    order = jnp.arange(nodes).reshape(-1, *[1] * (members.ndim - 1))
    found = at_gateway(jnp.swapaxes(gain, 0, 1), chain.gateway)
    found = jnp.broadcast_to(found, members.shape)
    for after in range(nodes - 1, 0, -1):
        found = jnp.where(members[after] & (order < after), gain[:, after], found)
    return found


def at_senders(by_node: _Broadcast, chain: Chain) -> Messages:
    """A node's number for every message that it sends over D2D; the uplink gets the gateway's."""
    by_node = jnp.broadcast_to(by_node, chain.members.shape)
    own, others = at_gateway(by_node, chain.gateway), at_others(by_node, chain.gateway)
    return Messages(
        hop=jnp.stack([by_node, at_next(by_node, chain)]),
        move=jnp.stack([others, jnp.broadcast_to(own, others.shape)]),
        uplink=own,
    )


def at_receivers(by_node: _Broadcast, chain: Chain) -> Messages:
    """A node's number for every message that it receives over D2D, the gateway's for the downlink.

    The downlink takes the place of the uplink.
    """
    of_others = at_senders(by_node, chain)
    return of_others._replace(hop=of_others.hop[::-1], move=of_others.move[::-1])


def sum_by_sender(hop: PerHop, move: PerMove, chain: Chain) -> PerNode:
    """D2D messages summed by the node that sends them."""
    moves = _to_nodes(move[0], sum_nodes(move[1]), chain.gateway)
    return hop[0] + from_previous(hop[1], chain) + moves


def sum_by_receiver(hop: PerHop, move: PerMove, chain: Chain) -> PerNode:
    """D2D messages summed by the node that receives them."""
    moves = _to_nodes(move[1], sum_nodes(move[0]), chain.gateway)
    return from_previous(hop[0], chain) + hop[1] + moves
