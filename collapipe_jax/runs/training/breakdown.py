"""Detecting and reporting training that breaks down."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from collapipe_jax.learning.federated.learner import LearningReport
from collapipe_jax.runs import hosts

BREAKDOWN = "breakdown.json"
"""File in the workdir of a run that broke down, with ``round`` and ``problem``."""


def broken_number(report: LearningReport) -> str:
    """Which number of a round is not finite; empty if none is.

    A round without participants reports nan throughout, which is fine.
    """
    if np.isnan(report.erased_fraction):
        return ""
    wrong = [name for name in ("loss", "gradient_norm") if not np.isfinite(getattr(report, name))]
    return " and ".join(wrong)


def broken_array(state: Any) -> str:
    """Path of the first array of a learning state with a number that is not finite, if any."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not np.isfinite(hosts.fetch(leaf)).all():
            return jax.tree_util.keystr(path, simple=True, separator="/")
    return ""
