"""What is decided in a round, and the chain of nodes it stands for."""

from typing import NamedTuple

import jax
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


def is_present(segments: Array) -> Array:
    """Clusters that take part in the round. ``[..., K] -> [...]``."""
    return jnp.sum(segments, axis=-1) > 0


def active_nodes(segments: Array) -> Array:
    """Nodes that compute: devices with blocks, and the control unit of a present cluster.

    Args:
      segments: ``[..., K]``.

    Returns:
      ``[..., K + 1]``, boolean.
    """
    return jnp.concatenate([is_present(segments)[..., None], segments > 0], axis=-1)


def next_active(active: Array) -> Array:
    """Node to which each node's hop goes: the next active one, at last the control unit.

    Args:
      active: ``[..., K + 1]``.

    Returns:
      Indices, ``[..., K + 1]``; those of idle nodes are valid and of no meaning.
    """
    nodes = active.shape[-1]
    index = jnp.where(active, jnp.arange(nodes), nodes)
    from_here = jax.lax.cummin(index, axis=index.ndim - 1, reverse=True)
    after = jnp.concatenate([from_here[..., 1:], jnp.full_like(index[..., :1], nodes)], axis=-1)
    return jnp.where(after == nodes, 0, after)


class Hops(NamedTuple):
    """A value for the forward and for the backward message of every hop.

    Attributes:
      forward: by the node where the hop starts, ``[N, K + 1]``.
      backward: of the same hop, sent by the node where it ends.
    """

    forward: Array
    backward: Array
