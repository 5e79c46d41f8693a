"""The chain of active nodes of a cluster, and the messages along it.

A hop leads from an active node to the next one, at last back to the control unit.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from collapipe_jax.core.batch_axis import sum_nodes
from collapipe_jax.edge.cost.decision import ActiveNodes, PerCluster, PerHop, PerMove, PerNode

_Broadcast = Num[Array, "#J #N *#batch"]


class Messages(NamedTuple):
    """One number for every kind of message."""

    hop: PerHop  # activations and gradients
    move: PerMove
    uplink: PerCluster  # control unit to base station


def at_next_active(values: _Broadcast, active: ActiveNodes) -> Num[Array, "J N *batch"]:
    """Each node's entry replaced by that of the next active node, at last node 0's."""
    values = jnp.broadcast_to(values, active.shape)
    found = [values[0]]
    for node in range(active.shape[0] - 1, 0, -1):
        found.append(jnp.where(active[node], values[node], found[-1]))
    return jnp.stack(found[::-1])


def from_previous_active(values: PerNode, active: ActiveNodes) -> PerNode:
    """Each active node's entry replaced by that of the node whose hop ends at it.

    Node 0 gets the last active node's; idle nodes get 0.
    """
    last = values[0]
    moved = []
    for node in range(1, active.shape[0]):
        moved.append(jnp.where(active[node], last, 0.0))
        last = jnp.where(active[node], values[node], last)
    return jnp.stack([jnp.where(active[0], last, 0.0), *moved])


def gain_to_next(gain: Float[Array, "J J #N *#batch"], active: ActiveNodes) -> PerNode:
    """Gain from every node to the next active one, at last to node 0; gains sender first."""
    nodes = active.shape[0]
    order = jnp.arange(nodes).reshape(-1, *[1] * (active.ndim - 1))
    found = jnp.broadcast_to(gain[:, 0], active.shape)
    for after in range(nodes - 1, 0, -1):
        found = jnp.where(active[after] & (order < after), gain[:, after], found)
    return found


def at_senders(by_node: _Broadcast, active: ActiveNodes) -> Messages:
    """A node's number for every message that it sends over D2D; the uplink gets node 0's."""
    by_node = jnp.broadcast_to(by_node, active.shape)
    return Messages(
        hop=jnp.stack([by_node, at_next_active(by_node, active)]),
        move=jnp.stack([by_node[1:], jnp.broadcast_to(by_node[0], by_node[1:].shape)]),
        uplink=by_node[0],
    )


def at_receivers(by_node: _Broadcast, active: ActiveNodes) -> Messages:
    """A node's number for every message that it receives over D2D, and node 0's for the downlink.

    The downlink takes the place of the uplink.
    """
    of_others = at_senders(by_node, active)
    return of_others._replace(hop=of_others.hop[::-1], move=of_others.move[::-1])


def sum_by_sender(hop: PerHop, move: PerMove, active: ActiveNodes) -> PerNode:
    """D2D messages summed by the node that sends them."""
    moves = jnp.concatenate([sum_nodes(move[1])[None], move[0]])
    return hop[0] + from_previous_active(hop[1], active) + moves


def sum_by_receiver(hop: PerHop, move: PerMove, active: ActiveNodes) -> PerNode:
    """D2D messages summed by the node that receives them."""
    moves = jnp.concatenate([sum_nodes(move[0])[None], move[1]])
    return from_previous_active(hop[0], active) + hop[1] + moves
