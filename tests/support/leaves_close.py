"""Trees of arrays that should be equal up to rounding."""

import jax
import numpy as np


def assert_close(got, expected, tolerance):
    """Leaf by leaf, each on the scale of its largest entry.

    Never on one under a tenth of the largest leaf's: a key's bias has gradient 0, all noise.
    """
    leaves = jax.tree.leaves(expected)
    scales = [float(np.abs(leaf).max()) for leaf in leaves]
    for a, b, scale in zip(jax.tree.leaves(got), leaves, scales, strict=True):
        scale = max(scale, 0.1 * max(scales), 1e-3)
        np.testing.assert_allclose(a, b, rtol=0.0, atol=tolerance * scale)


def assert_same(got, expected):
    """Trees of one structure whose leaves are equal to the bit."""
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, got, expected)
