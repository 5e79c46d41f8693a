"""Maxima made smooth: weighted power means, whose weights act as multipliers.

A maximum of positive numbers is at least their weighted power mean, for any weights of
sum 1,

    max_k v_k >= (sum_k w_k v_k^(1/T))^T,

with equality once the weights have gathered on maximal entries; and the mean keeps the
convexity in logarithms of what it averages. So with its maxima made smooth a convex problem
has an optimum that is a lower bound, at any temperature T, and the parts that entries have
in the mean are better weights (the exponential method of multipliers, Tseng and Bertsekas
1993).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from collapipe_jax.core.batch_axis import fusion_barrier, max_nodes, sum_nodes
from collapipe_jax.edge.cost.decision import PerCluster
from collapipe_jax.edge.cost.fixed_partition import FixedPartition
from collapipe_jax.edge.cost.maximum import Maximum

TEMPERATURE = 0.1
"""Inverse order of the means: sharp enough to single out a bottleneck, soft enough for
gradient steps."""
_LEAST_WEIGHT = 1e-6


class Weights(NamedTuple):
    """Weights of the maxima, sum 1 over their first axis; of two entries, the first one's."""

    forward: Array  # of D2D stages by node, D2E link and longest compute stage, ``[J + 2, N, ...]``
    backward: Array  # likewise
    cluster: PerCluster  # of the clusters' latencies
    hop: Array  # of a message's time by its SINR, against that by the ceiling, ``[2, J, N, ...]``
    move: Array  # likewise, ``[2, K, N, ...]``
    uplink: Array  # likewise, ``[N, ...]``
    caps: Any = None  # multipliers of caps on nodes' energies, ``[J, N, ...]``, or None


def initial_weights(fixed: FixedPartition) -> Weights:
    """Weights to start with: most messages stay below the ceiling."""
    nodes, clusters, *batch = fixed.active.shape
    flow = jnp.full((nodes + 2, clusters, *batch), 1.0 / (nodes + 2))
    message = jnp.full((2, nodes, clusters, *batch), 0.9)
    return Weights(
        forward=flow,
        backward=flow,
        cluster=jnp.full((clusters, *batch), 1.0 / clusters),
        hop=message,
        move=message[:, 1:],
        uplink=message[0, 0],
        caps=None if fixed.caps is None else fixed.caps.initial_multiplier,
    )


class PowerMean(NamedTuple):
    """Maxima as weighted power means; a rule for :func:`.cost.evaluate.round_terms`."""

    weights: Weights  # by the name of the maximum
    temperature: float = TEMPERATURE  # inverse order of the means; no traced value

    def pair(self, name: str, first: Array, second: Array) -> Maximum:
        """Mean of two arrays, element by element: one power and no reduction."""
        weight = getattr(self.weights, name)
        first_is_larger = first >= second
        top = jnp.maximum(first, second)
        less = to_inverse(jnp.minimum(first, second) / top, self.temperature)
        mine = jnp.where(first_is_larger, weight, weight * less)
        mean = mine + jnp.where(first_is_larger, (1.0 - weight) * less, 1.0 - weight)
        value = top * jnp.exp(self.temperature * jnp.log(mean))
        return fusion_barrier(Maximum(value, mine / mean))

    def over(self, name: str, values: Array) -> Maximum:
        """Mean over the first axis."""
        return power_mean(values, getattr(self.weights, name), self.temperature)


def power_mean(
    values: Float[Array, " entries *any"],
    weights: Float[Array, " entries *any"],
    temperature: float,
) -> Maximum:
    """Power mean over the first axis with weights of sum 1, at most the maximum; values >= 0."""
    top = max_nodes(values)
    # All are zero in a cluster that sits out; any ratio serves there.
    ratio = jnp.where(top > 0, values / jnp.where(top > 0, top, 1.0), 1.0)
    part = weights * to_inverse(ratio, temperature)
    total = sum_nodes(part)
    return Maximum(top * jnp.exp(temperature * jnp.log(total)), part / total)


def mean_slope(
    mean: Float[Array, "..."], part: Float[Array, "*entries"], values: Float[Array, "*entries"]
) -> Float[Array, "*entries"]:
    """Slope of a power mean by some of its entries."""
    return part * mean / jnp.where(values > 0, values, 1.0)


def to_inverse(ratio: Float[Array, "*any"], temperature: float) -> Float[Array, "*any"]:
    """``ratio^(1 / temperature)`` of ratios up to 1, by products where that is a whole power."""
    order = 1.0 / temperature
    if order.is_integer():
        return jax.lax.integer_pow(ratio, int(order))
    return jnp.exp(order * jnp.log(jnp.maximum(ratio, 1e-30)))


def floored(part: Float[Array, "*any"], entries: int) -> Float[Array, "*any"]:
    """Weights of sum 1 kept away from 0, from where none would come back."""
    return _LEAST_WEIGHT + (1.0 - entries * _LEAST_WEIGHT) * part
