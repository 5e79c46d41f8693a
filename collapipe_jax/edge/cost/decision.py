"""What is decided in a round: a partition, and an allocation of shares and powers."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

from collapipe_jax.core.quantity import Struct, part, positive, quantity

# Shapes of a round's arrays: nodes first, ``J = K + 1``, clusters next, then any batch axes.
#
# A single network has no batch axes. A problem with batch axes is one whose every leaf ends
# with them; they broadcast against those of its partition.

PerNode = Float[Array, "J N *batch"]
PerDevice = Float[Array, "K N *batch"]
PerCluster = Float[Array, "N *batch"]
PerRound = Float[Array, "*batch"]
PerHop = Float[Array, "2 J N *batch"]
"""Of a hop's forward and backward message, by the node where the hop starts."""
PerMove = Float[Array, "2 K N *batch"]
"""Of parameters, collected from a device and distributed to it."""
CrossGain = Float[Array, "J N J N *#batch"]
ActiveNodes = Bool[Array, "J N *batch"]
Segments = Num[Array, "K N *batch"]
MicroBatches = Num[Array, "N *batch"]
Broadcast = Float[Array, "..."]
"""Of any shape that broadcasts with the others'."""


class Routes(Struct):
    """Ways of a pipeline's parameters, docs/system-model.md, section 18.

    Example:
      >>> import jax.numpy as jnp
      >>> import collapipe_jax as cp
      >>> routes = cp.Routes(gateway=jnp.array([0, 2]), broadcast=jnp.array(True))
    """

    gateway: Array = quantity(
        "node that talks to the base station: 0 is the control unit, `k` is device `k`",
        "g",
        "N",
        whole=True,
    )
    broadcast: Array = quantity(
        "whether parameters come down to all gateways in one transmission, 1 or 0",
        bounds=">= 0 and <= 1",
        whole=True,
    )


class Decision(Struct):
    """The decision of one round, docs/system-model.md, section 5.

    It is a pytree of arrays; ``replace`` gives a changed copy.

    Example:
      >>> import collapipe_jax as cp
      >>> problem = cp.read_network("docs/examples/edge.network.json")
      >>> decision = cp.read_decision("docs/examples/edge.decision.json", problem)
      >>> print(decision.segments)  # [N, K]
      [[3 0 3]
       [1 2 3]]
      >>> other = decision.replace(d2e_power_w=0.5 * decision.d2e_power_w)
    """

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
    d2e_power_w: Array = quantity("D2E power of a gateway", "p^U", "N")
    routes: Routes | None = part(
        "gateways and broadcast; by default control units talk to the base station, each on its "
        "share of the band",
        default=None,
    )


_TIERS = ("devices", "control_units", "hierarchical")
"""Who trains and who talks to the base station in a data-parallel round."""


class ClientDecision(Struct):
    """The decision of one round of a data-parallel policy, docs/system-model.md, section 6.

    Clients train, and senders talk to the base station. Both are devices by default. In the tier
    ``control_units`` both are control units; in ``hierarchical`` devices train and send to their
    control unit. Arrays ``[N, K]`` of control units are ``[N, 1]``.

    Example:
      >>> import jax.numpy as jnp
      >>> import collapipe_jax as cp
      >>> decision = cp.ClientDecision(  # 1 cluster of 2 devices, 8 samples each
      ...     samples=jnp.array([[8, 8]]),
      ...     client_blocks=jnp.array(4),
      ...     d2e_share=jnp.array([[0.5, 0.5]]),
      ...     d2e_power_w=jnp.array([[0.2, 0.2]]),
      ...     whole_model=True,
      ... )
      >>> int(decision.samples.sum())
      16
    """

    samples: Array = quantity(
        "a client's part of the cluster's mini-batch; one without any is left out",
        "B_k",
        "NK",
        whole=True,
    )
    client_blocks: Array = quantity("encoder blocks on every client", "L_c", whole=True)
    accumulation: Array = positive(
        "pieces of a client's part, one number for all or of each; it keeps the activations of one "
        "and adds up gradients",
        "A",
        whole=True,
        default=1,
    )
    micro_batches: Array = positive(
        "micro-batches of a client's part of a split model, as far as it has samples; they are "
        "sent one by one",
        "M",
        whole=True,
        default=1,
    )
    d2e_share: Array = quantity("a sender's share of the D2E band", shape="NK")
    d2e_power_w: Array = quantity("of a sender; of no effect on one that is left out", shape="NK")
    whole_model: bool = quantity(
        "whether a client holds the decoder too and sends nothing but parameters; otherwise the "
        "edge server runs the other blocks and the decoder",
        static=True,
    )
    broadcast: bool = quantity(
        "whether parameters come down to all senders, or devices, in one transmission",
        static=True,
        default=False,
    )
    tier: str = quantity("who trains, and who sends", choices=_TIERS, default="devices")


class Allocation(NamedTuple):
    """Shares and powers, or one number for each of them."""

    d2d_share: PerNode
    d2d_power: PerNode
    d2e_share: PerCluster
    d2e_power: PerCluster


def participates(
    segments: Num[Array, "..."], axis: int = -1, blocks: Num[Array, "..."] | int = 1
) -> Bool[Array, "..."]:
    """Clusters that take part in the round: with blocks, or all where there are none to hold.

    Args:
      segments: with devices along an axis.
      axis: that one.
      blocks: that a cluster has to hold.
    """
    return (jnp.sum(segments, axis=axis) > 0) | (jnp.asarray(blocks) == 0)


def active_nodes(
    segments: Num[Array, "..."], axis: int = -1, blocks: Num[Array, "..."] | int = 1
) -> Bool[Array, "..."]:
    """Nodes that compute: devices with blocks, and the control unit of a participating cluster.

    Arguments are those of :func:`participates`. Nodes are along the axis of devices, one more.
    """
    takes_part = jnp.expand_dims(participates(segments, axis, blocks), axis)
    return jnp.concatenate([takes_part, segments > 0], axis=axis)


def decision_partition(decision: Decision) -> tuple[Segments, MicroBatches]:
    """Segments, nodes first, and micro-batches of a decision."""
    return jnp.swapaxes(decision.segments, 0, 1), decision.micro_batches


def decision_allocation(decision: Decision) -> Allocation:
    """Shares and powers in watts of a decision, nodes first; what is not above 0 is 0.

    At a power of -0.0 one over the rate would be minus infinity, and lose every maximum.
    """
    allocation = Allocation(
        d2d_share=jnp.swapaxes(decision.d2d_share, 0, 1),
        d2d_power=jnp.swapaxes(decision.d2d_power_w, 0, 1),
        d2e_share=decision.d2e_share,
        d2e_power=decision.d2e_power_w,
    )
    return jax.tree.map(lambda number: jnp.where(number > 0, number, 0.0), allocation)


def fill_idle(allocation: Allocation, used: Allocation, value: float) -> Allocation:
    """The allocation with one number in the place of all that is not ``used``, as booleans."""
    return jax.tree.map(lambda use, number: jnp.where(use, number, value), used, allocation)


def make_decision(
    segments: Segments,
    micro_batches: MicroBatches,
    allocation: Allocation,
    used: Allocation,
    routes: Routes | None = None,
) -> Decision:
    """A decision from its partition and its allocation with powers in watts, 0 where idle."""
    allocation = fill_idle(allocation, used, 0.0)
    return Decision(
        segments=jnp.swapaxes(segments, 0, 1).astype(jnp.int32),
        micro_batches=micro_batches.astype(jnp.int32),
        d2d_share=jnp.swapaxes(allocation.d2d_share, 0, 1),
        d2d_power_w=jnp.swapaxes(allocation.d2d_power, 0, 1),
        d2e_share=allocation.d2e_share,
        d2e_power_w=allocation.d2e_power,
        routes=routes,
    )
