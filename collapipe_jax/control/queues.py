"""Virtual queues of the long-term constraints."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.cost.problem import Control


class Queues(NamedTuple):
    """Backlogs, in units of the budget and of the target.

    Attributes:
      energy: ``q``, ``[N, K + 1]``.
      divergence: ``z``, scalar.
    """

    energy: Array
    divergence: Array


def empty_queues(clusters: int, nodes: int) -> Queues:
    """Queues before the first round."""
    return Queues(energy=jnp.zeros((clusters, nodes)), divergence=jnp.zeros(()))


def update_queues(queues: Queues, control: Control, energy_j: Array, divergence: Array) -> Queues:
    """Queues after a round: cost arrives, the budget is served.

    Source: docs/system-model.md (20).

    Args:
      queues: before the round.
      control: budgets and target.
      energy_j: spent in the round, ``[N, K + 1]``.
      divergence: of the round.
    """
    return Queues(
        energy=jnp.maximum(queues.energy + energy_j / control.energy_budget_j - 1.0, 0.0),
        divergence=jnp.maximum(
            queues.divergence + divergence / control.divergence_target - 1.0, 0.0
        ),
    )


def queues_before(after: Queues) -> Queues:
    """Queues before every round of a run that began with empty ones, ``[rounds, ...]``.

    Args:
      after: queues after every round.
    """
    return jax.tree.map(lambda queue: jnp.roll(queue, 1, axis=0).at[0].set(0.0), after)
