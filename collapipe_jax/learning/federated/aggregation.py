"""Weights of clients in a mean, and the mean itself."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree


def participant_shares(
    weights: Float[Array, " N"], participates: Bool[Array, " N"]
) -> Float[Array, " N"]:
    """Weights rescaled to sum 1 over the participants; all 0 without any."""
    held = jnp.where(participates, weights, 0.0)
    total = held.sum()
    return held / jnp.where(total > 0.0, total, 1.0)


def aggregate(
    copies: PyTree[Float[Array, "N ..."]],
    shares: Float[Array, " N"],
) -> PyTree[Float[Array, "..."]]:
    """Weighted mean of the participants' parameters or gradients; 0 without participants.

    Source: docs/system-model.md, section 1, step 5 (McMahan et al. 1602.05629).

    Args:
      copies: leaves ``[N, ...]``. Those of share 0 are never read, NaN included.
      shares: as in ``federated``.
    """

    def mean(leaf: Array) -> Array:
        counted = (shares > 0.0).reshape(-1, *[1] * (leaf.ndim - 1))
        return jnp.tensordot(shares, jnp.where(counted, leaf, 0.0), axes=1)

    return jax.tree.map(mean, copies)
