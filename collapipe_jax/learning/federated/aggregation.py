"""Weights of clients in a mean, and the mean itself."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from collapipe_jax.learning.models.layers import Params


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


class Participation(NamedTuple):
    """Who takes part in a round, and in what."""

    shares: Array  # as in ``federated``
    presence: Array  # share of the weight of all clients that participates, ``[]``
    # Rows of tables that every client reads ``[N, V]``; none where no row has a factor of its own
    met: Mapping[str, Array]
    # Which parameters a client sends, broadcast with the leaves; None where these are all
    sent: Params | None = None

    @property
    def fixed_shares(self) -> Array:
        """Shares of the weight of all clients: an absence changes no other's."""
        return self.shares * self.presence


def participation_of(
    weights: Float[Array, " N"],
    participates: Bool[Array, " N"],
    shares: Array,
    met: Mapping[str, Array],
    sent: Params | None = None,
) -> Participation:
    """Who takes part in a round.

    Args:
      weights, participates: of the clusters.
      shares: of the clusters or their clients.
      met: rows of tables that each of these reads.
      sent: as in :class:`Participation`.
    """
    total = weights.sum()
    presence = jnp.where(participates, weights, 0.0).sum() / jnp.where(total > 0.0, total, 1.0)
    return Participation(shares, presence, met, sent)
