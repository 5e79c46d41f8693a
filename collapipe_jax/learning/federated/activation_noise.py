"""Noise on the activations that a cluster sends to the edge server, against their readers."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

_SITE = 0x75706C6B  # folded into the keys of examples, whose layers have small numbers


def with_noise(
    activations: Float[Array, "B S h"], keys: Key[Array, " B"], noise: Any
) -> Float[Array, "B S h"]:
    """Activations with Gaussian noise, ``noise`` times their root mean square at each position.

    The size of the noise has no gradient, as if it was a constant.

    Args:
      activations: of examples.
      keys: of the examples; a draw is a function of its example's alone.
      noise: deviation over the root mean square.
    """
    size = jnp.sqrt(jnp.mean(jnp.square(activations), axis=-1, keepdims=True))

    def draw(key: Array) -> Array:
        return jax.random.normal(jax.random.fold_in(key, _SITE), activations.shape[1:])

    scale = noise * jax.lax.stop_gradient(size)
    return activations + (scale * jax.vmap(draw)(keys)).astype(activations.dtype)
