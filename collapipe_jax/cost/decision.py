"""What is decided in a round, and the chain of nodes it stands for."""

from typing import NamedTuple

import jax
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
