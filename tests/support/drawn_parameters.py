"""Parameters from NumPy, whose generator compiles nothing."""

import jax
import jax.numpy as jnp
import numpy as np


def drawn(init, size=0.3, seed=1):
    """Parameters of these shapes, each away from where it starts, so that all of them matter.

    Args:
      init: a function of a key, as of a model.
      size: deviation from 0, or from 1 of a norm's scale.
      seed: of the numbers.
    """
    rng = np.random.default_rng(seed)

    def anything(path, leaf):
        start = float("scale" in jax.tree_util.keystr(path))
        return jnp.asarray(start + size * rng.standard_normal(leaf.shape), jnp.float32)

    shapes = jax.eval_shape(init, jax.random.key(0))
    return jax.tree_util.tree_map_with_path(anything, shapes)
