"""Optimiser state that follows its blocks to other devices, docs/system-model.md, section 12.

A device that gives blocks away sends their moments to its control unit before the round: at full
power, on the whole D2D band, on which nothing else is on air then. With the blocks' weights they
go on to the new devices. All of this is fixed with the partition but the rate of the last way.
"""

import jax.numpy as jnp
from jaxtyping import Array, Num

from collapipe_jax.core.batch_axis import sum_nodes
from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.computing import product_or_zero
from collapipe_jax.edge.cost.decision import Segments
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.terms.addition import PartitionAddition
from collapipe_jax.edge.network.channel import d2d_sinr, narrowed_bit_time_s

_ByDevice = Num[Array, "K *#any"]


def changed_blocks(before: _ByDevice, segments: _ByDevice) -> tuple[_ByDevice, _ByDevice]:
    """Blocks that every device takes over from others, and blocks that it gives away.

    Blocks lie on the devices in the order of their index. A cluster that held nothing, or sits
    out, changes nothing. Source: docs/system-model.md (36).
    """
    old_end, end = jnp.cumsum(before, axis=0), jnp.cumsum(segments, axis=0)
    first = jnp.maximum(old_end - before, end - segments)
    kept = jnp.maximum(jnp.minimum(old_end, end) - first, 0)
    changes = jnp.any(before > 0, axis=0) & jnp.any(segments > 0, axis=0)
    return jnp.where(changes, segments - kept, 0.0), jnp.where(changes, before - kept, 0.0)


def moving_moments(problem: RoundProblem, segments: Segments) -> PartitionAddition:
    """Optimiser state that segments move, if it counts.

    What is behind a dead link is lost, and costs nothing. Source: docs/system-model.md (37).

    Raises:
      InputError: if the round has gateways.
    """
    switching, radio = problem.switching, problem.radio
    if switching is None or switching.block_moment_bits is None:
        return PartitionAddition()
    if problem.routes is not None:
        remedy = "Set it to False, or choose a policy without gateways"
        raise InputError("control.moments_move", True, "moments know no gateways", remedy)
    before = jnp.moveaxis(switching.segments, 1, 0)
    taken, given = changed_blocks(before, segments)
    nodes = problem.by_node
    power_w = nodes.d2d_power_max_w[1:]
    sinr = d2d_sinr(radio, power_w, nodes.d2d_gain[1:, 0], 1.0, 0.0)
    sending_s = given * switching.block_moment_bits
    sending_s = sending_s * narrowed_bit_time_s(radio, radio.d2d_bandwidth_hz, sinr)
    sending_s = jnp.where(jnp.isfinite(sending_s), sending_s, 0.0)
    return_s = sum_nodes(sending_s)
    received_j = product_or_zero(problem.compute.receive_power_w, return_s)
    sent_j = power_w / radio.amplifier_efficiency * sending_s
    # A device sends in the time before, and gets what it takes over with its blocks.
    taken_bits = taken * switching.block_moment_bits
    return PartitionAddition(
        move_bits=jnp.stack([jnp.zeros_like(taken_bits), taken_bits]),
        prepare_s=return_s,
        node_j=jnp.concatenate([received_j[None], sent_j]),
    )
