"""Maxima of a round: of latencies, stages and message times, exact or made smooth.

The cost of a round takes them from an argument, so that a solver can put a smooth lower
bound in their place and everything else stays the same.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float

from collapipe_jax.core.batch_axis import max_nodes
from collapipe_jax.edge.cost.decision import Broadcast


class Maximum(NamedTuple):
    """A maximum, or a smooth lower bound of one."""

    value: Array
    part: Any  # of each entry in it, sum 1; of two entries, the first's; None if exact


@runtime_checkable
class MaximumRule(Protocol):
    """How maxima are taken: as they are, where a rule does not say otherwise.

    ``name`` says which maximum it is, for rules that differ by it.
    """

    def pair(self, name: str, first: Broadcast, second: Broadcast) -> Maximum:
        """Of two arrays, element by element."""
        del name
        return Maximum(jnp.maximum(first, second), None)

    def over(self, name: str, values: Float[Array, " entries *rest"]) -> Maximum:
        """Over the first axis."""
        del name
        return Maximum(max_nodes(values), None)


class HardMax(MaximumRule):
    """Maxima as they are."""


hard_max = HardMax()
