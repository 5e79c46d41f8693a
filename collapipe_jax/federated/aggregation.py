"""Aggregation of the clients' parameters and the server's step on the mean."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, PyTree

from collapipe_jax.pipeline.mesh import CLUSTER


def participant_shares(
    weights: Float[Array, " N"], participates: Bool[Array, " N"]
) -> Float[Array, " N"]:
    """Weights rescaled to sum 1 over the participants; all 0 without any."""
    held = jnp.where(participates, weights, 0.0)
    total = held.sum()
    return held / jnp.where(total > 0.0, total, 1.0)


def aggregate(
    copies: PyTree[Float[Array, "N ..."]], shares: Float[Array, " N"], mesh: Mesh | None = None
) -> PyTree[Float[Array, "..."]]:
    """Weighted mean of the participants' parameters or gradients; 0 without participants.

    Source: docs/system-model.md, section 1, step 5 (McMahan et al. 1602.05629).

    Args:
      copies: leaves ``[N, ...]``. Those of share 0 are never read, NaN included.
      shares: as in ``federated``.
      mesh: where each cluster has devices of its own: the mean is one sum over the mesh.
    """
    if mesh is None:

        def mean(leaf: Array) -> Array:
            counted = (shares > 0.0).reshape(-1, *[1] * (leaf.ndim - 1))
            return jnp.tensordot(shares, jnp.where(counted, leaf, 0.0), axes=1)

        return jax.tree.map(mean, copies)

    def on_device(copies: Any, shares: Array) -> Any:
        def mean(leaf: Array) -> Array:
            return jax.lax.psum(jnp.where(shares[0] > 0.0, shares[0] * leaf[0], 0.0), CLUSTER)

        return jax.tree.map(mean, copies)

    along = PartitionSpec(CLUSTER)
    return jax.shard_map(
        on_device, mesh=mesh, in_specs=(along, along), out_specs=PartitionSpec(), check_vma=False
    )(copies, shares)


def server_update(
    previous: PyTree[Float[Array, "..."]],
    mean: PyTree[Float[Array, "..."]],
    server_state: optax.OptState,
    optimizer: optax.GradientTransformation,
    anyone: Bool[Array, ""] | bool,
) -> tuple[PyTree[Float[Array, "..."]], optax.OptState]:
    """Parameters and state after the server's step on the pseudo-gradient ``previous - mean``.

    Source: Reddi et al. 2003.00295. Plain averaging is ``optax.sgd(1.0)``.

    Args:
      previous: global parameters at the start of the round.
      mean: aggregated parameters.
      server_state: state of the optimiser.
      optimizer: the server's optimiser.
      anyone: where False, neither parameters nor state change.
    """
    pseudo_gradient = jax.tree.map(jnp.subtract, previous, mean)
    updates, stepped = optimizer.update(pseudo_gradient, server_state, previous)
    moved = optax.apply_updates(previous, updates)
    return optax.tree.where(anyone, (moved, stepped), (previous, server_state))
