"""What is decided in a round: a partition, and an allocation of shares and powers."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.quantity import Struct, positive, quantity


class Decision(Struct):
    """The decision of one round, docs/system-model.md, section 5."""

    segments: Array = quantity(
        "encoder blocks on every device; a cluster with a row of zeros does not participate",
        r"\delta",
        "NK",
        unit="blocks",
        whole=True,
    )
    micro_batches: Array = positive("micro-batches of a mini-batch", "M", "N", whole=True)
    d2d_share: Array = quantity("share of the D2D band; 0 on idle nodes", r"\alpha", "NJ")
    d2d_power_w: Array = quantity("D2D power of a node; of no effect on idle nodes", "p", "NJ")
    d2e_share: Array = quantity("share of the D2E band", r"\beta", "N")
    d2e_power_w: Array = quantity("D2E power of a control unit", "p^U", "N")


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
