"""Who takes part in a round."""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from collapipe_jax.learning.models.layers import Params


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
