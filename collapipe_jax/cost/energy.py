"""Energy of the nodes in a round: computing, and time on air."""

import jax.numpy as jnp

from collapipe_jax.batching import sum_nodes
from collapipe_jax.cost.chain import Messages, of_senders, sum_by_sender
from collapipe_jax.cost.decision import Allocation
from collapipe_jax.cost.fixed_partition import FixedPartition
from collapipe_jax.cost.latency import AirTimes
from collapipe_jax.cost.shapes import PerCluster, PerNode


def message_energy_j(fixed: FixedPartition, allocation: Allocation, air: AirTimes) -> Messages:
    """Energy on air in a round, by message."""
    power_w = of_senders(allocation.d2d_power, fixed.active)
    steps = fixed.local_steps * fixed.micro_batches
    return Messages(
        hop=power_w.hop * (steps * air.hop_s),
        move=power_w.move * air.move_s,
        uplink=allocation.d2e_power * (steps * air.uplink_s + air.model_uplink_s),
    )


def energy_cost(fixed: FixedPartition, message_j: Messages) -> PerCluster:
    """Energy of every cluster at the nodes' unit costs.

    Summed by message, which spares the sums by node.
    """
    cost = fixed.sender_cost_per_j
    hops = sum_nodes(sum_nodes(cost.hop * message_j.hop))
    moves = sum_nodes(sum_nodes(cost.move * message_j.move))
    return hops + moves + cost.uplink * message_j.uplink + fixed.computing_cost


def air_energy_j(fixed: FixedPartition, message_j: Messages) -> PerNode:
    """Energy on air of every node, 0 where idle."""
    by_node = sum_by_sender(message_j.hop, message_j.move, fixed.active)
    return jnp.where(fixed.active, by_node.at[0].add(message_j.uplink), 0.0)


def node_energy_j(fixed: FixedPartition, message_j: Messages) -> PerNode:
    """Energy of every node in the round. Source: docs/system-model.md (16)."""
    return fixed.computing_j + air_energy_j(fixed, message_j)
