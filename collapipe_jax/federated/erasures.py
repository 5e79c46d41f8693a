"""Micro-batches that the channel erases, and the weights that keep the gradient unbiased."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class ErasureLaw(NamedTuple):
    """What is drawn together, and what survivors weigh; by default as the bound assumes.

    Attributes:
      per_round: one draw takes all micro-batches of a cluster in a round, or none: fading
        that outlasts the round. Otherwise each is lost by itself.
      pooled: survivors of all clusters weigh the same, see ``pool_survivors``.
        Otherwise each weighs by its own chance to survive.
    """

    per_round: bool = False
    pooled: bool = False


AS_ASSUMED = ErasureLaw()


def cluster_weights(
    law: ErasureLaw,
    step_key: jax.Array,
    round_key: jax.Array,
    batch_size: int,
    micro_batches: jax.Array,
    loss_probability: jax.Array,
    shares: jax.Array,
) -> jax.Array:
    """Weights of all examples of a local step.

    Args:
      law: what is drawn together (static).
      step_key: random key of the step's erasures.
      round_key: random key of the round's, the same in all of its steps.
      batch_size: ``B`` (static).
      micro_batches: ``M_n [N]``.
      loss_probability: ``P_n [N]``.
      shares: ``w_n [N]`` over the clusters present.

    Returns:
      ``[N, B]``.
    """
    clusters = shares.shape[0]
    key = round_key if law.per_round else step_key
    drawn = jnp.ones_like(micro_batches) if law.per_round else micro_batches
    weights = jax.vmap(sample_example_weights, in_axes=(0, None, 0, 0))(
        jax.random.split(key, clusters), batch_size, drawn, loss_probability
    )
    return pool_survivors(weights, shares) if law.pooled else weights


def sample_example_weights(
    key: jax.Array,
    batch_size: int,
    micro_batches: jax.Array,
    loss_probability: jax.Array,
) -> jax.Array:
    """Weight of every example's loss under one draw of erasures.

    The mini-batch is cut in M micro-batches of ``B / M`` consecutive examples; each is
    erased by itself with probability P, and the survivors weigh ``1 / (1 - P)``.
    The expected weight is 1 and its variance ``P / (1 - P)``, which puts the second term
    of docs/system-model.md (17) on top of the sampling noise.

    Args:
      key: scalar random key.
      batch_size: ``B`` (static).
      micro_batches: ``M``, an array value in 1 .. B: no compilation for a new one. Where
        it does not divide B, the micro-batches differ by one example at most.
      loss_probability: ``P`` in [0, 1], an array value.

    Returns:
      ``[B]`` float32. As P approaches 1 survivors weigh up to ``2^24``, the largest that
      float32 tells apart, and are as rare, so the mean stays 1; there is no cap. At
      ``P = 1`` exactly nothing ever survives: all weights are 0 and the mean is lost.
    """
    probability = jnp.asarray(loss_probability, jnp.float32)
    micro_batch = jnp.arange(batch_size) * micro_batches // batch_size
    survives = jax.random.uniform(key, (batch_size,))[micro_batch] >= probability
    scale = 1.0 / jnp.maximum(1.0 - probability, 2.0**-24)
    return jnp.where(survives, scale, 0.0)


def pool_survivors(example_weights: jax.Array, shares: jax.Array) -> jax.Array:
    """The weights of a mean over all survivors, whichever cluster they are of.

    What a server does that knows of no losses. It is biased: a cluster counts for its
    share times its survival probability, so those with good links pull harder.

    Args:
      example_weights: ``[N, B]`` of ``sample_example_weights``; only whether they are 0
        matters.
      shares: ``w_n [N]`` of the clusters present, 0 elsewhere.

    Returns:
      ``[N, B]``: ``1 / sum_n w_n s_n`` where an example survived, with ``s_n`` the surviving
      share of cluster n's mini-batch; all 0 if nothing did.
    """
    survives = (example_weights > 0.0).astype(jnp.float32)
    survived = jnp.tensordot(shares, survives.mean(axis=1), axes=1)
    return survives / jnp.where(survived > 0.0, survived, 1.0)
