"""Keys of realisations: each is one network and its fading, the same for every policy."""

import functools

import jax
import jax.numpy as jnp
from jax import Array


def realisation_keys(seed: int, realisations: int) -> Array:
    """Keys of the realisations, ``[R]``; more of them leave the first ones as they are."""
    fold = functools.partial(jax.random.fold_in, jax.random.key(seed))
    return jax.vmap(fold)(jnp.arange(realisations))


def chunk_rows(start: int, chunk: int, realisations: int) -> Array:
    """Rows of a chunk, ``[chunk]``; the last one repeated, so that all are of one shape."""
    return jnp.minimum(jnp.arange(start, start + chunk), realisations - 1)
