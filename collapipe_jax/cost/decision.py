"""What is decided in a round: a partition, and an allocation of shares and powers."""

from typing import NamedTuple

import jax.numpy as jnp
from flax import struct
from jax import Array


@struct.dataclass(kw_only=True)
class Decision:
    """The decision of one round, docs/system-model.md, section 5.

    Attributes:
      segments: encoder blocks on every device, integers, ``[N, K]``; a row of zeros
        means that the cluster sits out.
      micro_batches: integers, ``[N]``.
      d2d_share: share of the D2D band for the hop that starts at a node, ``[N, K + 1]``;
        0 on idle nodes.
      d2d_power_w: ``[N, K + 1]``; of no effect on idle nodes.
      d2e_share: share of the D2E band, ``[N]``.
      d2e_power_w: ``[N]``.
    """

    segments: Array
    micro_batches: Array
    d2d_share: Array
    d2d_power_w: Array
    d2e_share: Array
    d2e_power_w: Array


class Allocation(NamedTuple):
    """Shares and powers, or one number for each of them; nodes first, ``P = K + 1``.

    Attributes:
      d2d_share, d2d_power: ``[P, N, ...]``.
      d2e_share, d2e_power: ``[N, ...]``.
    """

    d2d_share: Array
    d2d_power: Array
    d2e_share: Array
    d2e_power: Array


def participates(segments: Array) -> Array:
    """Clusters that take part in the round. ``[..., K] -> [...]``."""
    return jnp.sum(segments, axis=-1) > 0


def active_nodes(segments: Array) -> Array:
    """Nodes that compute: devices with blocks, and the control unit of a participating cluster.

    Args:
      segments: ``[..., K]``.

    Returns:
      ``[..., K + 1]``, boolean.
    """
    return jnp.concatenate([participates(segments)[..., None], segments > 0], axis=-1)


def decision_allocation(decision: Decision) -> Allocation:
    """Shares and powers in watts of a decision, nodes first."""
    return Allocation(
        d2d_share=jnp.swapaxes(decision.d2d_share, 0, 1),
        d2d_power=jnp.swapaxes(decision.d2d_power_w, 0, 1),
        d2e_share=decision.d2e_share,
        d2e_power=decision.d2e_power_w,
    )


def make_decision(
    segments: Array, micro_batches: Array, allocation: Allocation, active: Array
) -> Decision:
    """A decision from its partition and its allocation, 0 where idle.

    Args:
      segments: whole numbers, ``[N, K, ...]``.
      micro_batches: whole numbers, ``[N, ...]``.
      allocation: powers in watts.
      active: nodes of the partition, ``[P, N, ...]``.
    """
    d2d_share = jnp.where(active, allocation.d2d_share, 0.0)
    d2d_power_w = jnp.where(active, allocation.d2d_power, 0.0)
    return Decision(
        segments=segments.astype(jnp.int32),
        micro_batches=micro_batches.astype(jnp.int32),
        d2d_share=jnp.swapaxes(d2d_share, 0, 1),
        d2d_power_w=jnp.swapaxes(d2d_power_w, 0, 1),
        d2e_share=jnp.where(active[0], allocation.d2e_share, 0.0),
        d2e_power_w=jnp.where(active[0], allocation.d2e_power, 0.0),
    )
