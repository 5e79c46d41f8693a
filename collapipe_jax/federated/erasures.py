"""Micro-batches that the channel erases, and the weights that keep the gradient unbiased."""

import jax
import jax.numpy as jnp


def sample_example_weights(
    key: jax.Array,
    batch_size: int,
    micro_batches: jax.Array,
    loss_probability: jax.Array,
) -> jax.Array:
    """Weight of every example's loss under one draw of erasures.

    The mini-batch is cut in M micro-batches of `B / M` consecutive examples; each is
    erased by itself with probability P, and the survivors weigh `1 / (1 - P)`.
    The expected weight is 1 and its variance `P / (1 - P)`, which puts the second term
    of docs/system-model.md (17) on top of the sampling noise.

    Args:
      key: Scalar random key.
      batch_size: `B` (static).
      micro_batches: `M`, an array value in 1 .. B: no compilation for a new one. Where
        it does not divide B, the micro-batches differ by one example at most.
      loss_probability: `P` in [0, 1], an array value.

    Returns:
      `[B]` float32. As P approaches 1 survivors weigh up to `2^24`, the largest that
      float32 tells apart, and are as rare, so the mean stays 1; there is no cap. At
      `P = 1` exactly nothing ever survives: all weights are 0 and the mean is lost.
    """
    probability = jnp.asarray(loss_probability, jnp.float32)
    micro_batch = jnp.arange(batch_size) * micro_batches // batch_size
    survives = jax.random.uniform(key, (batch_size,))[micro_batch] >= probability
    scale = 1.0 / jnp.maximum(1.0 - probability, 2.0**-24)
    return jnp.where(survives, scale, 0.0)
