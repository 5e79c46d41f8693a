"""Padding of rows of tokens: how full rows are, and shorter rows."""

import math

import numpy as np

from collapipe_jax.learning.models.config import PAD_ID, Ids


def filled_share(ids: Ids) -> np.ndarray:
    """Share of each row of ``[..., S]`` up to its last token, ``[...]``."""
    length = ids.shape[-1]
    return np.max(np.where(ids != PAD_ID, np.arange(1, length + 1), 0), axis=-1) / length


def shortened(rows: Ids, share: float) -> Ids:
    """The first part of rows ``[..., S]``, rounded up and at least one token."""
    length = rows.shape[-1]
    return rows[..., : max(1, math.ceil(share * length - 1e-9))]
