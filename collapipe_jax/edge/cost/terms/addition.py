"""What a term adds to a round: bits, seconds, joules, and costs of the objective.

A term is a function of the problem and of who takes part. It looks itself whether it is on, and
adds zeros otherwise. Numbers broadcast against senders, devices and nodes.
"""

from typing import NamedTuple

from jaxtyping import Array, Bool, Num

from collapipe_jax.edge.cost.decision import Broadcast


class Senders(NamedTuple):
    """Who talks to the base station in a round: gateways, or devices as clients."""

    takes_part: Bool[Array, "..."]
    model_bits: Broadcast | float  # parameters that one receives
    update_bits: Broadcast | float  # the same on their way up
    nodes: Broadcast | float  # that one speaks for, itself included
    power_w: Broadcast  # that one draws while it computes
    samples: Num[Array, "..."]  # of a local step that one speaks for


class SenderAddition(NamedTuple):
    """What every sender exchanges with the base station beside its parameters."""

    upload_bits: Broadcast | float = 0.0
    shared_bits: Broadcast | float = 0.0  # that it receives, the same for all
    own_bits: Broadcast | float = 0.0  # that it receives, for it alone
    upload_s: Broadcast | float = 0.0  # time besides these bits
    node_j: Broadcast | float = 0.0  # energy besides these bits


class PartitionAddition(NamedTuple):
    """What a pipeline's partition adds inside of a cluster."""

    move_bits: Broadcast | float = 0.0  # collected from a device and distributed to it
    prepare_s: Broadcast | float = 0.0  # before blocks are distributed
    node_j: Broadcast | float = 0.0
    cost: Broadcast | float = 0.0  # in units of (P2)
