"""Pytrees whose leaves have a leading axis, of runs or rounds."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np


def stack(trees: Sequence[Any]) -> Any:
    """Trees of one structure as one, every leaf with a leading axis, on the host."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def pick(tree: Any, index: Any) -> Any:
    """The entries of an index, of every leaf."""
    return jax.tree.map(lambda leaf: leaf[index], tree)
