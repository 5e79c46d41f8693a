"""Reports and grants: what a decision needs to be made and to be known.

Before a round every node that takes part reports its channel and its queue, and is granted
its blocks, shares and powers. A sender passes both on for the nodes it speaks for. They travel as
parameters do: on the whole D2D band of a cluster, and on the sender's share of the D2E band.
"""

import jax.numpy as jnp

from collapipe_jax.edge.cost.chain import at_others, chain_of
from collapipe_jax.edge.cost.decision import Segments
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.terms.addition import PartitionAddition, SenderAddition, Senders


def d2e_signals(problem: RoundProblem, senders: Senders) -> SenderAddition:
    """Reports and grants between senders and the base station, if they count.

    Source: docs/system-model.md (43).
    """
    signals = problem.signalling
    if signals is None:
        return SenderAddition()
    return SenderAddition(
        upload_bits=senders.nodes * signals.report_bits,
        own_bits=senders.nodes * signals.grant_bits,
    )


def d2d_signals(problem: RoundProblem, segments: Segments) -> PartitionAddition:
    """Reports and grants between the gateway and the other active nodes, if they count."""
    signals = problem.signalling
    if signals is None:
        return PartitionAddition()
    bits = jnp.stack(jnp.broadcast_arrays(signals.report_bits, signals.grant_bits))
    bits = bits.reshape(2, *[1] * (segments.ndim - bits.ndim + 1), *bits.shape[1:])
    chain = chain_of(problem, segments)
    return PartitionAddition(move_bits=jnp.where(at_others(chain.active, chain.gateway), bits, 0.0))
