"""Weights of clients in a mean, the mean itself, and the micro-batches that links lose."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

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


# Erasures of micro-batches, and the weights that keep the gradient unbiased.


class ErasureLaw(NamedTuple):
    """Law of the erasures; the default is the one that the bound assumes."""

    # One draw takes all micro-batches of a cluster in a round, or none: fading that outlasts the
    # round. Otherwise erasures are independent.
    per_round: bool = False
    # Survivors of all clusters weigh the same, see ``pool_survivors``. Otherwise each weighs by its
    # own survival probability.
    pooled: bool = False


def cluster_example_weights(
    law: ErasureLaw,
    step_key: Key[Array, ""],
    round_key: Key[Array, ""],
    batch_size: int,
    micro_batches: Int[Array, " N"],
    loss_probability: Float[Array, " N"],
    shares: Float[Array, " N"],
) -> Float[Array, "N B"]:
    """Weights of all examples of a local step; arguments as in ``federated``.

    ``law`` and ``batch_size`` are static. ``round_key`` is the same in all steps of a round.
    """
    key = round_key if law.per_round else step_key
    drawn = jnp.ones_like(micro_batches) if law.per_round else micro_batches
    weights = jax.vmap(sample_example_weights, in_axes=(0, None, 0, 0))(
        jax.random.split(key, shares.size), batch_size, drawn, loss_probability
    )
    return pool_survivors(weights, shares) if law.pooled else weights


def sample_example_weights(
    key: Key[Array, ""],
    batch_size: int,
    micro_batches: Int[Array, ""] | int,
    loss_probability: Float[Array, ""] | float,
    count: Int[Array, ""] | int | None = None,
) -> Float[Array, " B"]:
    """Weight of every example's loss under one draw of erasures.

    The mini-batch is cut in M micro-batches of ``B / M`` consecutive examples. Each is erased
    independently with probability P, and the survivors weigh ``1 / (1 - P)``. The expected
    weight is 1 and its variance ``P / (1 - P)``, which adds the second term of
    docs/system-model.md (17) to the sampling noise.

    Args:
      key: scalar random key.
      batch_size: ``B`` (static).
      micro_batches: ``M`` in 1 .. B, an array value. Where it does not divide B, the
        micro-batches differ by one example at most.
      loss_probability: ``P`` in [0, 1], an array value.
      count: of the examples that are cut, an array value; those behind have any weight. All by
        default.

    Returns:
      ``[B]`` float32. As P approaches 1 survivors weigh up to ``2^23``, the resolution of the
      draw, and the mean is 1 up to ``2^-24 / (1 - P)``. Nearer to 1, and at ``P = 1``, all
      weights are 0.
    """
    probability = jnp.asarray(loss_probability, jnp.float32)
    cut = batch_size if count is None else jnp.maximum(count, 1)
    micro_batch = jnp.arange(batch_size) * micro_batches // cut
    survives = jax.random.uniform(key, (batch_size,))[micro_batch] >= probability
    scale = 1.0 / jnp.maximum(1.0 - probability, 2.0**-24)
    return jnp.where(survives, scale, 0.0)


def pool_survivors(
    example_weights: Float[Array, "N B"], shares: Float[Array, " N"]
) -> Float[Array, "N B"]:
    """Weights of a mean over all survivors, whichever cluster they are of.

    A server without knowledge of the losses computes this mean. It is biased: a cluster counts
    for its share times its survival probability.

    Returns:
      ``1 / sum_n w_n s_n`` for survivors, those of weight above 0, with ``s_n`` the surviving
      share of cluster n's mini-batch; all 0 without survivors.
    """
    survives = (example_weights > 0.0).astype(jnp.float32)
    survived = jnp.tensordot(shares, survives.mean(axis=1), axes=1)
    return survives / jnp.where(survived > 0.0, survived, 1.0)


def loss_per_token(
    losses: Float[Array, "... B"],
    tokens: Float[Array, "... A"],
    example_weights: Float[Array, "... B"],
) -> Float[Array, "..."]:
    """Loss that a client descends: ``sum_b e_b loss_b / sum_a tokens_a``, 0 without a token.

    An example's loss is the sum over its tokens; those of erased examples are counted too. With
    the tokens of all examples, losses of a part of them give its share in the loss.
    """
    return (example_weights * losses).sum(-1) / jnp.maximum(tokens.sum(-1), 1.0)
